"""Witnesses of written keys, for any scheme: ``witness_write``."""

from witcert.kernels.witness_write.launch import witness_write

__all__ = ["witness_write"]
