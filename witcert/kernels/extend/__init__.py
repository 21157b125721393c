"""Attention of a chunk of new tokens over a cached prefix and itself: ``extend``."""

from witcert.kernels.extend.launch import ExtendOutput, extend

__all__ = ["ExtendOutput", "extend"]
