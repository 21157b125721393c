"""What each scheme does to the model's own next-token distribution, beside what the meter says."""

from __future__ import annotations

from typing import Any

from experiments import style
from experiments._model import Damage, damage, forward, serve
from experiments._offline import metered, quantiles, readings
from experiments.common import Setting
from witcert import schemes as registry

NAME = "output"
ORDER = 60
QUESTION = "How far does each scheme move the next-token distribution, and does the meter order the schemes alike?"
METHOD = (
    "The texts are read once with the exact cache and once with every key and value of every layer served by the "
    "scheme (teacher forcing, one forward). Compared are the two next-token distributions at every position: mean "
    "KL divergence in nats, share of equal most likely tokens, loss of the text's own next token, and recall of the "
    "answers. The meter's median and coverage are those of the recorded queries, whose values are not perturbed."
)
LIMITS = (
    "No bound on KL or on an answer follows from a bound on the attention of single cells: errors of many layers "
    "add up or cancel. A forward over a whole text serves the newest token's own key quantized too, and gives "
    "per-channel schemes the whole text to choose their scales from. One model and three short texts."
)
DEFAULT = [
    "identity", "rtn_int8", "dither_int8", "fp8_e4m3_scaled", "fp8_e4m3_raw", "kvquant_4bit", "rtn_int4", "kivi_2bit",
    "rtn_int2", "sign_1bit",
]  # fmt: skip
OPTIONS: dict[str, Any] = {"schemes": DEFAULT}


def run(setting: Setting) -> dict[str, Any]:
    """Every scheme on every text."""
    names = ["identity", "rtn_int8", "rtn_int4"] if setting.quick else setting.option("schemes", DEFAULT)
    exact = [forward(setting, e) for e in setting.encoded]
    rows, violations = [], 0
    d = setting.recordings[0].layers[0].k.shape[-1]
    for name in names:
        setting.say(name)
        scheme = registry.get(name)
        r = readings(metered(setting, scheme))
        violations += r.violations
        found: dict[str, Damage] = {}
        for e, logits in zip(setting.encoded, exact, strict=True):
            found[e.text.domain] = damage(logits, forward(setting, e, serve(scheme, setting.seed)), e)
        rows.append({
            "scheme": name, "bytes_per_token_head": scheme.bytes_per_token(d, "k") + scheme.bytes_per_token(d, "v"),
            "meter": {"guarantee": "proved", **quantiles(r.value(0))},
            "coverage": float((r.value(0) <= setting.tau).double().mean()), "tv": quantiles(r.tv),
            "output": {domain: {"guarantee": "measured", **vars(x)} for domain, x in found.items()},
        })  # fmt: skip
    own = {e.text.domain: vars(damage(x, x, e)) for e, x in zip(setting.encoded, exact, strict=True)}
    return {"violations": violations, "tau": setting.tau, "rows": rows, "exact": own}


def _recall(output: dict[str, Any]) -> str:
    found = [x["recall"] for x in output.values() if x["recall"] is not None]
    return style.percent(found[0]) if found else "—"


def describe(result: dict[str, Any]) -> str:
    """The table of the README."""
    domains = list(result["exact"])
    heads = ["scheme", "bytes K+V", *(f"KL, {d}" for d in domains), *(f"top-1, {d}" for d in domains), "recall",
             f"loss, {domains[0]}", "meter, median [proved]", f"coverage TV ≤ {result['tau']:g}",
             "true TV, median"]  # fmt: skip
    rows = [
        [r["scheme"], f"{r['bytes_per_token_head']:.0f}", *(style.number(r["output"][d]["kl"]) for d in domains),
         *(style.percent(r["output"][d]["top1"]) for d in domains), _recall(r["output"]),
         f"{r['output'][domains[0]]['nll']:.3f}", style.bound(r["meter"]["p50"]), style.percent(r["coverage"]),
         style.number(r["tv"]["p50"])]
        for r in result["rows"]
    ]  # fmt: skip
    tokens = ", ".join(f"{d} {x['tokens']}" for d, x in result["exact"].items())
    return (
        style.table(heads, rows)
        + f"\n\nTokens compared: {tokens}. With the exact cache: loss on {domains[0]} "
        f"{result['exact'][domains[0]]['nll']:.3f} nats, recall {_recall(result['exact'])}. KL, top-1, recall, "
        "loss and the true total variation are [measured]."
    )


def draw(result: dict[str, Any]) -> Any:
    """KL against the median meter, one mark a scheme and text."""
    figure, axes = style.axes(2, 1, 5.0, 3.8)
    seen: set[str] = set()
    floor = 1e-7
    moved = [r for r in result["rows"] if any(x["kl"] > 0 for x in r["output"].values())]  # an exact cache has no place here
    for r in moved:
        for domain, x in r["output"].items():
            for ax, key in zip(axes, ("meter", "tv"), strict=True):
                ax.scatter(
                    max(r[key]["p50"], floor), max(x["kl"], floor), s=26,
                    color=style.DOMAIN_COLOURS.get(domain, style.GREY),
                    label=domain if domain not in seen and ax is axes[0] else None,
                )  # fmt: skip
            seen.add(domain)
    for ax, key in zip(axes, ("meter", "tv"), strict=True):
        last = 0.0
        for r in sorted(moved, key=lambda r: max(x["kl"] for x in r["output"].values())):
            top = max(floor, *(x["kl"] for x in r["output"].values()))
            close = top < 1.6 * last  # of two names beside each other the upper one moves up
            last = top
            ax.annotate(
                r["scheme"], (max(r[key]["p50"], floor), top), fontsize=7, ha="right",
                xytext=(-4, 11 if close else 1), textcoords="offset points",
            )  # fmt: skip
    for ax, what in zip(axes, ("meter, median over cells [proved]", "true total variation, median [measured]"), strict=True):
        ax.set(xscale="log", yscale="log", xlabel=what, ylabel="KL, nats per token [measured]")
    for ax, key in zip(axes, ("meter", "tv"), strict=True):
        least = min([r[key]["p50"] for r in moved if r[key]["p50"] > 0] + [0.1])
        ax.set_xlim(least / 12, 1.8)  # room for the names, which stand to the left of their marks
    axes[0].legend(fontsize=8, loc="upper left")
    return figure
