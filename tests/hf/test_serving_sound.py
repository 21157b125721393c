"""No meter of a generation is below the total variation that the cache really caused, cell by cell, with no tolerance."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.hf.serving_models import build, ids
from witcert.guarantees import Proved, ProvedNonadaptive
from witcert.hf.attach import Attachment, attach
from witcert.kernels.decode.reference import served_keys
from witcert.kernels.formats import PackedStore

FORMATS: dict[str, dict[str, Any]] = {
    "exact": {"format": "exact"},
    "int8, band norms": {"format": "int8"},
    "int8, half-steps": {"format": "int8", "meter": "half"},
    "dither, Tier B": {"tier_b": True},
    "dither, band norms": {"format": "int8-dither", "meter": "band"},
    "scheme rtn_int4": {"scheme": "rtn_int4"},
    "scheme fp8_e4m3_raw": {"scheme": "fp8_e4m3_raw"},
}


def served(a: Attachment, layer: int, sequence: int) -> Tensor:
    """Keys that attention reads now, float64 [T, Hkv, d]: repaired pages of a packed pool from its side pool."""
    pool, table = a.pool, a.pool.table([sequence])
    slots = table.slots(0)
    keys = served_keys(pool.stores[layer], slots).clone()
    if a.gated.repairs is None or not isinstance(pool.stores[layer], PackedStore):
        return keys
    side = a.gated.repairs.side_table(layer, table)
    if side is None:
        return keys
    parts, pages = side
    size = pool.config.page_size
    for head in range(pool.config.kv_heads):
        for t in range(len(slots)):
            if parts[0, head, t // size]:
                keys[t, head] = pool.side[layer].k[int(pages[head, t // size]) * size + t % size, 0].double()
    return keys


def logits(q: Tensor, keys: Tensor, options: dict[str, Any]) -> Tensor:
    """Logits [Hq, T (+ 1 with sinks)] of queries [Hq, d] in float64."""
    window = options["window"]
    keys = keys if window is None else keys[-window:]
    wide = keys.repeat_interleave(q.shape[0] // keys.shape[1], 1)
    out = torch.einsum("hd,thd->ht", q.double(), wide) * options["scale"]
    if options["softcap"] is not None:
        out = options["softcap"] * torch.tanh(out / options["softcap"])
    if options["sinks"] is not None:
        out = torch.cat([out, options["sinks"].double()[:, None]], 1)
    return out


@dataclass
class Watch:
    """Recomputes the true total variation of every cell from the query, the served keys and the exact backing store."""

    attachment: Attachment | None = None
    cells: int = 0
    largest: float = 0.0
    violations: list[str] = field(default_factory=list)

    def __call__(
        self, layer: int, q: Tensor, sequences: tuple[int, ...], options: dict[str, Any], attended: Any
    ) -> None:
        a = self.attachment
        assert a is not None
        assert a.pool.backing is not None
        for b, s in enumerate(sequences):
            exact = a.pool.backing[layer].k[a.pool.table([s]).slots(0)].double()
            p = torch.softmax(logits(q[b], exact, options), -1)
            p_tilde = torch.softmax(logits(q[b], served(a, layer, s), options), -1)
            tv = 0.5 * (p - p_tilde).abs().sum(-1)
            self.largest = max(self.largest, float(tv.max()))
            for reading in attended.output.readings:
                meter = torch.as_tensor(reading.meter.value)[b].double()
                assert isinstance(reading.meter, (Proved, ProvedNonadaptive))
                self.cells += len(tv)
                if not bool((meter >= tv).all()):
                    self.violations.append(f"layer {layer}, {reading.meter.label}: {meter.tolist()} < {tv.tolist()}")


READ = [(f, n) for n in FORMATS for f in ("mistral", "gpt_oss")] + [("gemma2", "dither, Tier B")]
GATED = [
    (f, n) for f in ("llama", "mistral", "gpt_oss") for n in ("int8, band norms", "dither, Tier B", "scheme rtn_int4")
]
CASES = [(*c, "off") for c in READ] + [(*c, None) for c in [*GATED, ("gemma2", "dither, band norms")]]


@pytest.mark.parametrize(("family", "name", "gate"), CASES, ids=[f"{f}-{n}-{g or 'gated'}" for f, n, g in CASES])
@torch.no_grad()
def test_every_meter_bounds_the_truth(family: str, name: str, gate: Any) -> None:
    model, watch = build(family), Watch()
    prompt = ids(2, 30)
    mask = torch.ones_like(prompt)
    mask[0, :5] = 0
    tau = 0.02 if name != "exact" else 0.2
    with attach(model, **FORMATS[name], gate=gate, tau=tau, backing=True, tokens=64, pages=16, observer=watch) as a:
        watch.attachment = a
        model.generate(prompt, attention_mask=mask, max_new_tokens=6, min_new_tokens=6, do_sample=False)
        reports = a.report()
    assert not watch.violations
    assert watch.cells == len(reports[0].worst) * 2 * 2 * 4 * 5  # readings, rows, layers, heads, steps
    assert (watch.largest > 1e-4) or name == "exact" or gate is None
    for r in reports:
        assert r.cells == 40
        assert r.certified + r.repaired + r.uncertified == r.cells
        if gate is None and name != "exact":
            assert r.uncertified == 0 or r.refused > 0
        for m in r.worst:
            assert bool((torch.as_tensor(m.value) <= 1).all())


@torch.no_grad()
def test_a_meter_that_is_too_small_is_found() -> None:
    """The recomputation above sees a meter that is a hundredth of what it should be."""
    from dataclasses import replace

    model, watch = build("llama"), Watch()

    def lying(layer: int, q: Tensor, sequences: tuple[int, ...], options: dict[str, Any], attended: Any) -> None:
        readings = tuple(replace(r, meter=r.meter.map(lambda x: x / 100)) for r in attended.output.readings)
        watch(layer, q, sequences, options, replace(attended, output=replace(attended.output, readings=readings)))

    with attach(model, scheme="rtn_int4", gate="off", backing=True, tokens=64, observer=lying) as a:
        watch.attachment = a
        model.generate(ids(1, 30), max_new_tokens=6, min_new_tokens=6, do_sample=False)
    assert watch.violations
