"""The meter in PyTorch: labelled upper bounds on total variation for one attention layer under any scheme.

The exact side of a layer is prepared once (:class:`ExactAttention`), then metered for each scheme. All arithmetic is in
float64; what it rounds is paid for inside the bound, so that a meter is never below the real-number quantity:

* a logit computed in float64 errs by at most GAMMA * scale * sum |q_c k_c| <= GAMMA * scale * |q| |k| (``arith_fold``; here
  it is added beside the witness, whose sixteen bits would round so small a number up to 2^-24), and
* the softmax, its sums and the soft cap by at most a factor within 1 +- SOFTMAX of each probability, which is the same as
  that much logit error (``ratio_envelope``).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from witcert import bounds
from witcert.budget import Budget
from witcert.errors import InputError
from witcert.guarantees import Labelled, Proved, ProvedNonadaptive
from witcert.schemes import Served
from witcert.witness import Bands, query_norms, token_bound, witness

# Dot products of up to 512 terms: 2 (512 + 4) 2^-53 covers both logits, exact and served, at any summation order.
GAMMA = 2.0**-42
# exp, sums of up to 2^17 terms, division, tanh: relative error of one computed probability, both distributions.
SOFTMAX = 2.0**-34


@dataclass(frozen=True)
class TokenBounds:
    """Per-token logit bounds [Hkv, G, Q, T] of one scheme, by guarantee; each holds for every token at once."""

    proved: Tensor
    proved_delta: Tensor | None = None
    nonadaptive: Tensor | None = None
    band: Tensor | None = None
    half: Tensor | None = None


@dataclass(frozen=True)
class Cells:
    """What one scheme does to the cells [Hq, Q] of a layer: the truth and the meters that bound it.

    tv: true total variation, float64. meters: by guarantee. eform, tanh_rival: the published forms on the same
    deterministic bounds, for comparison. c: the deterministic per-token bound, eps the true logit error, p_tilde the
    served distribution (with a last column for the sink where the model has one), all [Hkv, G, Q, T(+1)].
    """

    tv: Tensor
    meters: list[Labelled]
    eform: Tensor
    tanh_rival: Tensor
    c: Tensor
    eps: Tensor
    p_tilde: Tensor


class ExactAttention:
    """The exact side of one layer: post-RoPE queries against exact keys, in float64.

    q [Hq, Q, d], k [Hkv, T, d]; positions [Q] of the queries, first [Q] the first visible key; scale, softcap, sinks [Hq] as
    the model uses them. Raises InputError when shapes do not fit.
    """

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        *,
        scale: float,
        positions: Tensor,
        first: Tensor | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
        bands: Bands | None = None,
    ) -> None:
        hq, n_q, d = q.shape
        hkv, tokens, dk = k.shape
        if dk != d or hq % hkv:
            raise InputError(f"q {tuple(q.shape)} and k {tuple(k.shape)} do not form grouped-query attention")
        if d > 512 or tokens > 2**17:
            raise InputError(
                f"head_dim={d}, tokens={tokens}: the float64 error budget covers head_dim <= 512 and 131072 tokens"
            )
        if not scale > 0:
            raise InputError(f"scale={scale!r} must be positive")
        if softcap is not None and not softcap > 0:
            raise InputError(f"softcap={softcap!r} must be positive")
        self.scale, self.softcap = scale, softcap
        self.bands = bands or Bands(d, bands=min(16, d // 2))
        self.k = k.double()
        self.q = q.double().reshape(hkv, hq // hkv, n_q, d)
        cols = torch.arange(tokens, device=q.device)
        start = torch.zeros_like(positions) if first is None else first.to(positions)
        self.visible = (cols <= positions[:, None]) & (cols >= start[:, None])  # [Q, T]
        self.sinks = None if sinks is None else sinks.double().reshape(hkv, hq // hkv, 1, 1).expand(-1, -1, n_q, 1)
        self.q_norms = query_norms(self.q, self.bands)  # [Hkv, G, Q, B]
        self.raw = self._dot(self.k)

    def _dot(self, k: Tensor) -> Tensor:
        return self.q @ k[:, None].transpose(-1, -2) * self.scale  # [Hkv, G, Q, T]

    def _cap(self, raw: Tensor) -> Tensor:
        return raw if self.softcap is None else self.softcap * torch.tanh(raw / self.softcap)

    def _with_sink(self, x: Tensor, sink: Tensor | float) -> Tensor:
        """Append the sink's column, where the model has one; the virtual token's logit has no error."""
        if self.sinks is None:
            return x
        column = sink if isinstance(sink, Tensor) else torch.full_like(x[..., :1], sink)
        return torch.cat([x, column], dim=-1)

    def _softmax(self, raw: Tensor) -> Tensor:
        logits = self._cap(raw).masked_fill(~self.visible, float("-inf"))
        return torch.softmax(self._with_sink(logits, 0.0 if self.sinks is None else self.sinks), dim=-1)

    def token_bounds(self, served: Served, budget: Budget) -> TokenBounds:
        """Every per-token bound that the served keys allow; +inf where a key is not finite."""
        k_hat = served.x_hat.double()
        norms = self.q.norm(dim=-1)[..., None] * k_hat.norm(dim=-1)[:, None, None]  # [Hkv, G, Q, T]
        # a key that is not finite (NaN compares false) allows no claim
        norms = torch.where(norms < torch.inf, norms, torch.inf)
        arithmetic = norms * (GAMMA * self.scale * (1 + 2.0**-30)) + SOFTMAX
        w = witness(self.k, k_hat, self.bands)  # [Hkv, T, B]
        band = token_bound(self.q_norms, w[:, None], self.scale) + arithmetic
        if served.step is None:
            return TokenBounds(band, band=band)
        step = served.step.double()
        unclaimed = ~torch.isfinite(step).all(-1)[:, None, None]  # [Hkv, 1, 1, T]: the scheme promises nothing there
        s = torch.where(torch.isfinite(step), step, 0.0)[:, None, None]  # [Hkv, 1, 1, T, d]
        half = (bounds.half_step(self.q, s, self.scale) + arithmetic).masked_fill(unclaimed, torch.inf)
        proved = torch.minimum(band, half)
        if served.dither_levels is None:
            return TokenBounds(proved, band=band, half=half)
        tokens = self.k.shape[1]
        if served.excess is not None:  # what rounding adds to the ideal law of the dither
            excess = served.excess.double().nan_to_num(posinf=0.0)[:, None, None]  # infinite only where step is
            arithmetic = arithmetic + bounds.half_step(self.q, 2 * excess, self.scale)
        arithmetic = arithmetic.masked_fill(unclaimed, torch.inf)
        u = bounds.subgaussian_radius(
            self.q, s, self.scale, tokens=tokens, delta_loc=budget.delta_loc, levels=served.dither_levels
        )
        v = bounds.adaptive_radius(
            self.q, s, self.scale, delta=budget.delta_adaptive(tokens), levels=served.dither_levels
        )
        return TokenBounds(
            proved, torch.minimum(proved, v + arithmetic), torch.minimum(proved, u + arithmetic), band, half
        )

    def _bounded(self, p_tilde: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(c, log A, C) for one set of per-token bounds, tokens out of sight left out."""
        c = self._with_sink(c.masked_fill(~self.visible, 0.0), SOFTMAX)
        # a probability that float64 rounds to 0 is not 0, and its exp(c) may be anything: take the least normal number
        seen = self._with_sink(self.visible.expand_as(p_tilde[..., : self.visible.shape[-1]]).double(), 1.0) > 0
        p = torch.where(seen, p_tilde.clamp_min(torch.finfo(torch.float64).tiny), 0.0)
        return c, bounds.log_accumulator(p, c), c.amax(-1)

    def true_tv(self, raw_served: Tensor, residual_logits: Tensor, p_tilde: Tensor) -> tuple[Tensor, Tensor]:
        """True total variation [Hkv, G, Q] and logit errors, relative accuracy kept when both are tiny."""
        eps = residual_logits if self.softcap is None else self._cap(raw_served) - self._cap(self.raw)
        eps = self._with_sink(eps.masked_fill(~self.visible, 0.0), 0.0)
        log_z = torch.log1p((p_tilde * torch.expm1(-eps.clamp(-1, 1))).sum(-1, keepdim=True))
        near = 0.5 * (p_tilde * torch.expm1(-eps.clamp(-1, 1) - log_z).abs()).sum(-1)
        far = bounds.total_variation(self._softmax(self.raw), p_tilde)
        return torch.where(eps.abs().amax(-1) < 1, near, far), eps

    def cells(self, served: Served, budget: Budget) -> Cells:
        """Meter every (query head, query) of the layer under one scheme."""
        if served.x_hat.shape != self.k.shape:
            raise InputError(f"served keys have shape {tuple(served.x_hat.shape)}, exact ones {tuple(self.k.shape)}")
        k_hat = served.x_hat.double()
        finite = torch.isfinite(k_hat).all(-1)  # [Hkv, T]
        safe = torch.where(finite[..., None], k_hat, self.k)
        raw = self._dot(safe)
        p_tilde = self._softmax(raw)
        tv, eps = self.true_tv(raw, self._dot(safe - self.k), p_tilde)
        # a key that is not finite makes the served attention undefined: nothing is claimed, the distance counts as 1
        broken = (~finite[:, None, None] & self.visible).any(-1).expand_as(tv)
        tv = torch.where(broken, torch.ones_like(tv), tv)
        b = self.token_bounds(served, budget)
        c, log_a, c_max = self._bounded(p_tilde, b.proved)
        meters: list[Labelled] = [Proved(self._reported(broken, log_a, c_max), "meter_sound")]
        if b.proved_delta is not None and b.nonadaptive is not None:
            adaptive = self._bounded(p_tilde, b.proved_delta)[1:]
            nonadaptive = self._bounded(p_tilde, b.nonadaptive)[1:]
            meters.append(Proved(self._reported(broken, *adaptive), "tierB_adaptive_sound", budget.delta_req))
            meters.append(
                ProvedNonadaptive(self._reported(broken, *nonadaptive), "tierB_request_sound", budget.delta_req)
            )
        return Cells(
            tv.flatten(0, 1),
            meters,
            bounds.eform(log_a).flatten(0, 1),
            bounds.tanh_rival(c_max).flatten(0, 1),
            c,
            eps,
            p_tilde,
        )

    @staticmethod
    def _reported(broken: Tensor, log_a: Tensor, c_max: Tensor) -> Tensor:
        """The meter [Hq, Q]; 1 where a visible key is not finite."""
        return bounds.meter(log_a, c_max).masked_fill(broken, 1.0).flatten(0, 1)
