"""Write-time witnesses: band norms of the residual, rounded up to fp16, and the per-token bound that they give.

Written once per token and KV head: ``w_b = RU16((1 + 2^-20) * |r_b| + gamma * |k_hat_b|)`` for each band ``b`` of RoPE
pairs, ``r = k_hat - k``. Read with every query: ``c = scale * sum_b RU16(|q_b|) * w_b * (1 + 2^-18)``, which bounds the
logit error of that token for any query (theorems ``band_cauchy_schwarz``, ``rope_band_unitary``, ``witness_mono``,
``ru16_ge``, ``ru16_lt_next``, ``arith_fold``).

Everything here errs upward only. What is not finite becomes +inf, which means "no claim" and never a small bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from witcert.errors import InputError

__all__ = ["Bands", "band_norms", "query_norms", "ru16", "token_bound", "witness"]

MAX_HEAD_DIM = 8192
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

# An exact sum of n squares, computed in float64 in any order, is at least (1 - u)^n times the true one (u = 2^-53: one
# rounding per square, at most n - 1 per sum, all terms nonnegative); the square root and the product below lose (1 - u)
# each. (1 - u)^-(n/2 + 2) < 1 + 2^-40 for n <= MAX_HEAD_DIM, so multiplying by OUTWARD gives an upper bound.
OUTWARD = 1.0 + 2.0**-40
WRITE_FACTOR = 1.0 + 2.0**-20
READ_FACTOR = 1.0 + 2.0**-18


@dataclass(frozen=True)
class Bands:
    """A split of the channels of one head into contiguous groups of RoPE pairs.

    Parameters
    ----------
    head_dim : channels of the head.
    bands : number of groups B.
    pairing : ``"half"`` pairs channel i with i + rotary_dim/2 (HF Llama, Qwen), ``"adjacent"`` 2i with 2i + 1 (GPT-J).
    rotary_dim : channels that RoPE turns, the first ones; the default is all of them, 0 means none (values).

    The units that are distributed are the rotary pairs in order of frequency, then the channels that RoPE leaves alone,
    two by two. A unit is never split, so every band keeps its norm under RoPE. Band sizes differ by at most one unit.
    """

    head_dim: int
    bands: int = 16
    pairing: Literal["half", "adjacent"] = "half"
    rotary_dim: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.head_dim <= MAX_HEAD_DIM:
            raise InputError(f"head_dim={self.head_dim!r} is outside 1..{MAX_HEAD_DIM}")
        if self.pairing not in ("half", "adjacent"):
            raise InputError(f"pairing={self.pairing!r} is neither 'half' nor 'adjacent'")
        if self.rotary % 2 or not 0 <= self.rotary <= self.head_dim:
            what = "rotary_dim" if self.rotary_dim is not None else "rotary_dim (default: head_dim)"
            raise InputError(f"{what}={self.rotary!r} is not an even number in 0..{self.head_dim}")
        if not 1 <= self.bands <= self.units:
            raise InputError(f"bands={self.bands!r} is outside 1..{self.units}, the pairs of head_dim={self.head_dim}")

    @property
    def rotary(self) -> int:
        """Number of channels that RoPE turns."""
        return self.head_dim if self.rotary_dim is None else self.rotary_dim

    @property
    def units(self) -> int:
        """Number of unsplittable units: rotary pairs, then the other channels two by two."""
        return (self.head_dim + 1) // 2

    @cached_property
    def index(self) -> Tensor:
        """Band of each channel, int64 [head_dim]."""
        channel = torch.arange(self.head_dim)
        unit = channel // 2
        if self.pairing == "half" and self.rotary:
            turned = channel < self.rotary
            unit = torch.where(turned, channel % (self.rotary // 2), unit)
        return unit * self.bands // self.units


def _check(name: str, x: Tensor, bands: Bands) -> None:
    if not isinstance(x, Tensor) or x.dtype not in _FLOATS:
        kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
        raise InputError(f"{name} is {kind}; expected a tensor of float16, bfloat16, float32 or float64")
    if x.ndim < 1 or x.shape[-1] != bands.head_dim:
        raise InputError(f"{name} has shape {tuple(x.shape)}; expected [..., {bands.head_dim}], as its bands say")


def band_norms(x: Tensor, bands: Bands) -> Tensor:
    """Upper bounds on the Euclidean norms of x in each band: x [..., d] -> float64 [..., B].

    The true norm of the given floats is at most the result, which exceeds it by less than 2^-39 of itself (for float64
    input below 1e-135: by less than 1e-150). NaN gives NaN, infinity gives infinity.
    """
    _check("x", x, bands)
    wide = x.detach().to(torch.float64)
    index = bands.index.to(x.device)
    out = wide.new_zeros(*x.shape[:-1], bands.bands)
    squares = out.index_add(-1, index, wide.square())  # [..., B]
    if x.dtype == torch.float64:
        # Squares below the normal range lose up to 2^-1075 each; the added 2^-1000 is more than MAX_HEAD_DIM of those.
        some = out.index_add(-1, index, (wide != 0).to(torch.float64)) > 0
        squares = torch.where(some & (squares < 2.0**-900), squares + 2.0**-1000, squares)
    return squares.sqrt() * OUTWARD


def _ru32(x: Tensor) -> Tensor:
    """Float64 rounded toward +inf to float32 (NaN stays, overflow is +inf)."""
    near = x.to(torch.float32)
    low = near.to(torch.float64) < x
    bits = near.view(torch.int32)
    # The next float32 up: one more in the magnitude if positive, one less if negative; -0.0 and 0.0 go to 2^-149.
    up = torch.where(bits < 0, torch.where(bits == -(2**31), 1, bits - 1), bits + 1).to(torch.int32)
    return torch.where(low, up.view(torch.float32), near)


def ru16(x: Tensor) -> Tensor:
    """Round toward +inf to float16, by integer arithmetic on the bits; NaN, infinity and overflow give +inf.

    x is float16, bfloat16, float32 or float64 of any shape. The result is the least float16 >= x. Float64 goes through
    float32, also rounded up, which changes nothing, since each float16 is a float32.
    """
    if not isinstance(x, Tensor) or x.dtype not in _FLOATS:
        kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
        raise InputError(f"x is {kind}; expected a tensor of float16, bfloat16, float32 or float64")
    narrow = _ru32(x.detach()) if x.dtype == torch.float64 else x.detach().to(torch.float32)
    bits = narrow.contiguous().view(torch.int32)
    negative = bits < 0
    magnitude = bits & 0x7FFFFFFF
    exponent = magnitude >> 23
    # value = significand * 2^(max(exponent, 1) - 150); a float16 code counts units of 2^-24 below 2^-14.
    significand = (magnitude & 0x7FFFFF) | torch.where(exponent > 0, 0x800000, 0).to(torch.int32)
    shift = (126 - exponent).clamp(13, 24)  # 13 for every normal float16; at 24 and above the code is 0 or 1
    up = torch.where(negative, 0, (1 << shift) - 1).to(torch.int32)  # away from zero only if positive
    subnormal = torch.where(exponent < 102, torch.where(negative | (magnitude == 0), 0, 1), (significand + up) >> shift)
    normal = ((magnitude + up) >> 13) - (112 << 10)
    code = torch.where(exponent < 113, subnormal, normal)
    top = torch.where(negative, 0x7BFF, 0x7C00)
    code = torch.where(magnitude > 0x477FE000, top, code)
    code = torch.where(negative, code - 0x8000, code)  # the sign bit, as int16 reads it
    code = torch.where(magnitude >= 0x7F800000, 0x7C00, code)
    return code.to(torch.int16).view(torch.float16)


def witness(k: Tensor, k_hat: Tensor, bands: Bands, gamma: float = 0.0) -> Tensor:
    """The stored witness of each token: ``RU16((1 + 2^-20) * |r_b| + gamma * |k_hat_b|)``, float16 [..., B].

    Parameters
    ----------
    k, k_hat : exact and served key, [..., d], any floating dtypes.
    bands : the split of the channels.
    gamma : dot-product constant of the read kernel (``arith_fold``): if the computed q . k_hat errs by at most
        gamma * sum_c |q_c k_hat_c|, the bound from this witness covers residual and arithmetic. 0 for exact arithmetic.

    The residual is taken in float64 (one rounding, relative 2^-53, which the factor 1 + 2^-20 pays for as it pays for
    the roundings of a float32 kernel). NaN or infinity in k or k_hat gives +inf in that band: no claim.
    """
    _check("k", k, bands)
    _check("k_hat", k_hat, bands)
    if k.shape != k_hat.shape:
        raise InputError(f"k_hat has shape {tuple(k_hat.shape)}, k has {tuple(k.shape)}; they must agree")
    if not (math.isfinite(gamma) and gamma >= 0):
        raise InputError(f"gamma={gamma!r} is not a finite number >= 0")
    residual = k_hat.detach().to(torch.float64) - k.detach().to(torch.float64)
    total = band_norms(residual, bands) * WRITE_FACTOR
    if gamma:
        total = total + band_norms(k_hat, bands) * gamma
    return ru16(total)


def query_norms(q: Tensor, bands: Bands) -> Tensor:
    """Band norms of the query, rounded up: ``RU16(|q_b|)``, float16 [..., B]."""
    return ru16(band_norms(q, bands))


def token_bound(q_norms: Tensor, w: Tensor, scale: float) -> Tensor:
    """Per-token bound on the logit error: ``scale * sum_b q_b w_b * (1 + 2^-18)``, float64.

    Parameters
    ----------
    q_norms : [..., Q, B], from :func:`query_norms`.
    w : [..., T, B], from :func:`witness`; leading dimensions broadcast.
    scale : softmax scale, > 0.

    Returns
    -------
    c : [..., Q, T]. A token with a band that is not finite has c = +inf for every query, also for those that are zero
        in that band, and so has a query that is not finite for every token: NaN never becomes a small number.
    """
    for name, x in (("q_norms", q_norms), ("w", w)):
        if not isinstance(x, Tensor) or x.dtype not in _FLOATS or x.ndim < 2:
            kind = f"{x.dtype} {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
            raise InputError(f"{name} is {kind}; expected a floating tensor [..., rows, bands]")
        if bool((x < 0).any()):
            raise InputError(f"{name} has negative entries (least {float(x.min())}); a norm is >= 0")
    if q_norms.shape[-1] != w.shape[-1]:
        raise InputError(f"q_norms has {q_norms.shape[-1]} bands, w has {w.shape[-1]}; they must agree")
    if not (math.isfinite(scale) and scale > 0):
        raise InputError(f"scale={scale!r} is not a finite number > 0")
    q_ok, w_ok = q_norms.isfinite(), w.isfinite()
    left = torch.where(q_ok, q_norms, 0).to(torch.float64)
    right = torch.where(w_ok, w, 0).to(torch.float64)
    c = left @ right.transpose(-1, -2) * (scale * READ_FACTOR)
    known = q_ok.all(-1)[..., :, None] & w_ok.all(-1)[..., None, :]
    return torch.where(known, c, math.inf)
