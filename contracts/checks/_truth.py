"""What a reading is compared with: the real numbers behind stored bits, in float64 intervals and at 50 digits.

*Exact* is the softmax of the real logits of the exact keys, *served* that of the keys which the store stands for, both
with the query's bits; a window hides tokens, a soft cap and a sink act as real functions. The float64 numbers carry
bounds on their own error, u = 2^-53, and every library function is taken to be within 8u (four units in the last place):

* a dot product of d terms, whose residual may have been rounded once, errs by (d + 4) u times the sum of the magnitudes;
* weights within a factor 1 +- rho. Total variation is, for the set S that attains it, the sum over i in S, j not in S of
  w_i w_j (g_i - g_j) / (sum w  sum w g), g = e^-eps, every term of which is >= 0. So it moves by ((1 + rho) / (1 - rho))^2;
* logit errors within e. Exact attention moves by a factor e^(+-2e) at most, total variation by tanh(e/2) <= e/2;
* summation in any order: S u times the sum of the magnitudes.

Two evaluations, by expm1 (relative to the errors) and by two softmaxes (absolute), give two intervals; both hold.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from contracts.checks._stores import Case, served
from witcert import golden
from witcert.golden import mp

__all__ = ["Attention", "Exact", "Interval", "attention", "integer_dots"]

U = 2.0**-53
LIBRARY = 8 * U
FAR = -600.0


@dataclass(frozen=True)
class Interval:
    """Numbers that are certainly within [low, high], float64."""

    low: Tensor
    high: Tensor


@dataclass(frozen=True)
class Exact:
    """One cell at 50 digits: total variation, served attention p and logit errors eps (a sink last), mpmath numbers."""

    tv: Any
    p: list[Any]
    eps: list[Any]
    logits: list[Any]


@dataclass(frozen=True)
class Attention:
    """Every cell [N, Hkv, G] of a case, tokens last (and the sink after them, if there is one).

    logit, eps: served logits and logit errors in natural units, each with a bound on the error of its float64 number;
    alive: which tokens are seen; matters: those whose share of served and of exact attention may exceed e^-600.
    below: logit minus the largest, -inf where not alive; weight: e^below; rho [N, Hkv, G]: its relative error where it
    matters.
    size: scale * sum |q_c k_hat_c|. q, k, k_hat: float64 [N, Hkv, G, d] and [N, Hkv, S, d], 0 where not seen.
    """

    case: Case
    q: Tensor
    k: Tensor
    k_hat: Tensor
    logit: Tensor
    logit_error: Tensor
    eps: Tensor
    eps_error: Tensor
    alive: Tensor
    matters: Tensor
    below: Tensor
    weight: Tensor
    rho: Tensor
    size: Tensor
    tv: Interval

    def __getitem__(self, cell: int) -> Exact:
        """The cell of this flat index at 50 digits."""
        return _exact(self, cell)

    def exact_tv(self, cell: int) -> Any:
        """Total variation of the cell of this flat index at 50 digits."""
        return self[cell].tv

    def place(self, cell: int) -> str:
        """Where a flat index is."""
        n, head = divmod(cell, self.case.q.shape[1])
        return f"sequence {n} of {int(self.case.table.seq_lens[n])} tokens, query head {head}"


def attention(case: Case, k_hat: Tensor | None = None) -> Attention:
    """The truth about every cell of a case; k_hat: the served keys [N, S, Hkv, d], if they are at hand."""
    k_hat = served(case) if k_hat is None else k_hat
    seen = case.visible()
    there = seen[..., None, None]
    bad, good = (torch.where(there, x.double(), 0.0).transpose(1, 2) for x in (k_hat, case.k))  # [N, Hkv, S, d]
    q = case.q.double().reshape(len(case.q), good.shape[1], case.group, -1)
    gamma = (q.shape[-1] + 4) * U * 1.01
    residual = bad - good

    logit, eps = (q @ x.transpose(2, 3) * case.scale for x in (bad, residual))  # [N, Hkv, G, S]
    size, moved = (q.abs() @ x.abs().transpose(2, 3) * case.scale for x in (bad, residual))
    logit_error, eps_error = size * gamma, moved * gamma
    if case.softcap is not None:
        cap = case.softcap
        exact = cap * torch.tanh((logit - eps) / cap)
        capped = cap * torch.tanh(logit / cap)
        # the cap is 1-Lipschitz; quotient, tanh and product are relative
        eps_error = logit_error * 2 + eps_error + 24 * U * (capped.abs() + exact.abs()) + U * logit.abs()
        logit_error = logit_error + 24 * U * capped.abs()
        logit, eps = capped, capped - exact
    alive = seen[:, None, None, :].expand(logit.shape)
    if case.sinks is not None:
        sink = case.sinks.double().view(1, q.shape[1], q.shape[2], 1).expand(*logit.shape[:-1], 1)
        zero = torch.zeros_like(sink)
        logit, logit_error = torch.cat([logit, sink], -1), torch.cat([logit_error, zero], -1)
        eps, eps_error, size = (torch.cat([x, zero], -1) for x in (eps, eps_error, size))
        alive = torch.cat([alive, torch.ones_like(sink, dtype=torch.bool)], -1)
    top, first = logit.masked_fill(~alive, -math.inf).max(-1, keepdim=True)
    below = torch.where(alive, logit - top, -math.inf)
    # only the distance to the largest logit matters
    relative = (logit_error + logit_error.gather(-1, first)).scatter(-1, first, 0.0)
    apart = below + 2 * relative + eps.abs() + eps.gather(-1, first).abs() + 2 * eps_error
    matters = alive & ~(apart < FAR)
    rho = torch.where(matters, torch.expm1(relative + 2 * U * below.abs()) * 1.01 + 2 * LIBRARY, 0.0).amax(-1)
    rho = torch.where(rho < 0.5, rho, math.inf)  # NaN as well
    weight = torch.exp(below)
    tv = _interval(weight, below, rho, eps, torch.where(matters, eps_error, 0.0), alive)
    return Attention(
        case, q, good, bad, logit, logit_error, eps, eps_error, alive, matters, below, weight, rho, size,
        Interval(*(x.flatten() for x in tv)),
    )  # fmt: skip


def _interval(w: Tensor, below: Tensor, rho: Tensor, eps: Tensor, error: Tensor, alive: Tensor) -> tuple[Tensor, Tensor]:
    """Lower and upper bounds on the total variation; see the head of this file."""
    terms = w.shape[-1]
    eps = torch.where(alive, eps, 0.0)
    shift = error.amax(-1)
    some = alive.any(-1)
    total = w.sum(-1).clamp_min(0.5)
    stretch = ((1 + rho) / (1 - rho)).square() * (1 + 4 * (terms + 40) * U)

    x = torch.expm1(-eps.clamp(-300.0, 300.0))
    mean = (w * x).sum(-1) / total
    z = (w * torch.exp(-eps.clamp(-300.0, 300.0))).sum(-1) / total
    gap = (w * (x - mean[..., None]).abs()).sum(-1) / total
    lost = (4 * terms + 60) * U * (w * x.abs()).sum(-1) / total
    near = (eps.abs() < 300.0).all(-1) & torch.isfinite(stretch)
    # what does not matter, and weights that underflow (2^-1022 each, times e^300 at most)
    high = torch.where(near, (gap + lost) / (2 * z) * stretch + shift / 2 + 1e-160, 1.0)
    low = torch.where(near, (gap - lost).clamp_min(0.0) / (2 * z) / stretch - shift / 2 - 1e-160, 0.0)

    exact = torch.where(alive, below - eps, -math.inf)
    p = torch.softmax(exact, -1)
    difference = 0.5 * (p - w / total[..., None]).abs().sum(-1)
    wide = torch.where(alive, (below.abs() + eps.abs()) * 4 * U, 0.0).amax(-1)
    slack = 2 * rho + 2 * (shift + wide) + (4 * terms + 60) * U
    slack = torch.where(slack < 0.25, 1.5 * slack, 1.0)
    # NaN (a store that claims nothing) leaves [0, 1]
    high = torch.minimum(torch.nan_to_num(high, 1.0), torch.nan_to_num(difference + slack, 1.0))
    low = torch.maximum(torch.nan_to_num(low, 0.0), torch.nan_to_num(difference - slack, 0.0))
    moved = some & ((eps != 0) | (error != 0)).any(-1)  # otherwise exact and served are the same, and the distance is 0
    return torch.where(moved, low.clamp(0.0, 1.0), 0.0), torch.where(moved, high.clamp(0.0, 1.0), 0.0)


def _integers(x: Tensor) -> tuple[np.ndarray[Any, Any], int]:
    """Finite float64 numbers as integers times a common power of two."""
    mantissa, exponent = np.frexp(x.detach().cpu().numpy())
    least = int(exponent.min(initial=0)) - 53
    whole = (mantissa * 2.0**53).astype(np.int64).astype(object)
    shift = (exponent.astype(np.int64) - 53 - least).astype(object)
    return whole * 2**shift if whole.size else whole, least


def integer_dots(q: Tensor, keys: Tensor) -> list[Any]:
    """The exact q . k of each row, rounded once to working precision: float64 [d], [T, d] -> T mpmath numbers."""
    left, a = _integers(q)
    right, b = _integers(keys)
    return [mp.ldexp(mp.mpf(int(x)), a + b) for x in right.dot(left)] if len(keys) else []


def _exact(truth: Attention, cell: int) -> Exact:
    case = truth.case
    n, head = divmod(cell, case.q.shape[1])
    h, member = divmod(head, case.group)
    seen = case.visible()[n].to(truth.k.device)
    query, scale = truth.q[n, h, member], mp.mpf(case.scale)
    bad = [x * scale for x in integer_dots(query, truth.k_hat[n, h][seen])]
    good = [x * scale for x in integer_dots(query, truth.k[n, h][seen])]
    if case.softcap is not None:
        cap = mp.mpf(case.softcap)
        bad, good = ([cap * mp.tanh(x / cap) for x in row] for row in (bad, good))
    if case.sinks is not None:
        sink = mp.mpf(float(case.sinks[head]))
        bad, good = [*bad, sink], [*good, sink]
    if not bad:
        return Exact(mp.mpf(0), [], [], [])
    top = max(bad)
    p = golden.normalized([mp.exp(x - top) for x in bad])
    eps = [x - y for x, y in zip(bad, good, strict=True)]
    return Exact(golden.total_variation_of_errors(p, eps), p, eps, bad)
