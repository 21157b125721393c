"""KIVI: 2-bit keys per channel, 2-bit values per token, and a window of recent tokens in full precision."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from witcert.errors import InputError
from witcert.schemes.grid import GROUP, asymmetric, exact_step, serve, work_dtype
from witcert.schemes.registry import register
from witcert.schemes.types import Served, Site

__all__ = ["Kivi"]


@dataclass(frozen=True)
class Kivi:
    """Asymmetric low-bit cache: keys in groups of tokens per channel, values in groups of channels per token.

    Parameters
    ----------
    bits : width of a code.
    group : tokens (keys) or channels (values) that share a minimum and a scale.
    residual : length R of the window, a multiple of group. Keys: the last T mod R tokens are not quantized yet. Values:
        the last R tokens are not.

    Minimum and scale are stored in fp16, the minimum rounded down and the scale up (the original rounds both to
    nearest), so that nothing is clipped and the step is a bound. A group that is constant, and an fp16 number, has
    scale 0 and is exact. A token is quantized once, when it leaves the window; a longer prefix has another window, so
    apply the scheme to a whole sequence.
    """

    bits: int = 2
    group: int = GROUP
    residual: int = GROUP

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= 8:
            raise InputError(f"bits={self.bits!r} is outside 1..8")
        if self.group < 1 or self.residual < 1 or self.residual % self.group:
            raise InputError(f"residual={self.residual!r} is not a positive multiple of group={self.group!r}")

    def __call__(self, x: Tensor, site: Site) -> Served:
        work = x.to(work_dtype(x))
        tokens = x.shape[-2]
        window = tokens % self.residual if site.side == "k" else min(tokens, self.residual)
        old, recent = work[..., : tokens - window, :], work[..., tokens - window :, :]
        quantize = self._per_channel if site.side == "k" else self._per_token
        x_hat, step = quantize(old) if tokens > window else (old, old)
        wide = torch.cat((x_hat, recent), -2)
        return serve(x, wide, torch.cat((step, exact_step(recent)), -2))

    def _per_channel(self, x: Tensor) -> tuple[Tensor, Tensor]:
        blocks = x.reshape(*x.shape[:-2], -1, self.group, x.shape[-1])  # [..., T/G, G, d]
        out = asymmetric(blocks, blocks.amin(-2, keepdim=True), blocks.amax(-2, keepdim=True), 2**self.bits)
        return out[0].flatten(-3, -2), out[1].flatten(-3, -2)

    def _per_token(self, x: Tensor) -> tuple[Tensor, Tensor]:
        parts = [
            asymmetric(part, part.amin(-1, keepdim=True), part.amax(-1, keepdim=True), 2**self.bits)
            for part in torch.split(x, self.group, dim=-1)
        ]
        return torch.cat([p[0] for p in parts], -1), torch.cat([p[1] for p in parts], -1)

    def bytes_per_token(self, head_dim: int, side: str = "k") -> float:
        groups = head_dim / self.group if side == "k" else -(-head_dim // self.group)
        return head_dim * self.bits / 8 + 4 * groups


register(
    "kivi_2bit",
    summary="2-bit asymmetric: keys per channel over 32 tokens, values per token; recent tokens in full precision",
    source="Liu et al., KIVI, 2024",
    per_token=False,
)(Kivi())
