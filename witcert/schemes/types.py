"""What goes into a scheme besides the tensor, and what comes out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from witcert.errors import InputError

__all__ = ["Served", "Site"]


@dataclass(frozen=True, eq=False)
class Site:
    """Where in the cache the tokens of a tensor lie; dithering schemes draw their dither from it and from nothing else.

    Parameters
    ----------
    layer : index of the layer, 0 to 65535.
    side : "k" or "v".
    slots : int64 [T], the cache slot (not the position) of each token, 0 to 2^32 - 1; [..., T] where the leading
        dimensions of the tensor have slots of their own.
    epochs : int64, same shape, how often the allocator has reused the slot, 0 to 2^32 - 1.
    seed : key of the random stream, 0 to 2^64 - 1.
    head0 : index of the first KV head of the tensor.
    """

    layer: int
    side: Literal["k", "v"]
    slots: Tensor
    epochs: Tensor
    seed: int
    head0: int = 0

    def __post_init__(self) -> None:
        if self.side not in ("k", "v"):
            raise InputError(f"side={self.side!r} is neither 'k' nor 'v'")
        for name, value, bits in (("layer", self.layer, 16), ("head0", self.head0, 16), ("seed", self.seed, 64)):
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**bits:
                raise InputError(f"{name}={value!r} is not a whole number in 0..2^{bits} - 1")
        for name, tensor in (("slots", self.slots), ("epochs", self.epochs)):
            if not isinstance(tensor, Tensor) or tensor.dtype != torch.int64 or tensor.ndim < 1:
                raise InputError(f"{name} is not an int64 tensor [..., T]")
            if tensor.numel() and not (int(tensor.min()) >= 0 and int(tensor.max()) < 2**32):
                raise InputError(f"{name} span {int(tensor.min())}..{int(tensor.max())}; expected 0..2^32 - 1")
        if self.slots.shape != self.epochs.shape:
            raise InputError(f"epochs has shape {tuple(self.epochs.shape)}, slots has {tuple(self.slots.shape)}")

    @classmethod
    def contiguous(cls, tokens: int, layer: int = 0, side: Literal["k", "v"] = "k", seed: int = 0) -> Site:
        """A fresh cache that stores token t in slot t: slots 0 to tokens - 1, all in epoch 0."""
        slots = torch.arange(tokens)
        return cls(layer=layer, side=side, slots=slots, epochs=torch.zeros_like(slots), seed=seed)

    @classmethod
    def trusted(cls, layer: int, side: Literal["k", "v"], slots: Tensor, epochs: Tensor, seed: int) -> Site:
        """Where an allocator put the tokens: it vouches for the ranges, whose check would wait for the device."""
        site = object.__new__(cls)
        fields = {"layer": layer, "side": side, "slots": slots, "epochs": epochs, "seed": seed, "head0": 0}
        for name, value in fields.items():
            object.__setattr__(site, name, value)
        return site


@dataclass(frozen=True, eq=False)
class Served:
    """What attention reads back from the cache, and what the stored scales alone say about its error.

    Parameters
    ----------
    x_hat : [..., H, T, d], same dtype as the input.
    step : None, or [..., H, T, d] in float32 (float64 for float64 input) with ``|x_hat - x| <= step/2`` on every
        channel, in exact arithmetic on the floats as they are; 0 where the channel is exact, +inf where nothing is
        claimed. A step is a function of what the cache stores (codes, scales), so a reader can recompute it.
    dither_levels : n if the residual follows the finite law of a subtractive dither of n levels (``grid_dither_law``):
        over the draw of the dither, ``x_hat - x = s * (g + theta) + e`` with g uniform on the n-point grid, independent
        between channels, ``|theta| <= 1/(2n)``, ``0 <= s <= step`` and ``|e| <= excess``. Else None.
    excess : None if dither_levels is None, else a tensor like step: what rounding adds to the ideal law. The share of a
        query is covered by ``half_step(q, 2 * excess, scale)``, added to the radius that the law gives.
    """

    x_hat: Tensor
    step: Tensor | None = None
    dither_levels: int | None = None
    excess: Tensor | None = None
