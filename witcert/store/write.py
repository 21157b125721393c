"""The one write path: exact keys and values in, what the format stores and the witness of it out."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from witcert.errors import InputError
from witcert.kernels.decode.budget import dot_gamma
from witcert.kernels.dither_int8_write import dither_int8_write
from witcert.kernels.dither_int8_write.reference import int8_write_reference
from witcert.kernels.formats import ExactStore, PackedStore
from witcert.kernels.page_out import page_out
from witcert.kernels.page_out.reference import page_out_reference
from witcert.kernels.rtn_write import rtn_write
from witcert.kernels.witness_write import witness_write
from witcert.kernels.witness_write.reference import witness_write_reference
from witcert.schemes import Scheme, Site, get
from witcert.store.config import PoolConfig

__all__ = ["Encoder", "online_scheme"]


def online_scheme(name: str, head_dim: int, dtype: torch.dtype) -> Scheme:
    """The registered scheme, if it quantizes each token by itself.

    Raises InputError if the registry says that it does not (per_token=False), or if on a sample of tokens it serves other
    numbers for a token that stands alone. The sample finds a dependence, it does not exclude one; soundness does not
    rest on it, since the witness is taken of what is stored.
    """
    scheme = get(name)
    if not scheme.per_token:
        raise InputError(
            f"scheme={name!r} quantizes several tokens together; a cache that grows token by token can hold only schemes "
            "whose result for a token depends on that token alone"
        )
    generator = torch.Generator().manual_seed(20261129)
    x = torch.randn(2, 5, head_dim, generator=generator).to(dtype)
    sides: tuple[Literal["k", "v"], ...] = ("k", "v")
    for side in sides:
        whole = scheme(x, Site.contiguous(5, side=side)).x_hat
        for t in range(5):
            slot = torch.tensor([t])
            alone = scheme(x[:, t : t + 1], Site(0, side, slot, torch.zeros_like(slot), 0)).x_hat
            if not torch.equal(alone.view(torch.int16), whole[:, t : t + 1].contiguous().view(torch.int16)):
                raise InputError(
                    f"scheme={name!r} serves another number for a token that stands alone; register it with per_token=False"
                )
    return scheme


class Encoder:
    """Writes rows of one layer's store: payload and witness.

    kernels : through the Triton kernels, or through their PyTorch references (the same bits, but for a witness, which the
    references round up less). The witness of an exact store or a scheme carries ``dot_gamma`` of the decode kernel
    (``arith_fold``); that of packed codes does not, since their readers add their own arithmetic.
    """

    def __init__(self, config: PoolConfig, epochs: Tensor | None, *, kernels: bool) -> None:
        self.config, self.epochs, self.kernels = config, epochs, kernels
        self.scheme = None if config.scheme is None else online_scheme(config.scheme, config.head_dim, config.dtype)
        self.gamma = dot_gamma(config.head_dim)

    @property
    def capturable(self) -> bool:
        """Whether writing makes launches only, so that it can be part of a CUDA graph."""
        return self.scheme is None or self.scheme.capturable

    def _served(self, layer: int, x: Tensor, slots: Tensor, side: Literal["k", "v"]) -> Tensor:
        """What the store keeps of x [N, Hkv, d], in its dtype."""
        if self.scheme is not None:
            if self.epochs is None:
                raise InputError("a scheme needs the epochs of its slots")
            epochs = self.epochs[slots].long() & 0xFFFFFFFF
            site = Site.trusted(layer, side, slots.long(), epochs, self.config.seed)
            x = self.scheme.stored(x.transpose(0, 1), site).transpose(0, 1)
        return x.to(self.config.dtype).contiguous()

    def __call__(self, layer: int, store: ExactStore | PackedStore, k: Tensor, v: Tensor, slots: Tensor) -> None:
        """Rows [N, Hkv, d] to slots [N] of the store."""
        if not len(slots):
            return
        split = self.config.split
        if isinstance(store, PackedStore):
            if self.kernels:
                (rtn_write if store.dither is None else dither_int8_write)(k, v, slots, store, bands=split)
            else:
                int8_write_reference(k, v, slots, store, bands=split)
            return
        k_hat, v_hat = self._served(layer, k, slots, "k"), self._served(layer, v, slots, "v")
        (page_out if self.kernels else page_out_reference)(k_hat, v_hat, slots, store)
        if store.witness is not None:
            (witness_write if self.kernels else witness_write_reference)(
                k, k_hat, slots, store.witness, bands=split, gamma=self.gamma
            )
