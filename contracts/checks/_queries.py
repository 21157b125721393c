"""Adversarial queries, and the bound that the read kernels give one token alone.

With one visible token the reported C is that token's bound c, and the log-sum-exp is its computed logit (extend: that
of the token and of a key 0 of the chunk, whose logit is 0).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from witcert.kernels.decode import Tuning, decode
from witcert.kernels.decode.launch import Meter, Reading
from witcert.kernels.extend import extend
from witcert.kernels.formats import ExactStore, PackedStore, PageTable

__all__ = ["HEADS", "OneToken", "adversarial", "decode_one", "extend_one", "one_token_table"]


class OneToken(NamedTuple):
    """What a kernel says of one visible token, float64 [T, H, N] each.

    c : its bound in the first reading, +inf for no claim. lse : the log-sum-exp. claims : where that reading's meter is
    below 1.
    """

    c: Tensor
    lse: Tensor
    claims: Tensor


HEADS = 16
"""Queries per token and KV head: the kinds of ``adversarial``."""


def adversarial(
    rng: torch.Generator, residual: Tensor, served: Tensor, band: Tensor, dtype: torch.dtype
) -> Tensor:
    """Queries [T, H, 16, d] against residuals and served keys [T, H, d], float64, finite; band of each channel [d].

    Aligned with the residual in all of its length, in each band alike, and with one band only; its signs, at ordinary
    size and at the largest and least of float16; one-hot where the residual is largest and at random; aligned with
    the served key, which makes the rounding of the dot product largest; random, sparse, with a wide spread of sizes;
    and two of them rounded to fp8 (e4m3).
    """
    tokens, heads, head_dim = residual.shape
    device = residual.device
    bands = int(band.max()) + 1
    member = torch.nn.functional.one_hot(band, bands).to(torch.float64).to(device)  # [d, B]

    def unit(x: Tensor) -> Tensor:
        norm = x.norm(dim=-1, keepdim=True)
        return torch.where(norm > 0, x / torch.where(norm > 0, norm, 1.0), 0.0)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng, device=device, dtype=torch.float64)

    by_band = residual.square() @ member  # [T, H, B]
    spread = torch.where(by_band > 0, by_band.clamp_min(1e-300).rsqrt(), 0.0) @ member.T
    sign = torch.where(residual < 0, -1.0, 1.0)
    top = torch.nn.functional.one_hot(residual.abs().argmax(-1), head_dim).to(torch.float64)
    some = torch.randint(0, head_dim, (tokens, heads), generator=rng, device=device)
    lone = torch.nn.functional.one_hot(some, head_dim).to(torch.float64)
    largest = torch.nn.functional.one_hot(by_band.argmax(-1), bands).to(torch.float64) @ member.T
    wide = random(tokens, heads, head_dim)
    sizes = torch.exp2(torch.randint(-14, 8, wide.shape, generator=rng, device=device).double())
    aligned = unit(residual) * 8
    kinds = [
        aligned, -3 * residual * spread, unit(residual * largest) * 5, sign, -sign * 65504.0, sign * 2.0**-24, top * 7,
        lone * -11, unit(served) * 9, torch.where(served < 0, -1.0, 1.0) * 0.3, wide, wide * sizes,
        wide * (torch.rand(wide.shape, generator=rng, device=device) < 0.1), torch.zeros_like(wide),
        aligned.to(torch.float8_e4m3fn).double(), (wide * 4).to(torch.float8_e4m3fn).double(),
    ]  # fmt: skip
    return torch.stack(kinds, 2).to(dtype)


def one_token_table(slots: Tensor, page_size: int) -> PageTable:
    """Sequences whose last token lies in the given slot; with ``window=1`` it is the only one that is visible."""
    pages = (slots // page_size).to(torch.int32)[:, None].contiguous()
    return PageTable(pages, (slots % page_size + 1).to(torch.int32), page_size)


def _parts(reading: Reading, lse: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return reading.c_max.double(), lse.double(), torch.as_tensor(reading.meter.value) < 1


def decode_one(
    q: Tensor, store: ExactStore | PackedStore, slots: Tensor, page_size: int, scale: float, meter: Meter
) -> OneToken:
    """What decode says to each query [T, H, 16, d] of the token in its slot."""
    tokens, heads, group, head_dim = q.shape
    table = one_token_table(slots, page_size)
    tuning = Tuning(tile=16, warps=1, stages=1, splits=1)
    got = decode(
        q.reshape(tokens, heads * group, head_dim), store, table, scale=scale, meter=meter, window=1, tuning=tuning
    )
    return OneToken(*(x.reshape(tokens, heads, group) for x in _parts(got.readings[0], got.lse)))


def extend_one(q: Tensor, store: ExactStore | PackedStore, slots: Tensor, scale: float, meter: Meter) -> OneToken:
    """As ``decode_one`` by extend, for pages of one slot: q [T, H, N, d], N a multiple of 16.

    The queries of a token are 16 to a position of a chunk whose keys are 0, so that the chunk's own c is nothing.
    """
    tokens, heads, count, head_dim = q.shape
    chunk = count // HEADS
    zero = torch.zeros(tokens, chunk, heads, head_dim, dtype=q.dtype, device=q.device)
    lens = torch.full((tokens,), chunk, dtype=torch.int32, device=q.device)
    rows = q.reshape(tokens, heads, chunk, HEADS, head_dim).transpose(1, 2).reshape(tokens, chunk, -1, head_dim)
    got = extend(rows.contiguous(), zero, zero, store, one_token_table(slots, 1), lens, scale=scale, meter=meter)
    shape = (tokens, chunk, heads, HEADS)
    parts = _parts(got.readings[0], got.lse)
    return OneToken(*(x.reshape(shape).transpose(1, 2).reshape(tokens, heads, count) for x in parts))
