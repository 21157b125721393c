"""Dithered INT8 codes of new keys and values: ``dither_int8_write``."""

from witcert.kernels.dither_int8_write.launch import dither_int8_write

__all__ = ["dither_int8_write"]
