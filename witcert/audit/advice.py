"""From an audit's numbers to decisions: outlier pairs, layers to keep exact, a threshold, flags for an engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from witcert.audit.job import Audit, Variant
from witcert.guarantees import Measured
from witcert.observe.summary import quantiles

__all__ = ["Advice", "advise", "statement", "tau_table", "to_json", "traffic_bytes", "vllm_flag"]


@dataclass(frozen=True, eq=False)
class Advice:
    """What to do, and why.

    Parameters
    ----------
    pairs : outlier pairs to keep: the fewest whose traffic at tau fits the budget, else those with the least traffic.
    exact_layers : layers to keep exact at these pairs so that what the others page in at tau fits the budget.
    traffic, traffic_left : bytes of the worst audited text at tau, before and after these layers are exact.
    tau : the smallest threshold of the grid whose traffic fits with no layer exact; None if none does.
    zero_tau : the largest meter: at this threshold nothing is ever paged in.
    """

    variant: Variant
    pairs: int
    exact_layers: list[int]
    traffic: int
    traffic_left: int
    tau: float | None
    zero_tau: float
    coverage_left: float


def traffic_bytes(audit: Audit, variant: Variant, at: int) -> Tensor:
    """Bytes that a request pages in at the at-th threshold, by text and layer, int64 [texts, L]."""
    return (variant.pages[:, at].sum(-1) * audit.page_bytes).long()


def _worst(audit: Audit, variant: Variant, at: int) -> int:
    return int(traffic_bytes(audit, variant, at).sum(-1).max())


def _layers_to_keep(traffic: Tensor, budget: int) -> list[int]:
    """Fewest layers, in decreasing traffic (the worst text's), without which every text stays within the budget."""
    order = traffic.amax(0).argsort(dim=-1, descending=True, stable=True).tolist()
    left, chosen = traffic.clone(), []
    for layer in order:
        if int(left.sum(-1).max()) <= budget:
            break
        left[:, layer] = 0
        chosen.append(layer)
    return sorted(chosen)


def advise(audit: Audit) -> Advice:
    """Decide from the numbers of an audit; ties go to the smaller choice."""
    taus = audit.config.taus
    at = taus.index(audit.config.tau)
    fits = [v for v in audit.variants if _worst(audit, v, at) <= audit.budget]
    variant = min(fits, key=lambda v: v.pairs) if fits else min(audit.variants, key=lambda v: (_worst(audit, v, at), v.pairs))
    traffic = traffic_bytes(audit, variant, at)
    exact = _layers_to_keep(traffic, audit.budget)
    rest = [i for i in range(traffic.shape[1]) if i not in exact]
    allowed = [t for i, t in enumerate(taus) if _worst(audit, variant, i) <= audit.budget]
    covered = variant.meter <= audit.config.tau
    return Advice(
        variant=variant,
        pairs=variant.pairs,
        exact_layers=exact,
        traffic=int(traffic.sum(-1).max()),
        traffic_left=int(traffic[:, rest].sum(-1).max()) if rest else 0,
        tau=min(allowed) if allowed else None,
        zero_tau=float(variant.meter.nan_to_num(nan=1.0).max()),
        coverage_left=float(covered[rest].double().mean()) if rest else 1.0,
    )


def vllm_flag(layers: list[int]) -> str | None:
    """The option by which vLLM keeps these layers' cache unquantized: separate words; None where there is no such layer."""
    return "--kv-cache-dtype-skip-layers " + " ".join(map(str, layers)) if layers else None


def statement(audit: Audit, advice: Advice) -> str:
    """What the advice rests on, in words."""
    about, c = audit.about, audit.config
    texts = ", ".join(f"{n} ({t['tokens']} tokens, {t['queries']} queries)" for n, t in about["texts"].items())
    choice = (
        f"outlier pairs were chosen on {audit.calibrated_on}"
        + ("" if audit.held_out else ", the audited text itself, so numbers with outliers are optimistic")
        if len(audit.variants) > 1
        else "no outlier pairs were tried"
    )
    engine = (
        "the flag speaks of vLLM's fp8 cache with scale 1"
        if c.scheme == "fp8_e4m3_raw"
        else f"the flag names layers that {c.scheme} damages; vLLM's own cache format is another quantizer"
    )
    return (
        f"Measured on {texts} of {about['model']} with {c.scheme} and the {c.guarantee} reading at tau {c.tau:g}; {choice}; "
        f"traffic counts each page once per request, at the recorded queries only (a decode step at every position pages in "
        f"more); {engine}. Nothing is promised about other texts."
    )


def to_json(audit: Audit, advice: Advice) -> dict[str, Any]:
    """Plain data: what was measured, by layer and head, and the advice."""
    c, v = audit.config, advice.variant
    at = c.taus.index(c.tau)
    by_text = traffic_bytes(audit, v, at)
    layers = [
        {
            "layer": i,
            "keep_exact": i in advice.exact_layers,
            "coverage": float((v.meter[i] <= c.tau).double().mean()),
            "coverage_by_head": (v.meter[i] <= c.tau).double().mean(-1).tolist(),
            "meter": {"guarantee": c.guarantee, **quantiles(v.meter[i])},
            "tv": {"guarantee": Measured.label, **quantiles(v.tv[i])},
            "traffic_bytes": int(by_text[:, i].max()),
            "outlier_channels": None if v.channels is None else v.channels[i].tolist(),
        }
        for i in range(v.meter.shape[0])
    ]
    return {
        "format": "witcert-audit/1",
        "about": audit.about,
        "scheme": c.scheme,
        "guarantee": c.guarantee,
        "delta": c.delta_req,
        "tau": c.tau,
        "budget_bytes": audit.budget,
        "cache_bytes": audit.cache_bytes.tolist(),
        "violations": audit.violations,
        "variants": [
            {
                "pairs": x.pairs,
                "bytes_per_token": x.bytes_per_token,
                "coverage": float((x.meter <= c.tau).double().mean()),
                "largest_meter": float(x.meter.nan_to_num(nan=1.0).max()),
                "traffic_bytes": {f"{t:g}": _worst(audit, x, j) for j, t in enumerate(c.taus)},
            }
            for x in audit.variants
        ],
        "layers": layers,
        "advice": {
            "guarantee": Measured.label,
            "pairs": advice.pairs,
            "exact_layers": advice.exact_layers,
            "traffic_bytes": advice.traffic,
            "traffic_bytes_left": advice.traffic_left,
            "coverage_left": advice.coverage_left,
            "tau_for_budget": advice.tau,
            "tau_without_traffic": advice.zero_tau,
            "vllm": vllm_flag(advice.exact_layers),
            "statement": statement(audit, advice),
        },
    }


def tau_table(audit: Audit, variant: Variant) -> list[tuple[float, float, int]]:
    """For every threshold: coverage, and the traffic in bytes of the worst text."""
    flat = variant.meter.flatten()
    return [
        (t, float((flat <= t).double().mean()), _worst(audit, variant, i)) for i, t in enumerate(audit.config.taus)
    ]
