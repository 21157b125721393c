"""What the write kernel without dither leaves in a packed store: the reference of the INT8 write, and no other."""

from witcert.kernels.dither_int8_write.reference import encode_tokens, int8_write_reference, served_tokens

__all__ = ["encode_tokens", "int8_write_reference", "served_tokens"]
