"""The accumulators from which every bound is read: A = sum p e^c, A- = sum p e^-c, C = max c, and what happens to them.

Directions: ``log_a`` and ``c_max`` are rounded up, ``log_a_neg`` is rounded down, so that every bound, which
increases in the first two and decreases in the last, stays a bound. The float weights p need not sum to exactly 1:
the theorems speak about the distribution p / sum p, and it is for this distribution that the accumulators are
computed.

Small bounds keep their relative accuracy: log A = log1p(sum p expm1(c) / sum p), never the logarithm of a number near
1. A token with c = +inf makes no claim: log A = C = +inf, and every bound is 1.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from witcert.bounds import checks
from witcert.bounds.rounding import (
    LIBRARY,
    TINY,
    broadcast,
    depth,
    down,
    exact,
    pairwise_sum,
    result_dtype,
    round_down,
    round_up,
    up,
)
from witcert.errors import InputError

EXPM1_UNITS = 2 * LIBRARY + 2
"""Roundings of one term p (e^y - 1) as :func:`weighted_expm1` computes it."""

_SPLIT_UNITS = LIBRARY + 746
"""Roundings of a split's weight e^(lse - max): the difference is exact to u |difference| <= 746 u unless the weight
underflows."""


class Accumulators(NamedTuple):
    """What one pass over the tokens accumulates; each [...].

    log_a: at least log sum p e^c. log_a_neg: at most log sum p e^-c. c_max: max c. Natural logarithms, dimensionless.
    """

    log_a: Tensor
    log_a_neg: Tensor
    c_max: Tensor


def weighted_expm1(p: Tensor, y: Tensor) -> Tensor:
    """p (e^y - 1) for y >= 0 without a premature overflow: (p e^(y/2)) e^(y/2) from y = 40 on, larger by e^-40
    relative."""
    y = torch.where(p > 0, y, 0.0)
    small = p * torch.expm1(y.clamp_max(40.0))
    if not bool((y > 40.0).any()):
        return small
    half = torch.exp(0.5 * y)
    return torch.where(y <= 40.0, small, (p * half) * half)


def _log_mean_exp(p: Tensor, c: Tensor, total: Tensor, slack: int = 0) -> Tensor:
    """Upper bound on log(1 + sum p (e^c - 1) / total); ``total`` is a lower bound, ``slack`` the roundings already in
    p.

    Where the sum leaves the range of float64 the logarithm is taken term by term. There the result v is at least 690,
    every logarithm of a double is at most 745, and so the terms that matter, |c + log p| <= v + 845, err by 8*745u +
    (v + 845) u, the maximum, the final sum and log total by as much again: below 48 u v together.
    """
    steps = depth(p.shape[-1])
    alive = ((p > 0) & (c > 0)).any(-1)
    excess = up(pairwise_sum(weighted_expm1(p, c)), EXPM1_UNITS + steps + slack, alive)
    ratio = torch.where(alive, up(excess / total, 1), 0.0)
    log_a = up(torch.log1p(ratio), LIBRARY)
    far = ratio > 1e300
    if bool(far.any()):
        x = c + torch.log(p)
        top = x.amax(-1, keepdim=True)
        sum_exp = pairwise_sum(torch.exp(x - top))
        log_a = torch.where(far, up(top[..., 0] + torch.log(sum_exp) - torch.log(total), 48 + steps + slack), log_a)
    return torch.where(torch.isinf(c).any(-1), torch.inf, log_a)


def _log_mean_exp_neg(p: Tensor, c: Tensor, slack: int = 0) -> Tensor:
    """Lower bound on log(sum p e^-c / sum p); ``slack`` is the number of roundings already in p.

    Up to half the mass lost: log1p of minus the lost share. Beyond: e^-m sum p e^-(c-m) with an integer m <= min c,
    for which c - m is exact. Both give -log A- as a sum of nonnegative terms, accurate relative to itself.
    """
    units = LIBRARY + 2 + 2 * depth(p.shape[-1]) + 2 * slack
    total = pairwise_sum(p)
    alive = ((p > 0) & (c > 0)).any(-1)
    lost = up(pairwise_sum(p * -torch.expm1(-c)) / total, units, alive)
    near = up(-torch.log1p(-lost.clamp_max(0.5)), LIBRARY)
    shift = torch.where(p > 0, c, torch.inf).amin(-1).floor()
    shift = torch.where(torch.isinf(shift), 0.0, shift)
    kept = down(pairwise_sum(p * torch.exp(-(c - shift[..., None]).clamp_min(0.0))) / total, units).clamp_max(1.0)
    beyond = up(shift + -torch.log(kept), LIBRARY + 1)
    return -torch.where(lost <= 0.5, near, beyond)


def _prepare(p: Tensor, c: Tensor) -> tuple[Tensor, Tensor, torch.dtype]:
    checks.distribution("p", p)
    checks.nonnegative("c", c)
    checks.same_tokens("p and c", p, c)
    wide_p, wide_c = broadcast(exact(p), exact(c))
    return wide_p, wide_c, result_dtype(p, c)


def accumulate(p: Tensor, c: Tensor) -> Accumulators:
    """The accumulators of one cell from served attention and per-token logit bounds (SPEC: A, A-, C).

    p: served attention [..., T], sums to 1. c: bounds on the logit errors [..., T], >= 0, +inf for "no claim".
    """
    p64, c64, dtype = _prepare(p, c)
    total = down(pairwise_sum(p64), depth(p.shape[-1]))
    return Accumulators(
        round_up(_log_mean_exp(p64, c64, total), dtype),
        round_down(_log_mean_exp_neg(p64, c64), dtype),
        c64.amax(-1).to(dtype),
    )


def log_accumulator(p: Tensor, c: Tensor) -> Tensor:
    """log A alone, as in :func:`accumulate`, where A- is not needed; [...]."""
    p64, c64, dtype = _prepare(p, c)
    return round_up(_log_mean_exp(p64, c64, down(pairwise_sum(p64), depth(p.shape[-1]))), dtype)


def page_in_log_a(p: Tensor, c: Tensor, repaired: Tensor) -> Tensor:
    """Upper bound on log A after the tokens in ``repaired`` were made exact, before doing so (``page_in_bound``).

    A' - 1 = (N - M) / (M + y) with N - M = sum over the others of p (e^c - 1), M their mass, y = sum over the
    repaired of p e^-c. p, c: as in :func:`accumulate`. repaired: bool [..., T].
    """
    p64, c64, dtype = _prepare(p, c)
    if repaired.dtype != torch.bool:
        raise InputError(f"repaired has dtype {repaired.dtype}; bool is expected")
    checks.same_tokens("p and repaired", p, repaired)
    p64, c64, gone = broadcast(p64, c64, repaired)
    rest = pairwise_sum(torch.where(gone, p64 * torch.exp(-c64), p64))
    total = down(rest, LIBRARY + 1 + depth(p.shape[-1]))
    return round_up(_log_mean_exp(p64.masked_fill(gone, 0.0), c64.masked_fill(gone, 0.0), total), dtype)


def page_in_bound(p: Tensor, c: Tensor, repaired: Tensor) -> Tensor:
    """Upper bound on the accumulator A (not its logarithm) after a page-in: (N + y) / (M + y) of ``page_in_bound``.

    p, c, repaired: as in :func:`page_in_log_a`. +inf where e^c leaves the range; use the logarithm there.
    """
    log_a = page_in_log_a(p, c, repaired)
    value = up(torch.exp(exact(log_a)), LIBRARY)
    return round_up(torch.where(log_a > 0, value, 1.0), log_a.dtype)


def _split_weights(lse: Tensor) -> Tensor:
    checks.is_float("lse", lse)
    checks.reject("lse", lse, torch.isnan(lse) | (lse == torch.inf), "[-inf, inf)")
    top = exact(lse).amax(-1, keepdim=True)
    checks.reject("largest lse", top[..., 0], torch.isinf(top[..., 0]), "(-inf, inf)")
    return exact(lse) - top


def lse_merge(lse: Tensor, values: Tensor) -> Tensor:
    """Average of per-split averages with the weights of the output, e^lse, rounded up (``lse_merge``).

    lse: log of each split's mass [..., S], -inf for an empty split. values: nonnegative averages [..., S] such as A.
    """
    checks.nonnegative("values", values)
    checks.same_tokens("lse and values", lse, values)
    log_m, v = broadcast(_split_weights(lse), exact(values))
    empty = torch.isinf(log_m)
    v = v.masked_fill(empty, 0.0)
    heavy = torch.exp(log_m.clamp_min(-700.0)).masked_fill(empty, 0.0)
    units = 2 * (_SPLIT_UNITS + depth(lse.shape[-1])) + 2
    mean = up(pairwise_sum(heavy * v) / pairwise_sum(torch.exp(log_m)), units, (v > 0).any(-1))
    return round_up(mean, result_dtype(lse, values))


def merge_accumulators(lse: Tensor, parts: Accumulators) -> Accumulators:
    """The accumulators of a cell from those of its splits (``lse_merge``); C merges by maximum.

    lse: log of each split's mass [..., S], -inf for an empty split. parts: each [..., S].
    """
    checks.nonnegative("log_a", parts.log_a)
    checks.nonnegative("-log_a_neg", -parts.log_a_neg)
    checks.nonnegative("c_max", parts.c_max)
    checks.same_tokens("lse and parts", lse, *parts)
    log_m, log_a, loss, c_max = broadcast(
        _split_weights(lse), exact(parts.log_a), exact(-parts.log_a_neg), exact(parts.c_max)
    )
    empty = torch.isinf(log_m)
    log_a, loss, c_max = (x.masked_fill(empty, 0.0) for x in (log_a, loss, c_max))
    total = down(pairwise_sum(torch.exp(log_m)), _SPLIT_UNITS + depth(lse.shape[-1]))
    # A weight below e^-700 is raised to it and its log A lowered by as much: the change, e^-700 a split, is below TINY.
    heavy = torch.exp(log_m.clamp_min(-700.0)).masked_fill(empty, 0.0)
    lowered = (log_a - (-700.0 - log_m).clamp_min(0.0).masked_fill(empty, 0.0)).clamp_min(TINY)
    log_a = torch.where(log_a > 0, lowered, 0.0)
    dtype = result_dtype(lse, *parts)
    return Accumulators(
        round_up(_log_mean_exp(heavy, log_a, total, _SPLIT_UNITS), dtype),
        round_down(_log_mean_exp_neg(heavy, loss, _SPLIT_UNITS), dtype),
        c_max.amax(-1).to(dtype),
    )
