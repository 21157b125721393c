"""Which RoPE pairs of the keys to keep in 16 bits, chosen once on a calibration text, and schemes that keep them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from witcert.errors import InputError
from witcert.observe.activations import Activations
from witcert.schemes import Scheme, Served, Site
from witcert.schemes.grid import GROUP, work_dtype

__all__ = ["SAMPLE", "kept_channels", "outlier_channels", "rank_pairs"]

SAMPLE = 512
"""Keys of a calibration text that are looked at, evenly spaced."""
UP = 1.0 + 2.0**-20


def _channels(pairs: Tensor, head_dim: int, pairing: str) -> Tensor:
    """Both channels of each pair: [..., m] -> [..., 2m], as the pool wants them."""
    if pairing == "half":
        return torch.cat((pairs, pairs + head_dim // 2), -1)
    return torch.stack((2 * pairs, 2 * pairs + 1), -1).flatten(-2)


def _grouped(x: Tensor) -> Tensor:
    """[..., d] as [..., groups, 32], the last group filled up with zeros."""
    padded = torch.nn.functional.pad(x, (0, -x.shape[-1] % GROUP))
    return padded.reshape(*x.shape[:-1], -1, GROUP)


def _left(magnitude: Tensor, weight: Tensor, pairs: Tensor) -> Tensor:
    """Mean over tokens of sum_c s_c |q_c| without each pair, s_c the largest magnitude of the group of c; [Hkv, pairs].

    magnitude [Hkv, T, d], weight [Hkv, d], pairs [P, 2]. A pair takes at most two channels out of a group, so the largest of
    the others is among the three largest.
    """
    groups = _grouped(magnitude)
    count = groups.shape[2]
    top, where = groups.topk(3, -1)  # [Hkv, T, groups, 3]
    channel = where + GROUP * torch.arange(count, device=where.device)[:, None]
    free = ((channel[..., None] != pairs[:, 0]) & (channel[..., None] != pairs[:, 1])).int()  # [Hkv, T, groups, 3, P]
    scale = top.gather(-1, free.argmax(-2)).mean(1)  # [Hkv, groups, P]
    each = torch.zeros(len(weight), len(pairs), count, device=weight.device)
    each.scatter_add_(2, (pairs // GROUP).expand(len(weight), -1, -1), weight[:, pairs])  # what a pair takes from a group
    return (scale * (_grouped(weight).sum(-1)[..., None] - each.transpose(1, 2))).sum(1)


def rank_pairs(recording: Activations, count: int, device: str = "cpu") -> Tensor:
    """The pairs of each layer and KV head whose exclusion narrows the half-step bound most, best first.

    Greedy: each step takes the pair after which ``sum_c s_c |q_c|`` (``half_step``), averaged over the calibration keys and
    queries, is least, s_c being the scale of the group of 32 channels without the pairs taken so far. A smaller set is a
    prefix of a larger one.

    Returns
    -------
    int64 [L, Hkv, count], pairs in 0..d/2 - 1.
    """
    out = []
    for i, layer in enumerate(recording.layers):
        hkv, tokens, d = layer.k.shape
        if d % 2 or not 0 < count <= d // 2:
            raise InputError(f"count={count} pairs of layer {i}: expected 1..{d // 2}, even head_dim")
        every = -(-tokens // SAMPLE)
        magnitude = layer.k[:, ::every].to(device).float().abs()  # [Hkv, T, d]
        weight = layer.q.to(device).float().abs().reshape(hkv, -1, d).mean(1)  # [Hkv, d]
        pairs = _channels(torch.arange(d // 2, device=device)[:, None], d, recording.pairing)  # [d/2, 2]
        taken = torch.zeros(hkv, d // 2, dtype=torch.bool, device=device)
        chosen = []
        for _ in range(count):
            left = _left(magnitude, weight, pairs)  # [Hkv, d/2]
            best = left.masked_fill(taken, torch.inf).argmin(-1)  # [Hkv]
            taken.scatter_(1, best[:, None], True)
            gone = torch.zeros(hkv, d, dtype=torch.bool, device=device).scatter_(1, pairs[best], True)
            magnitude, weight = magnitude.masked_fill(gone[:, None], 0.0), weight.masked_fill(gone, 0.0)
            chosen.append(best)
        out.append(torch.stack(chosen, -1).cpu())
    return torch.stack(out)


def outlier_channels(ranked: Tensor, pairs: int, head_dim: int, pairing: Literal["half", "adjacent"]) -> Tensor:
    """The channels of the first ``pairs`` pairs of :func:`rank_pairs`, int32 [L, Hkv, 2m]: ``PoolConfig.outlier_channels``."""
    if not 0 < pairs <= ranked.shape[-1]:
        raise InputError(f"pairs={pairs} is outside 1..{ranked.shape[-1]}")
    return _channels(ranked[..., :pairs], head_dim, pairing).to(torch.int32)


@dataclass(frozen=True, eq=False)
class KeptChannels:
    """A scheme on the channels that are not kept; the kept ones [Hkv, 1, d] do not count in any scale and are float16."""

    inner: Scheme
    keep: Tensor

    def __call__(self, x: Tensor, site: Site) -> Served:
        if site.side == "v":
            return self.inner(x, site)
        keep = self.keep.to(x.device)
        served = self.inner(x.masked_fill(keep, 0.0), site)
        half = x.to(torch.float16).to(x.dtype)
        error = (half.double() - x.double()).abs()
        error = torch.where(half.isfinite(), error * UP, torch.inf).to(work_dtype(x)) * UP

        def put(kept: Tensor, other: Tensor | None) -> Tensor | None:
            return None if other is None else torch.where(keep, kept.to(other.dtype), other)

        x_hat = torch.where(keep, half, served.x_hat)
        return Served(x_hat, put(2.0 * error, served.step), served.dither_levels, put(error, served.excess))


def kept_channels(scheme: Scheme, channels: Tensor | None, head_dim: int) -> Scheme:
    """The scheme with these key channels kept in float16, int [Hkv, 2m]; itself for None."""
    if channels is None:
        return scheme
    keep = torch.zeros(channels.shape[0], 1, head_dim, dtype=torch.bool)
    keep.scatter_(2, channels.long()[:, None], True)
    extra = 2 * channels.shape[1]

    def count(d: int, side: str) -> float:
        return scheme.bytes_per_token(d, "k" if side == "k" else "v") + (extra if side == "k" else 0)

    name = f"{scheme.name}+m{channels.shape[1] // 2}"
    return Scheme(name, KeptChannels(scheme, keep), scheme.summary, scheme.source, count, scheme.per_token)
