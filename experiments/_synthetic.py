"""Synthetic long contexts with the structure that makes keys hard to quantize; everything is drawn from a seed.

They are no model's activations. What real ones have, and these have too, is

* **RoPE**: keys are turned by their position with base 500000 (half-split pairs), and most of the energy of their mean
  lies in the pairs that turn slowly;
* **channel outliers**: four pairs of each KV head have a mean twelve times the spread of the other channels, which stretches
  the step of every quantizer that shares a scale with them; queries are zero there;
* **clusters**: runs of about 48 neighbouring tokens share a centre, so that a few pages hold most of the mass;
* **a sink**: the first token takes a share of every query, and its value is close to zero;
* **far-away targets**: three of four query heads point at a run in the first three quarters of the context, so strongly that
  it holds 20 to 90 % of the mass; the others attend diffusely.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["BASE", "DESCRIPTION", "RUN", "Context", "Shape", "context"]

BASE, RUN = 500000.0, 48
OUTLIER_PAIRS, OUTLIER = 4, 12.0
NEAR, SINK_VALUE = 0.75, 0.02
DESCRIPTION = (
    "The long contexts are **synthetic**: random keys turned by RoPE, with slow pairs of large mean, four outlier "
    f"pairs a head, runs of about {RUN} tokens around a common centre, a sink token, and queries that point at a "
    "far-away run which holds 20 to 90 % of their mass (a quarter of the heads attend diffusely)."
)


@dataclass(frozen=True)
class Shape:
    """KV heads, query heads of each, channels."""

    kv_heads: int = 4
    group: int = 7
    head_dim: int = 128

    @property
    def heads(self) -> int:
        return self.kv_heads * self.group

    @property
    def scale(self) -> float:
        return float(self.head_dim**-0.5)


@dataclass(frozen=True, eq=False)
class Context:
    """One request: k, v float16 [T, Hkv, d], queries q float16 [Q, Hq, d] of its last position, share of the target [Q, Hq]."""

    q: Tensor
    k: Tensor
    v: Tensor
    target: Tensor


def _turn(x: Tensor) -> Tensor:
    """RoPE of x [T, H, d] at positions 0..T-1."""
    tokens, _, d = x.shape
    angle = torch.arange(tokens, device=x.device, dtype=torch.float64)[:, None] * BASE ** (
        -torch.arange(d // 2, device=x.device, dtype=torch.float64) / (d // 2)
    )
    cos, sin = angle.cos().float()[:, None], angle.sin().float()[:, None]
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def _means(shape: Shape, draw: torch.Generator, device: torch.device) -> tuple[Tensor, Tensor]:
    """Mean of the keys before RoPE [Hkv, d], large where RoPE turns slowly and on the outlier pairs; which those are."""
    half = shape.head_dim // 2
    growth = (torch.arange(half, device=device) / half) ** 4
    mean = torch.randn(shape.kv_heads, 2, half, generator=draw, device=device) * (0.3 + 3.0 * growth)
    free = half - half // 2 - shape.head_dim // 16  # the slowest pairs are the sink's
    drawn = torch.rand(shape.kv_heads, free, generator=draw, device=device)
    pairs = drawn.argsort(-1)[:, :OUTLIER_PAIRS] + half // 2
    sign = torch.randn(shape.kv_heads, 2, OUTLIER_PAIRS, generator=draw, device=device).sign()
    mean.scatter_(2, pairs[:, None].expand(-1, 2, -1), sign * OUTLIER)
    outlier = torch.zeros_like(mean, dtype=torch.bool).scatter_(2, pairs[:, None].expand(-1, 2, -1), True)
    return mean.flatten(1), outlier.flatten(1)


def _gain(base: Tensor, along: Tensor, inside: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Gain at which the target holds the wanted share of the mass, by bisection, and the share that it then holds.

    base, along : logits [.., T] without the target's direction and of that direction alone; inside: bool [.., T].
    """
    low, high = torch.zeros_like(wanted), torch.full_like(wanted, 64.0)
    for _ in range(24):
        middle = (low + high) / 2
        share = (torch.softmax(base + middle[..., None] * along, -1) * inside).sum(-1)
        low, high = torch.where(share < wanted, middle, low), torch.where(share < wanted, high, middle)
    share = (torch.softmax(base + high[..., None] * along, -1) * inside).sum(-1)
    return high, share


def context(tokens: int, queries: int, shape: Shape, seed: int, device: torch.device | str) -> Context:
    """Draw one request of that many tokens, and queries that attend to all of it."""
    where = torch.device(device)
    draw = torch.Generator(device=where).manual_seed(seed)
    hkv, group, d = shape.kv_heads, shape.group, shape.head_dim

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=draw, device=where)

    run = (torch.rand(tokens, generator=draw, device=where) < 1.0 / RUN).long().cumsum(0)
    runs = int(run[-1]) + 1
    mean, outlier = _means(shape, draw, where)
    content = normal(runs, hkv, d)[run]
    k = _turn(mean + content + 0.6 * normal(tokens, hkv, d))
    channel = (0.5 * normal(hkv, d)).exp()
    v = (normal(runs, hkv, d)[run] + 0.5 * normal(tokens, hkv, d)) * channel
    slow = torch.zeros(hkv, d, device=where)
    slow[:, d // 2 - d // 16 : d // 2] = normal(hkv, d // 16)
    slow = slow / slow.norm(dim=-1, keepdim=True)
    k[0], v[0] = k[0] + math.sqrt(d) * slow, SINK_VALUE * v[0]
    k, v = k.half(), v.half()

    wide = k.float()
    last = max(0, min(runs - 2, int(run[int(NEAR * (tokens - 1))])))
    # Runs are drawn by a token of theirs; the run of the sink is left out where there are others.
    token = torch.randint(min(RUN, tokens - 1), max(int(NEAR * tokens), RUN + 1), (queries, hkv, group),
                          generator=draw, device=where).clamp(max=tokens - 1)  # fmt: skip
    picked = run[token].clamp(max=max(last, int(run[min(RUN, tokens - 1)])))  # [Q, Hkv, G]
    count = torch.zeros(runs, device=where).index_add_(0, run, torch.ones(tokens, device=where))
    centre = torch.zeros(runs, hkv, d, device=where).index_add_(0, run, _turn(content)) / count[:, None, None]
    away = centre.masked_fill(outlier, 0.0)  # queries are small where keys are large
    head = torch.arange(hkv, device=where)[None, :, None].expand_as(picked)
    direction = away[picked, head]  # [Q, Hkv, G, d]
    direction = direction / direction.norm(dim=-1, keepdim=True)
    # The sink stands out of the bulk by a little less than the logarithm of the number of tokens.
    pull = (math.log(tokens) - 2.0 + normal(queries, hkv, group).abs()) * shape.scale**-1 / math.sqrt(d)
    noise = (0.8 * normal(queries, hkv, group, d)).masked_fill(outlier[None, :, None], 0.0)
    q = noise + pull[..., None] * slow[None, :, None]
    keys = wide.transpose(0, 1)[None]  # [1, Hkv, T, d]
    base, along = (x @ keys.transpose(-1, -2) * shape.scale for x in (q, direction))  # [Q, Hkv, G, T]
    wanted = 0.2 + 0.7 * torch.rand(queries, hkv, group, generator=draw, device=where)
    gain, share = _gain(base, along, run == picked[..., None], wanted)
    diffuse = torch.arange(group, device=where) % 4 == 3
    gain, share = gain.masked_fill(diffuse, 0.0), share.masked_fill(diffuse, 0.0)
    q = (q + gain[..., None] * direction).half()
    return Context(q.flatten(1, 2), k, v, share.flatten(1, 2))
