"""Quantizers of the KV cache, each one tensor function, in one registry.

A scheme must never see a key twice: it is called once per token, on the exact key (see :class:`Scheme`).
"""

from witcert.schemes.registry import Scheme, get, names, register, table
from witcert.schemes.types import Served, Site

from witcert.schemes.rtn import Identity, RoundToNearest  # isort: skip

__all__ = ["Identity", "RoundToNearest", "Scheme", "Served", "Site", "get", "names", "register", "table"]
