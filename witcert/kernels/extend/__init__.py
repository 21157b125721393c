"""Attention of a chunk of new tokens over a cached prefix and itself: ``extend``; over one in two stores: ``merge_extend``."""

from witcert.kernels.extend.launch import ExtendOutput, extend
from witcert.kernels.extend.merge import merge_extend

__all__ = ["ExtendOutput", "extend", "merge_extend"]
