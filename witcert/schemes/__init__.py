"""Quantizers of the KV cache, each one tensor function, in one registry.

A scheme must never see a key twice: it is called once per token, on the exact key (see :class:`Scheme`).
"""

from witcert.schemes.registry import Scheme, get, names, register, table, unregister
from witcert.schemes.types import Served, Site

# isort: split
# Importing a scheme registers it; the order here is the order of every table.
from witcert.schemes.rtn import Identity, RoundToNearest

# isort: split
from witcert.schemes.sign import Sign

# isort: split
from witcert.schemes.fp8 import Fp8Raw, Fp8Scaled

# isort: split
from witcert.schemes.kivi import Kivi

# isort: split
from witcert.schemes.kvquant import KVQuant

# isort: split
from witcert.schemes.dither_int8 import DitherInt8, StochasticInt8, dither, xi

__all__ = [
    "DitherInt8",
    "Fp8Raw",
    "Fp8Scaled",
    "Identity",
    "KVQuant",
    "Kivi",
    "RoundToNearest",
    "Scheme",
    "Served",
    "Sign",
    "Site",
    "StochasticInt8",
    "dither",
    "get",
    "names",
    "register",
    "table",
    "unregister",
    "xi",
]
