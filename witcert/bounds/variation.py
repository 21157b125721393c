"""Upper bounds on the total variation between exact and served attention, read from the accumulators.

Every function takes what ``accumulate`` returns, evaluates a form without cancellation (a function of log A through
expm1, tanh or the logistic function), inflates it by the roundings that the form costs and clamps it at 1. NaN in, 1
out: no claim.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from witcert.bounds import checks
from witcert.bounds.accumulators import EXPM1_UNITS, accumulate, weighted_expm1
from witcert.bounds.rounding import LIBRARY, as_bound, broadcast, depth, exact, pairwise_sum, result_dtype, up

_LOG_2 = math.log(2.0)
"""The double below log 2, so that log A <= _LOG_2 implies A <= 2."""


def _log_ratio(log_a: Tensor, log_a_neg: Tensor) -> Tensor:
    """Upper bound on log(A / A-) = log A + (-log A-), a sum of two nonnegative numbers."""
    checks.nonnegative("log_a", log_a, nan=True)
    checks.nonnegative("-log_a_neg", -log_a_neg, nan=True)
    return up(exact(log_a) - exact(log_a_neg), 1)


def eform(log_a: Tensor) -> Tensor:
    """TV <= (A^2 - 1) / 2 (``tv_le_eform``); vacuous from A = sqrt 3. log_a: [...], >= 0."""
    checks.nonnegative("log_a", log_a, nan=True)
    return as_bound(up(0.5 * torch.expm1(2.0 * exact(log_a)), LIBRARY + 1), result_dtype(log_a))


def sharp(log_a: Tensor) -> Tensor:
    """TV <= 1 - 1/A for A <= 2 and A^2 / (A^2 + 4) beyond (``tv_le_sharp``); the best bound in terms of A alone.

    log_a: [...], >= 0. The two forms touch at A = 2; below it the first is the smaller one.
    """
    checks.nonnegative("log_a", log_a, nan=True)
    x = exact(log_a)
    small = -torch.expm1(-x)
    large = 1.0 / (1.0 + 4.0 * torch.exp(-2.0 * x))
    return as_bound(up(torch.where(x <= _LOG_2, small, large), LIBRARY + 2), result_dtype(log_a))


def tanh_half(c_max: Tensor) -> Tensor:
    """TV <= tanh(C / 2) (``tv_le_tanh_half``). c_max: [...], >= 0."""
    checks.nonnegative("c_max", c_max, nan=True)
    c = exact(c_max)
    return as_bound(up(torch.tanh(0.5 * c), LIBRARY, c > 0), result_dtype(c_max))


def tanh_rival(c_max: Tensor) -> Tensor:
    """TV <= tanh(C), the published form that is up to twice as loose as :func:`tanh_half`. c_max: [...], >= 0."""
    checks.nonnegative("c_max", c_max, nan=True)
    return as_bound(up(torch.tanh(exact(c_max)), LIBRARY), result_dtype(c_max))


def one_sub_ratio(log_a: Tensor, log_a_neg: Tensor) -> Tensor:
    """TV <= 1 - A- / A (``tv_le_one_sub_ratio``). log_a: [...], >= 0. log_a_neg: [...], <= 0."""
    ratio = _log_ratio(log_a, log_a_neg)
    return as_bound(up(-torch.expm1(-ratio), LIBRARY), result_dtype(log_a, log_a_neg))


def two_sided(log_a: Tensor, log_a_neg: Tensor) -> Tensor:
    """TV <= (A / A- - A- / A) / 2 = sinh(log A - log A-), never below :func:`one_sub_ratio` (``tv_le_two_sided``).

    log_a: [...], >= 0. log_a_neg: [...], <= 0.
    """
    ratio = _log_ratio(log_a, log_a_neg)
    value = 0.5 * (torch.expm1(ratio) - torch.expm1(-ratio))
    return as_bound(up(value, LIBRARY + 2, ratio > 0), result_dtype(log_a, log_a_neg))


def retention(p: Tensor, c: Tensor) -> Tensor:
    """TV <= half the average of max(e^c / A- - 1, 1 - e^-c / A) (``tv_le_retention``).

    p, c: as in ``accumulate``, [..., T] -> [...]. The statement takes the minimum with A e^c - 1 token by token. That
    number is never the smaller one: 1/A- <= A, and 1 - e^-c / A <= A e^c - 1 because x + 1/x >= 2.
    """
    checks.is_float("p", p)
    checks.is_float("c", c)
    acc = accumulate(exact(p), exact(c))
    p64, c64 = broadcast(exact(p), exact(c))
    above = up(c64 - acc.log_a_neg[..., None], 1)
    below = up(c64 + acc.log_a[..., None], 1)
    terms = torch.maximum(weighted_expm1(p64, above), p64 * -torch.expm1(-below))
    units = EXPM1_UNITS + 2 * depth(p.shape[-1]) + 1
    alive = ((p64 > 0) & (below > 0)).any(-1)
    value = up(0.5 * pairwise_sum(terms) / pairwise_sum(p64), units, alive)
    return as_bound(torch.where(torch.isinf(c64).any(-1), 1.0, value), result_dtype(p, c))


def meter(log_a: Tensor, c_max: Tensor | None = None) -> Tensor:
    """What is reported: the smaller of :func:`sharp` and, if C is given, :func:`tanh_half` (``meter_sound``).

    log_a, c_max: [...], >= 0. NaN in either makes the result 1.
    """
    value = sharp(log_a)
    if c_max is None:
        return value
    value, other = broadcast(value, tanh_half(c_max))
    claims = ~(torch.isnan(log_a) | torch.isnan(c_max))
    dtype = result_dtype(log_a, c_max)
    return torch.where(claims, torch.minimum(value.to(dtype), other.to(dtype)), 1.0)


def dispersion_unsound(p: Tensor, c: Tensor) -> Tensor:
    """e^(2C) (E|c - c_bar| + c_bar (e^C - 1)) / 2, which is NOT a bound (``dispersion_bound_unsound``): a regression
    guard.

    p, c: as in ``accumulate``. Plain rounding, no clamp; nothing in the package may rest on it.
    """
    checks.distribution("p", p)
    checks.nonnegative("c", c)
    checks.same_tokens("p and c", p, c)
    p64, c64 = broadcast(exact(p), exact(c))
    mean = pairwise_sum(p64 * c64)
    spread = pairwise_sum(p64 * (c64 - mean[..., None]).abs())
    top = c64.amax(-1)
    return (0.5 * torch.exp(2.0 * top) * (spread + mean * torch.expm1(top))).to(result_dtype(p, c))
