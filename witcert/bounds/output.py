"""From attention to the attention output."""

from __future__ import annotations

import torch
from torch import Tensor

from witcert.bounds import checks
from witcert.bounds.rounding import broadcast, depth, exact, pairwise_sum, result_dtype, round_up, up


def output_bound(tv: Tensor, v_radius: Tensor, p: Tensor, rho: Tensor) -> Tensor:
    """|y - y_hat| <= 2 TV max_t |v_t - v0| + sum p_t rho_t (``output_bound``), rounded up, in the units of the values.

    tv: bound on the total variation [...]. v_radius: max over tokens of |v_t - v0| for any fixed v0 [...].
    p: served attention [..., T]. rho: norms of the value residuals, or more, [..., T]; +inf: no claim.
    """
    checks.nonnegative("tv", tv)
    checks.nonnegative("v_radius", v_radius)
    checks.distribution("p", p)
    checks.nonnegative("rho", rho)
    checks.same_tokens("p and rho", p, rho)
    p64, rho64 = broadcast(exact(p), exact(rho))
    tv64, radius = exact(tv).clamp_max(1.0), exact(v_radius)
    steps = depth(p.shape[-1])
    value_term = up(pairwise_sum(p64 * rho64) / pairwise_sum(p64), 2 + 2 * steps, ((p64 > 0) & (rho64 > 0)).any(-1))
    value_term = torch.where(torch.isinf(rho64).any(-1), torch.inf, value_term)
    key_term = up(2.0 * tv64 * radius, 1, (tv64 > 0) & (radius > 0))
    key_term = torch.where(torch.isinf(radius), torch.inf, key_term)
    return round_up(up(key_term + value_term, 1), result_dtype(tv, v_radius, p, rho))
