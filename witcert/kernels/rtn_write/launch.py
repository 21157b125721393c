"""Launch of the INT8 write kernel without dither."""

from __future__ import annotations

from torch import Tensor

from witcert.errors import InputError
from witcert.kernels.dither_int8_write.launch import write_int8
from witcert.kernels.formats import PackedStore
from witcert.witness import Bands

__all__ = ["rtn_write"]


def rtn_write(
    k: Tensor, v: Tensor, slots: Tensor, store: PackedStore, *, bands: Bands | None = None, gamma: float = 0.0
) -> None:
    """Quantize new keys and values to the nearest of 255 levels into a packed store: codes, scales, outliers, witness.

    ``s = RU16(amax / 127)``, ``n = round(x / s)``: what the scheme rtn_int8 serves, bit for bit. The residual is at
    most s/2 (theorem ``half_step``), up to the rounding of the quotient that ``schemes.grid.STEP`` pays for. Arguments
    as in ``dither_int8_write``, with a store that has no dither.
    """
    if store.dither is not None:
        raise InputError("the store has dither; use dither_int8_write")
    write_int8(k, v, slots, store, bands, gamma)
