"""One layer quantized at a time, and all of them: which layers hurt the output, and does the meter know?"""

from __future__ import annotations

from typing import Any

import torch

from experiments import style
from experiments._model import damage, forward, serve, spearman
from experiments._offline import metered
from experiments.common import Setting
from witcert import schemes as registry

NAME = "pollution"
ORDER = 50
QUESTION = "Which layers must stay exact, and does a layer's meter say so without running the model?"
METHOD = (
    "The model reads each text with one layer's cache served by the scheme and all others exact, for every layer, "
    "then with all layers served (teacher forcing). For every layer the mean KL of the next-token distribution "
    "stands beside the layer's own meters and true total variations from the recorded exact queries. Their rank "
    "correlation over layers says how far the meter orders layers by harm."
)
LIMITS = (
    "The KL of one polluted layer says nothing about pairs of layers; the last rows show how far the sum over "
    "layers is from the damage of all at once. The meter bounds the attention of a cell, not the effect of that "
    "cell on the output, so that a layer with large meters can be harmless. Without a model only the meters are "
    "there."
)
OPTIONS: dict[str, Any] = {"schemes": ["rtn_int8", "rtn_int4"]}


def run(setting: Setting) -> dict[str, Any]:
    """Every layer alone and all layers, for every scheme."""
    names = ["rtn_int4"] if setting.quick else setting.option("schemes", OPTIONS["schemes"])
    out: dict[str, Any] = {"schemes": [], "tau": setting.tau}
    violations = 0
    exact = [forward(setting, e) for e in setting.encoded] if setting.has_model else []
    for name in names:
        scheme = registry.get(name)
        runs = metered(setting, scheme)
        violations += sum(int(r.violations(m).sum()) for r in runs for m in r.meters if m.label == "proved")
        meter = torch.cat([torch.as_tensor(r.meters[0].value) for r in runs], -1).flatten(1)  # [L, cells]
        tv = torch.cat([r.tv for r in runs], -1).flatten(1)
        rows: list[dict[str, Any]] = [
            {"layer": i, "meter_mean": float(meter[i].mean()), "meter_p95": float(meter[i].quantile(0.95)),
             "coverage": float((meter[i] <= setting.tau).double().mean()), "tv_mean": float(tv[i].mean()),
             "tv_max": float(tv[i].max()), "kl": None}
            for i in range(len(meter))
        ]  # fmt: skip
        whole = None
        if setting.has_model:
            for i, row in enumerate(rows):
                setting.say(f"{name}: layer {i} alone")
                row["kl"] = _mean_kl(setting, exact, serve(scheme, setting.seed, {i}))
            whole = _mean_kl(setting, exact, serve(scheme, setting.seed))
        kl = torch.tensor([r["kl"] for r in rows]) if whole is not None else None
        out["schemes"].append({
            "scheme": name, "layers": rows, "kl_all": whole, "kl_sum": None if kl is None else float(kl.sum()),
            "rank_correlation": None if kl is None else {
                "meter_mean": spearman(meter.mean(1), kl), "tv_mean": spearman(tv.mean(1), kl)},
        })  # fmt: skip
    return out | {"violations": violations}


def _mean_kl(setting: Setting, exact: list[torch.Tensor], hook: Any) -> float:
    """Mean KL over the tokens of all texts."""
    found = [damage(x, forward(setting, e, hook), e) for e, x in zip(setting.encoded, exact, strict=True)]
    return sum(f.kl * f.tokens for f in found) / sum(f.tokens for f in found)


def describe(result: dict[str, Any]) -> str:
    """The worst layers, the sum and all layers at once."""
    parts = []
    for s in result["schemes"]:
        known = s["kl_all"] is not None
        ranked = sorted(s["layers"], key=lambda r: -(r["kl"] if known else r["meter_mean"]))
        rows = [
            [r["layer"], style.number(r["kl"]), style.bound(r["meter_mean"]), style.bound(r["meter_p95"]),
             style.percent(r["coverage"]), style.number(r["tv_mean"]), style.number(r["tv_max"])]
            for r in ranked[:6]
        ]  # fmt: skip
        if known:
            rows += [["sum of all layers alone", style.number(s["kl_sum"]), *[""] * 5],
                     ["all layers at once", style.number(s["kl_all"]), *[""] * 5]]  # fmt: skip
        heads = ["layer", "KL", "meter, mean [proved]", "meter, 95 %", f"coverage TV ≤ {result['tau']:g}", "true TV, mean",
                 "true TV, max"]  # fmt: skip
        text = f"**{s['scheme']}**, the six layers with the largest {'KL' if known else 'meters'} of {len(s['layers'])}:\n\n"
        text += style.table(heads, rows)
        if known:
            c = s["rank_correlation"]
            text += (
                "\n\nRank correlation with a layer's KL over layers [measured]: mean meter "
                f"{style.number(c['meter_mean'])}, mean true total variation {style.number(c['tv_mean'])}."
            )
        parts.append(text)
    return "\n\n".join(parts)


def draw(result: dict[str, Any]) -> Any:
    """KL of each polluted layer and the layer's mean meter, one panel a scheme."""
    figure, axes = style.axes(1, len(result["schemes"]), 8.0, 3.2)
    for ax, s in zip(axes, result["schemes"], strict=True):
        x = [r["layer"] for r in s["layers"]]
        meter, tv = ([r[k] for r in s["layers"]] for k in ("meter_mean", "tv_mean"))
        ax.plot(x, meter, "o-", ms=3, color="#1b6ca8", label="mean meter [proved]")
        ax.plot(x, tv, "s:", ms=3, color="#3a8f5c", label="mean true TV [measured]")
        if s["kl_all"] is not None:
            kl = style.numbers([r["kl"] for r in s["layers"]])
            ax.bar(x, kl, color="#d9822b", alpha=0.75, label="KL of this layer [measured]")
            ax.axhline(s["kl_all"], color="#b3261e", lw=1.1, ls="--", label="KL, all layers")
            ax.axhline(s["kl_sum"], color=style.GREY, lw=1.1, ls=":", label="sum of the layers")
        ax.set(yscale="log", xlabel="layer", ylabel="nats, total variation", title=s["scheme"])
        ax.set_xticks(x[:: max(1, len(x) // 10)])
        ax.legend(fontsize=7.5, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure
