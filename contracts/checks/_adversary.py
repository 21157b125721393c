"""Hard caches and queries: residuals along the query, worst sign splits, dominant and equal tokens, extreme numbers.

A served key of the exact store is free, so an adversary picks it first (it sets the weights) and then the exact key a
residual away. A packed key is what the write kernel makes of the exact key: there the residual is steered by placing the
key halfway between two codes, on the side that is wanted.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from contracts.checks._stores import normal, uniform
from witcert import bounds
from witcert.kernels.formats import GROUP

__all__ = ["EXACT_KINDS", "KEY_KINDS", "along", "exact_pair", "halfway_keys", "keys", "ragged", "split", "vanishing_pair"]

EXACT_KINDS = ("random", "along", "band", "worst", "dominant", "equal", "massive", "extreme", "tiny")
KEY_KINDS = ("normal", "massive", "flat", "tiny", "huge", "zero")


def ragged(g: torch.Generator, n: int, tokens: int) -> Tensor:
    """Lengths 0, 1 and random ones, a third of them full; int64 [n]."""
    lens = torch.randint(2, tokens + 1, (n,), generator=g, device=g.device)
    lens[::3] = tokens
    lens[1::11] = 1
    lens[5::11] = 0
    return lens


def keys(g: torch.Generator, kind: str, n: int, tokens: int, heads: int, d: int, dtype: torch.dtype) -> Tensor:
    """Keys [n, tokens, heads, d] of a kind that a model might make."""
    x = normal(g, n, tokens, heads, d)
    if kind == "massive":
        x[..., 5::37] *= 100
    elif kind == "flat":
        x = x[:, :1] + 1e-3 * x
    elif kind == "tiny":
        x *= 1e-6
    elif kind == "huge":
        x *= 300
    elif kind == "zero":
        x[:, ::2] = 0.0
    return x.to(dtype)


def split(p: Tensor, c: Tensor) -> Tensor:
    """Signs -1 (on the set that gains) and +1 of the worst logit errors with |eps| <= c; p, c [..., T]."""
    return 1.0 - 2.0 * bounds.worst_case_set(p, c, polish=p.numel() <= 4096).double()


def _two_level(g: torch.Generator, level: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
    """Logits and signs [..., tokens] at which the total variation of errors +-level is tanh(level / 2)."""
    place = torch.rand((*level.shape[:-1], tokens), generator=g, device=g.device).argsort(-1)
    gain = place < max(1, tokens // 4)
    share = math.log(max(1, tokens // 4) / max(1, tokens - max(1, tokens // 4)))
    return torch.where(gain, -level - share, 0.0), torch.where(gain, -1.0, 1.0)


def exact_pair(
    g: torch.Generator, kind: str, n: int, tokens: int, heads: int, group: int, d: int, dtype: torch.dtype,
    bands: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Queries [n, heads * group, d], served keys and exact keys [n, tokens, heads, d] of a kind, all of ``dtype``.

    bands : which channel is in which band, float64 [d, B].
    """
    scale = d**-0.5
    shape = (n, tokens, heads, d)
    q = normal(g, n, heads, group, d)
    if kind in ("along", "band", "worst", "dominant"):
        base = normal(g, n, heads, d)
        if kind == "band":  # one band only: nothing is lost between bands
            base = base * bands.T[torch.randint(bands.shape[1], (n, heads), generator=g, device=g.device)]
        base = base.to(dtype).double()
        square = base.square().sum(-1).clamp_min(1e-12)  # [n, heads]
        level = 10 ** uniform(g, -3.0, 0.7, n, heads, 1)
        if kind in ("along", "band"):
            logit, sign = _two_level(g, level, tokens)
            level = level.expand(n, heads, tokens)
        else:
            logit = normal(g, n, heads, tokens) * 2
            if kind == "dominant":
                logit[..., 0] += 20.0
            level = level * uniform(g, 0.05, 1.0, n, heads, tokens)
            sign = split(torch.softmax(logit, -1), level)
        along_q = base / (scale * square[..., None])
        k_hat = (logit.transpose(1, 2)[..., None] * along_q[:, None]).to(dtype)
        residual = (sign * level).transpose(1, 2)[..., None] * along_q[:, None]
        k = (k_hat.double() - residual).to(dtype)
        q = base[:, :, None] * 2.0 ** -torch.arange(group, device=g.device)[:, None].double().clamp_max(6.0)
        q[:, :, 1::3] = normal(g, *q[:, :, 1::3].shape)
        return q.flatten(1, 2).to(dtype), k_hat, k
    if kind == "equal":
        k_hat = (normal(g, n, 1, heads, d) * 0.3).expand(shape).to(dtype)
        sign = torch.where(torch.rand((n, tokens, heads, 1), generator=g, device=g.device) < 0.5, -1.0, 1.0)
        k = (k_hat.double() + 2.0**-7 * sign * torch.sign(q[:, None, :, 0])).to(dtype)
        q[:, :, 0] = torch.sign(q[:, :, 0])
    elif kind == "massive":
        k = keys(g, kind, *shape, dtype)
        k_hat = (k.double() * (1 + 1e-3 * normal(g, *shape))).to(dtype)
        q[..., 5::37] *= 10
    elif kind == "extreme":
        top = torch.finfo(dtype).max if dtype == torch.float16 else 1e30
        numbers = torch.tensor([0.0, top, -top, 2.0**-24, -(2.0**-14), 1.0, -2.5, 2.0**-20], device=g.device).double()
        pick = torch.randint(len(numbers), shape, generator=g, device=g.device)
        calm = torch.rand((n, tokens, 1, 1), generator=g, device=g.device) < 0.7
        k = torch.where(calm, numbers[pick].clamp(-3, 3), numbers[pick]).to(dtype)
        k_hat = torch.where(torch.rand(shape, generator=g, device=g.device) < 0.1, 0.0, k.double()).to(dtype)
        q = torch.where(torch.rand(q.shape, generator=g, device=g.device) < 0.5, q * 2.0**-14, q)
        q[..., 0] = 0.0
    else:
        size = 1e-6 if kind == "tiny" else 1.0
        k = (normal(g, *shape) * size).to(dtype)
        k_hat = (k.double() * (1 + 0.02 * normal(g, *shape))).to(dtype)
        q = q * (1000.0 if kind == "tiny" else 1.0)
    return q.flatten(1, 2).to(dtype), k_hat, k


def vanishing_pair(g: torch.Generator, n: int, tokens: int, group: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Keys whose first token has a served weight that float32 loses beside that of ``high``, and an exact weight that counts.

    Queries [n, group, 64], served and exact keys [n, tokens, 1, 64], and the key high [n, 1, 64], of float16; one KV head.
    With high among the later keys the first token is served with e^-92 to e^-88, and its residual is worth what gives it a
    share of e^-6 to e^-1; its own weighted bound is below 2^128.
    """
    base = torch.sign(normal(g, n, 64))
    height = uniform(g, 88.5, 92.5, n, 1)
    gain = (height - uniform(g, 1.0, 4.0, n, 1)).clamp_max(87.0)
    unit = (base / 8)[:, None]  # scale |q|^2 = 8
    k_hat = torch.zeros(n, tokens, 1, 64, dtype=torch.float16, device=g.device)
    k = k_hat.clone()
    k[:, 0] = (gain[..., None] * unit).half()
    shrink = 1 - 2.0**-9 * torch.arange(group, device=g.device).double()
    return (base[:, None] * shrink[:, None]).half(), k_hat, k, (height[..., None] * unit).half()


def halfway_keys(
    g: torch.Generator, sign: Tensor, pattern: Tensor, tilt: Tensor, xi: Tensor | None, divisor: float
) -> Tensor:
    """Float32 keys [n, T, H, d] whose residual is half a step long in every channel but the first of each group of 32.

    sign [n, T, H]: +1 or -1, which way along pattern the residual points; pattern [n, H, d]: +1 or -1. tilt [n, T, H]: how
    far along pattern the key lies, in codes. xi [n, T, H, d]: the dither that the write will add, or None. The first
    channel of a group has the magnitude that makes the scale a power of two.
    """
    n, tokens, heads = sign.shape
    d = pattern.shape[-1]
    step = 2.0 ** torch.randint(-8, -3, (n, 1, heads, d // GROUP), generator=g, device=g.device).double()
    step = step.expand(n, tokens, heads, d // GROUP).repeat_interleave(GROUP, -1)
    up = sign[..., None] * pattern[:, None] > 0
    near = (tilt[..., None] * pattern[:, None] + 2 * normal(g, n, tokens, heads, d)).round()
    # ties go to the even code: from an odd one up, from an even one down
    low = (2 * torch.floor(near / 2) + up.double()).clamp(-100, 100)
    low = torch.where(low.abs() >= 100, up.double() - 2, low)
    shift = 0.0 if xi is None else xi
    key = step * (low + 0.5 - shift)
    first = torch.arange(d, device=g.device) % GROUP == 0
    return torch.where(first, step * divisor, key).float()


def along(residual: Tensor, group: int, shape: Callable[[Tensor], Tensor]) -> Tensor:
    """Queries [n, H, group, d], member i along shape(residual of token i); residual [n, T, H, d]."""
    token = torch.arange(group, device=residual.device) % residual.shape[1]
    return shape(residual[:, token].transpose(1, 2))
