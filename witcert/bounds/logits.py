"""Bounds c_t on the logit errors |q . r_t|, from which the accumulators are built; every one is rounded up.

q: query [..., d]. r: key residuals [..., T, d]. step: quantization step of each stored channel [..., T, d], >= 0, in
the units of the key; 0 for a channel stored exactly. scale: the softmax scale, by which every bound is multiplied.
Result: [..., T], in natural-log units, float64 if any input is float64, else float32. Half-precision inputs are taken
exactly.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from witcert.bounds import checks
from witcert.bounds.rounding import LIBRARY, broadcast, depth, exact, pairwise_sum, result_dtype, round_up, up
from witcert.errors import InputError


def band_bound(q_norms: Tensor, w: Tensor, scale: float) -> Tensor:
    """c_t = scale sum_b |q_b| w_tb (``band_cauchy_schwarz``, ``witness_mono``).

    q_norms: band norms of the query, or more, [..., B]. w: band norms of the residuals, or more, [..., T, B]; +inf:
    no claim.
    """
    scale = checks.positive_scale(scale)
    checks.nonnegative("q_norms", q_norms, narrow=True)
    checks.nonnegative("w", w, narrow=True)
    checks.same_tokens("q_norms and w", q_norms[..., None, :], w)
    q64, w64 = broadcast(exact(q_norms)[..., None, :], exact(w))
    value = up(scale * pairwise_sum(q64 * w64), 2 + depth(w.shape[-1]), ((q64 > 0) & (w64 > 0)).any(-1))
    lost = torch.isinf(q64).any(-1) | torch.isinf(w64).any(-1)
    return round_up(torch.where(lost, torch.inf, value), result_dtype(q_norms, w))


def _query_and_step(q: Tensor, step: Tensor, scale: float) -> tuple[Tensor, Tensor, float]:
    checks.finite("q", q, narrow=True)
    checks.nonnegative("step", step, infinite=False, narrow=True)
    checks.same_tokens("q and step", q[..., None, :], step)
    return exact(q).abs(), exact(step), checks.positive_scale(scale)


def half_step(q: Tensor, step: Tensor, scale: float) -> Tensor:
    """c_t = scale sum_c |q_c| s_tc / 2, valid when |r_tc| <= s_tc / 2 (``half_step``). No storage, any query."""
    q64, s64, scale = _query_and_step(q, step, scale)
    return round_up(_weighted_steps(q64, s64, 0.5 * scale), result_dtype(q, step))


def _contract(q: Tensor, step: Tensor) -> Tensor:
    """sum_c q_c s_tc of nonnegative numbers: [..., d], [..., T, d] -> [..., T]; d units in any order of summation.

    As a contraction, so that batch dimensions of size 1 (many queries against one cache) are never expanded.
    """
    return torch.einsum("...d,...td->...t", q, step)


def _alive(q: Tensor, step: Tensor) -> Tensor:
    """Where some product q_c s_tc is positive in the reals."""
    return _contract((q > 0).to(torch.float64), (step > 0).to(torch.float64)) > 0


def _weighted_steps(q: Tensor, step: Tensor, factor: float) -> Tensor:
    """Upper bound on factor * sum_c |q_c| s_tc, the factor within one rounding."""
    return up(factor * _contract(q, step), 3 + q.shape[-1], _alive(q, step))


def _unit(x: Tensor) -> tuple[Tensor, float]:
    """x divided by a power of two (exactly) so that its entries are below 2, and that power."""
    largest = float(x.max()) if x.numel() else 0.0
    power = 2.0 ** min(math.frexp(largest)[1], 1023) if largest > 0 else 1.0
    return x / power, power


def _energy(q: Tensor, step: Tensor) -> Tensor:
    """Upper bound on the root of sum_c q_c^2 s_tc^2; squares of numbers below 2 lose less than ``TINY``."""
    alive = _alive(q, step)
    (q, a), (step, b) = _unit(q), _unit(step)
    squares = up(_contract(q**2, step**2), 4 + q.shape[-1], alive)
    return up(up(torch.sqrt(squares), 1) * a * b, 0, alive)


def scaled_cs(q: Tensor, r: Tensor, step: Tensor, scale: float) -> Tensor:
    """c_t = scale sqrt(sum q_c^2 s_tc^2) sqrt(sum (r_tc / s_tc)^2) (``scaled_cs``).

    A channel with step 0 and residual 0 contributes nothing; with step 0 and a residual that is not 0, c_t = +inf.
    """
    q64, s64, scale = _query_and_step(q, step, scale)
    checks.finite("r", r, narrow=True)
    if r.shape[-2:] != step.shape[-2:]:
        shapes = f"r has shape {list(r.shape)}, step {list(step.shape)}"
        raise InputError(f"{shapes}; the last two dimensions must be the same")
    r64 = exact(r).abs()
    ratio = torch.where(r64 > 0, r64 / s64, 0.0)
    moved = (r64 > 0).any(-1)
    residual = up(torch.sqrt(up(pairwise_sum(ratio**2), 3 + depth(r.shape[-1]), moved)), 1)
    energy = _energy(q64, s64)
    alive = moved & (energy > 0)
    value = torch.where(alive, up(scale * (energy * residual), 2, alive), 0.0)
    value = torch.where(torch.isinf(residual), torch.inf, value)
    return round_up(value, result_dtype(q, r, step))


def _dither_bias(q: Tensor, step: Tensor, scale: float, levels: int) -> Tensor:
    """scale sum |q_c| s_tc / (2 n): what the n-level dither's grid may be off centre (``grid_dither_law``)."""
    return _weighted_steps(q, step, 0.5 * scale / checks.at_least_one("levels", levels))


def _radius(q: Tensor, step: Tensor, scale: float, factor: float, levels: int) -> Tensor:
    """factor * sqrt(scale^2 sum q^2 s^2 / 12) + bias; ``factor`` is an upper bound."""
    spread = up(_energy(q, step) * (scale * factor / math.sqrt(12.0)), 5)
    return up(spread + _dither_bias(q, step, scale, levels), 1)


def _above(x: float, units: int) -> float:
    """Scalar counterpart of ``up``."""
    return x * (1.0 + (units // 2 + 2) * 2.0**-52)


def subgaussian_radius(
    q: Tensor, step: Tensor, scale: float, *, tokens: int, delta_loc: float, levels: int = 256
) -> Tensor:
    """u_t = sqrt(2 V_t log(2 S / delta_loc)) + bias, V_t = scale^2 sum q^2 s^2 / 12 (``two_sided_tail``,
    ``request_union``).

    Outside a share delta_loc of the dither's outcomes, all S = ``tokens`` errors of the cell are within it, for a
    query that does not depend on the dither. levels: n of the n-level dither. bias = scale sum |q| s / (2 n).
    """
    q64, s64, scale = _query_and_step(q, step, scale)
    tokens = checks.at_least_one("tokens", tokens)
    delta_loc = checks.probability("delta_loc", delta_loc)
    # log 2S and -log delta are both positive: no cancellation.
    log_term = _above(math.log(2 * tokens) - math.log(delta_loc), LIBRARY + 1)
    factor = _above(math.sqrt(2.0 * log_term), 1)
    return round_up(_radius(q64, s64, scale, factor, levels), result_dtype(q, step))


def adaptive_radius(q: Tensor, step: Tensor, scale: float, *, delta: float, levels: int = 256) -> Tensor:
    """u_t = kappa sqrt(V_t) + bias, kappa^2 = min(d + sqrt(9 d log(1/delta) / 2), 3 d), for every query at once.

    Theorem ``adaptive_radius``: outside a share ``delta`` of the dither's outcomes, one event per stored token and KV
    head. delta = 0 gives kappa^2 = 3 d with no probability at all (``adaptive_radius_det``). V_t, bias, levels: as in
    :func:`subgaussian_radius`.
    """
    q64, s64, scale = _query_and_step(q, step, scale)
    delta = checks.probability("delta", delta, zero=True)
    d = q.shape[-1]
    kappa_sq = 3.0 * d
    if delta > 0.0:
        kappa_sq = min(kappa_sq, _above(d + math.sqrt(4.5 * d * _above(-math.log(delta), LIBRARY)), 5))
    return round_up(_radius(q64, s64, scale, _above(math.sqrt(kappa_sq), 1), levels), result_dtype(q, step))
