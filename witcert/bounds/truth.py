"""The quantity that is bounded: total variation, from two distributions or from logit errors."""

from __future__ import annotations

import torch
from torch import Tensor

from witcert.bounds import checks
from witcert.bounds.rounding import LIBRARY, broadcast, depth, down, exact, pairwise_sum, result_dtype, round_down


def total_variation(p: Tensor, p_tilde: Tensor) -> Tensor:
    """TV = sum |p - p_tilde| / 2 of two distributions, rounded to nearest, in [0, 1].

    p, p_tilde: [..., T], each sums to 1. The result inherits the absolute rounding error of its inputs (about 1e-16
    for float64 softmaxes): for the effect of tiny logit errors use :func:`total_variation_of_errors`.
    """
    checks.distribution("p", p)
    checks.distribution("p_tilde", p_tilde)
    checks.same_tokens("p and p_tilde", p, p_tilde)
    difference = (exact(p) - exact(p_tilde)).abs()
    return (0.5 * pairwise_sum(difference)).clamp_max(1.0).to(result_dtype(p, p_tilde))


def total_variation_of_errors(p_tilde: Tensor, errors: Tensor) -> Tensor:
    """The TV that given logit errors cause, rounded DOWN: a bound below this number is wrong, whatever the rounding.

    p_tilde: served attention [..., T]. errors: served minus exact logits [..., T], finite, natural-log units.
    With w = e^-errors, e = w - 1 and Z = sum p_tilde w: TV = sum p_tilde |e - (Z - 1)| / (2 Z).

    Two evaluations, each lowered by its own error; the larger is returned. The first computes e by expm1. Its
    numerator errs by at most (26 + 4L) u sum p_tilde |e|, L = log2 T: 8 per e, 10 + 2L for Z - 1, 2 (2 + L) for
    |difference| <= 2 sum and its sum. The second is the distance of two softmaxes, whose weights err by 754 u each,
    the sum by (2 * 754 + 4 + 3L) u.
    """
    checks.distribution("p_tilde", p_tilde)
    checks.finite("errors", errors)
    checks.same_tokens("p_tilde and errors", p_tilde, errors)
    p, e = broadcast(exact(p_tilde), exact(errors))
    e = e.masked_fill(p == 0, 0.0)
    steps = depth(p.shape[-1])
    unit = 2.0**-53
    total = pairwise_sum(p)

    excess = torch.expm1((-e).clamp(max=600.0))
    z_minus_1 = pairwise_sum(p * excess) / total
    numerator = pairwise_sum(p * (excess - z_minus_1[..., None]).abs())
    allowance = (28 + 4 * steps) * unit * pairwise_sum(p * excess.abs())
    z = pairwise_sum(p * torch.exp((-e).clamp(max=600.0)))
    first = down(0.5 * (numerator - allowance).clamp_min(0.0) / z, 2 * LIBRARY + 2 * steps + 4)
    first = torch.where((e < -600.0).any(-1), 0.0, first)

    log_w = -e - (-e).masked_fill(p == 0, -torch.inf).amax(-1, keepdim=True)
    w = p * torch.exp(log_w.clamp_max(0.0))
    difference = (w / pairwise_sum(w)[..., None] - p / total[..., None]).abs()
    second = down(0.5 * pairwise_sum(difference), steps) - (2 * 754 + 12 + 4 * steps) * unit
    best = torch.maximum(first, second).clamp(0.0, 1.0)
    return round_down(best, result_dtype(p_tilde, errors))
