"""The control: stochastic rounding read as if it were subtractive dither must break the dithered radius, and does."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from experiments import style
from experiments._offline import layers
from experiments.common import Setting
from witcert import bounds, schemes
from witcert.meter import GAMMA, SOFTMAX
from witcert.observe.activations import LayerActivations
from witcert.schemes import Served, Site
from witcert.schemes.grid import GROUP

NAME = "stochastic"
ORDER = 40
QUESTION = "Would the counts notice a dither whose law is not the one that was proved?"
METHOD = (
    "Subtractive dither has sub-Gaussian proxy s²/12 for every key; reading the same codes without subtracting the "
    "dither (stochastic rounding) has up to s²/4, three times as much, reached by keys half-way between two codes. "
    "Each token's logit error is divided by the root of its proxy, and the share outside the radius of probability "
    "δ is compared with δ, for recorded keys and for the same keys moved to the half-way points. The radius with "
    "three times the proxy is drawn beside it."
)
LIMITS = (
    "Shares are over tokens, heads and seeds of these recordings and share their keys, so they are not independent "
    "trials; where a promise holds for every key and query, no average of it can exceed δ by more than chance. The "
    "control says that the count of violations is able to fail, not that it would notice every wrong law."
)
DELTAS = [0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5]
OPTIONS: dict[str, Any] = {"seeds": 1}
CASES = ("dither, recorded keys", "dither, half-way keys", "stochastic, recorded keys", "stochastic, half-way keys")


def half_way(k: Tensor, seed: int) -> Tensor:
    """Keys of the same scales, every channel half-way between two codes; float32, exact."""
    base = schemes.get("dither_int8")(k.float(), Site.contiguous(k.shape[-2], seed=seed))
    assert base.step is not None
    amax = torch.cat([p.abs().amax(-1, keepdim=True).expand_as(p) for p in torch.split(k.float(), GROUP, -1)], -1)
    s = torch.where(base.step > 0, base.step / (1 + 2.0**-14), 1.0).to(torch.float16).float()
    n = (k.float() / s - 0.5).round().clamp(-127, 126)  # the largest stays the largest: 126.5 steps
    return torch.where(amax > 0, (n + 0.5) * s, 0.0)


def _served(case: str, keys: Tensor, i: int, seed: int) -> tuple[Served, Served]:
    """What is served, and the dithered record whose steps it is held against."""
    slots = torch.arange(keys.shape[1], device=keys.device)  # on the device, so that the dither is drawn there
    site = Site(i, "k", slots, torch.zeros_like(slots), seed)
    dithered = schemes.get("dither_int8")(keys, site)
    return (dithered if case.startswith("dither") else schemes.get("stochastic_int8")(keys, site)), dithered


def _one(case: str, layer: LayerActivations, side: Any, i: int, seed: int, tally: dict[str, Any]) -> None:
    """Add one layer's tokens to the tally of a case."""
    device = side.k.device
    keys = layer.k.to(device).float()
    keys = half_way(keys, seed) if "half-way" in case else keys
    served, law = _served(case, keys, i, seed)
    assert law.step is not None
    assert law.excess is not None
    error = served.x_hat.double() - keys.double()  # [Hkv, T, d]
    eps = (side.q @ error[:, None].transpose(-1, -2) * side.scale).abs()  # [Hkv, G, Q, T]
    step = law.step.double()[:, None, None]
    norms = side.q.norm(dim=-1)[..., None] * served.x_hat.double().norm(dim=-1)[:, None, None]
    slack = bounds.half_step(side.q, 2 * law.excess.double()[:, None, None], side.scale) + (
        norms * (GAMMA * side.scale) + SOFTMAX)  # fmt: skip
    proxy = torch.einsum("hgqd,htd->hgqt", side.q.square(), law.step.double().square()) * (side.scale**2 / 12)
    keep = side.visible & (proxy > 0)
    ratio = eps.square() / proxy
    tally["tokens"] += int(keep.sum())
    tally["energy"] += float(ratio[keep].sum())
    tally["largest"] = max(tally["largest"], float(ratio[keep].max()) ** 0.5)
    assert served.step is not None
    deterministic = bounds.half_step(side.q, served.step.double()[:, None, None], side.scale) + slack
    tally["beyond_step"] += int(((eps > deterministic) & side.visible).sum())
    for j, delta in enumerate(DELTAS):
        u = bounds.subgaussian_radius(side.q, step, side.scale, tokens=1, delta_loc=delta)
        tally["outside"][j] += int(((eps > u + slack) & keep).sum())
        wide = bounds.subgaussian_radius(side.q, step * math.sqrt(3.0) * (1 + 2.0**-40), side.scale, tokens=1, delta_loc=delta)
        tally["outside_three"][j] += int(((eps > wide + slack) & keep).sum())


def run(setting: Setting) -> dict[str, Any]:
    """Tally every case; ``violations`` counts errors beyond the proved step, ``control_caught`` says that the control fails."""
    seeds = 1 if setting.quick else setting.option("seeds", 1)
    cases: dict[str, dict[str, Any]] = {
        c: {"tokens": 0, "energy": 0.0, "largest": 0.0, "beyond_step": 0, "outside": [0] * len(DELTAS),
            "outside_three": [0] * len(DELTAS)}
        for c in CASES
    }  # fmt: skip
    for case, tally in cases.items():
        setting.say(case)
        for s in range(seeds):
            for _, i, layer, side in layers(setting):
                _one(case, layer, side, i, setting.seed + s, tally)
    rows = [
        {"case": c, "guarantee": "proved-nonadaptive" if c.startswith("dither") else "none: the law is another one",
         "tokens": t["tokens"], "variance_ratio": t["energy"] / t["tokens"], "largest_sigmas": t["largest"],
         "beyond_step": t["beyond_step"],
         "observed": [n / t["tokens"] for n in t["outside"]],
         "observed_three": [n / t["tokens"] for n in t["outside_three"]]}
        for c, t in cases.items()
    ]  # fmt: skip
    caught = any(o > d for r in rows if r["case"].startswith("stochastic") for o, d in zip(r["observed"], DELTAS, strict=True))
    broken = any(o > d for r in rows if r["case"].startswith("dither") for o, d in zip(r["observed"], DELTAS, strict=True))
    return {"violations": sum(t["beyond_step"] for t in cases.values()), "seeds": seeds, "deltas": DELTAS, "rows": rows,
            "control_caught": caught, "dither_above_promise": broken}  # fmt: skip


def describe(result: dict[str, Any]) -> str:
    """The table of the README."""
    at = [result["deltas"].index(x) for x in (0.1, 0.01, 1e-3, 1e-4)]
    rows = [
        [r["case"], style.number(r["variance_ratio"]), style.number(r["largest_sigmas"]),
         *(style.number(r["observed"][j]) for j in at), style.number(r["observed_three"][at[2]]), r["beyond_step"]]
        for r in result["rows"]
    ]  # fmt: skip
    heads = ["case", "mean ε² / proxy", "largest |ε| / √proxy", *(f"outside, δ = {result['deltas'][j]:g}" for j in at),
             "outside 3× proxy, δ = 0.001", "errors beyond the step"]  # fmt: skip
    caught = "is caught: its share exceeds a promised δ" if result["control_caught"] else "is NOT caught on these keys"
    clean = "exceeds" if result["dither_above_promise"] else "stays below"
    return (
        style.table(heads, rows)
        + f"\n\n{result['rows'][0]['tokens']:,} tokens a case, {result['seeds']} seed(s). The control {caught}; the "
        f"share of the subtractive dither {clean} every promised δ. The proxy is the s²/12 that was proved for the "
        "subtractive dither; all shares are [measured]."
    )


def draw(result: dict[str, Any]) -> Any:
    """Observed share outside the radius against the promised one; above the diagonal a promise is broken."""
    figure, axes = style.axes(1, 1, 6.4, 4.2)
    ax, low = axes[0], 1e-9
    looks = (("#1b6ca8", "o-"), ("#3a8f5c", "o-"), ("#d9822b", "s--"), ("#b3261e", "s--"))
    for r, (colour, mark) in zip(result["rows"], looks, strict=True):
        ax.plot(result["deltas"], [max(x, low) for x in r["observed"]], mark, ms=4, color=colour, label=r["case"])
    ax.plot(result["deltas"], [max(x, low) for x in result["rows"][3]["observed_three"]], "s:", ms=3, color=style.GREY,
            label="stochastic, half-way keys, 3× the proxy")  # fmt: skip
    ax.plot([1e-5, 1], [1e-5, 1], color="black", lw=1)
    ax.fill_between([1e-5, 1], [1e-5, 1], 1, color="#c0392b", alpha=0.07, lw=0)
    ax.text(1.3e-5, 0.25, "promise broken", color="#7a2017", fontsize=8)
    ax.set(xscale="log", yscale="log", xlim=(1e-5, 0.6), ylim=(low / 2, 1), xlabel="promised share δ",
           ylabel=f"observed share outside the radius\n(0 is drawn at {low:g})")  # fmt: skip
    ax.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure
