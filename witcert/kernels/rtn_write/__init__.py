"""Round-to-nearest INT8 codes of new keys and values: ``rtn_write``."""

from witcert.kernels.rtn_write.launch import rtn_write

__all__ = ["rtn_write"]
