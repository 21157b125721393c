"""The closed-loop experiments on a tiny model: they run, what must hold holds, and what they compare against can fail."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments import _free, _pools, _synthetic, _truth, adaptive, capacity, closed_loop, loop, paging, record
from experiments._truth import Exact, Violations, exact_of, served_keys, slots_of
from experiments.common import Setting
from tests import models
from tests.hf.serving_models import build
from witcert.gate import Gate, GatedPool
from witcert.guarantees import Proved
from witcert.kernels.decode.reference import served_keys as reference_keys
from witcert.store import ops

SHAPE = _synthetic.Shape(2, 4, 64)


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    folder = tmp_path_factory.mktemp("model")
    build("llama", torch.float32).save_pretrained(folder)
    models.tokenizer().save_pretrained(folder)
    return Setting(quick=True, model=str(folder), tokens=96, queries=6)


def told(module: Any, result: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    """The result as it is read back from JSON, after its table and picture were made from it."""
    path = tmp_path / "x.json"
    record.write_json(path, result)
    back: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    assert "|" in module.describe(back)
    figure = module.draw(back)
    figure.savefig(tmp_path / "x.png")
    assert (tmp_path / "x.png").stat().st_size > 5000
    return back


def test_closed_loop(setting: Setting, tmp_path: Path) -> None:
    """Errors of repaired cells fall by more than ten times in the median, and nothing proved is below the truth."""
    result = told(closed_loop, closed_loop.run(setting), tmp_path)
    assert result["violations"] == 0
    assert result["claim"]["holds"]
    assert result["claim"]["least_median"] == min(p["median"] for p in result["claim"]["pooled"]) > 10
    assert len(result["claim"]["pooled"]) == 2 * len(_pools.CASES)
    assert {c["source"] for c in result["cases"]} == {"recorded", "synthetic"}
    for c in result["cases"]:
        assert c["repaired"] > 0
        assert c["repaired"] == c["reached_tau"]
        assert c["meter_after"]["max"] <= c["tau"] < c["meter_before"]["min"]
        assert c["tv_after"]["max"] <= c["tau"]
        assert c["violations"]["proved"]["cells"] == 3 * c["cells"]
        assert c["error_after"]["min"] >= 0.9 * c["floor"]["min"] > 0
        if c["mode"] == "head":
            assert c["tv_after"]["max"] == 0


def test_paging(setting: Setting, tmp_path: Path) -> None:
    result = told(paging, paging.run(setting), tmp_path)
    assert result["violations"] == 0
    for r in result["runs"]:
        assert r["block"]["uncertified"] == r["head"]["uncertified"] == 0
        assert 0 < r["block"]["bytes"] <= r["head"]["bytes"]
        assert r["head"]["bytes_per_request"]["p95"] <= r["exact_bytes_of_request"]
    assert max(r["head_over_block"] for r in result["runs"]) > 2


def test_adaptive(setting: Setting, tmp_path: Path) -> None:
    """No proved reading is violated; the control breaks the non-adaptive one, so that the count can see a violation."""
    result = told(adaptive, adaptive.run(setting), tmp_path)
    assert result["violations"] == 0
    for r in result["runs"]:
        assert r["steps"] == r["new_tokens"] - 1
        assert all(x["cells"] == 2 * 2 * 4 * r["steps"] for x in r["readings"])
        assert {x["guarantee"] for x in r["readings"]} <= {"proved", "measured"}
    assert [r["uncertified"] for r in result["runs"][1:]] == [0, 0]
    assert result["runs"][1]["bytes"] > 0
    control = result["control"]["violations"]
    assert control["proved"]["violations"] == 0
    assert control["proved-nonadaptive"]["violations"] > 100


def test_capacity(setting: Setting, tmp_path: Path) -> None:
    result = told(capacity, capacity.run(setting), tmp_path)
    assert result["disagreements"] == 0
    by = {(r["shape"], r["format"]): r["over_16_bit"] for r in result["rows"]}
    for shape in capacity.SHAPES:
        assert by[shape, "exact, no witness"] == pytest.approx(1.0, abs=1e-9)
        assert by[shape, "int8, m = 0"] > 1.8 > by[shape, "int8 + witness"]


def test_loop(setting: Setting, tmp_path: Path) -> None:
    result = told(loop, loop.run(setting), tmp_path)
    rows = {r["way"]: r for r in result["cases"][0]["rows"]}
    assert rows[loop.PLAIN]["speed_ratio"] == 1.0
    for r in rows.values():
        assert r["step_seconds"] > 0
        assert r["tokens_per_second"] == pytest.approx(1 / r["step_seconds"])
        assert r["peak_bytes"] is None
    assert rows["dither_int8, Tier B, gate at τ = 0.2"]["side_bytes"] > 0
    assert rows["exact, metered"]["side_bytes"] == 0
    assert rows["int8, half-step meter, gate off"]["cache_bytes"] < rows["exact, metered"]["cache_bytes"]
    assert rows["exact, no meter"]["same_tokens"] == 1.0


def test_without_a_model() -> None:
    """With neither model nor recording the closed loop still runs on synthetic contexts, and says what was left out."""
    bare = Setting(quick=True, model="none", options={"cases": "dither_int8"})
    result = closed_loop.run(bare)
    assert {c["source"] for c in result["cases"]} == {"synthetic"}
    assert result["notes"]


def test_heads_that_the_pool_does_not_take(tmp_path: Path) -> None:
    """Recorded attention of other head dimensions is left out, not padded."""
    folder = models.save("llama", tmp_path / "m")
    works, notes = closed_loop.works(Setting(quick=True, model=str(folder), tokens=64, queries=4))
    assert [w.source for w in works] == ["synthetic"]
    assert "head dimension 16" in notes[0]


def test_synthetic_contexts_are_what_they_say() -> None:
    """Seeded; heads that point at a run give it the wanted mass; the sink takes a share; outlier channels stand out."""
    one, two = (_synthetic.context(1024, 3, SHAPE, 5, "cpu") for _ in range(2))
    assert all(torch.equal(getattr(one, n), getattr(two, n)) for n in ("q", "k", "v", "target"))
    assert not torch.equal(one.k, _synthetic.context(1024, 3, SHAPE, 6, "cpu").k)
    k, q = one.k.double(), one.q.double().unflatten(1, (2, 4))
    p = torch.softmax(torch.einsum("qhgd,thd->qhgt", q, k) * SHAPE.scale, -1)
    target = one.target.unflatten(1, (2, 4))
    assert (target[..., 3] == 0).all()  # the diffuse head
    assert ((target[..., :3] > 0.15) & (target[..., :3] < 0.92)).all()
    pages = p.unflatten(-1, (64, 16)).sum(-1).sort(-1, descending=True).values
    assert (pages[..., :3, :6].sum(-1) > 0.5).double().mean() > 0.7
    assert 0.005 < p[..., 0].median() < 0.6
    size = k.abs().mean((0,)).sort(-1, descending=True).values  # [Hkv, d]
    assert (size[:, :8].mean(-1) > 4 * size[:, 16:].mean(-1)).all()
    assert one.v[0].norm() < 0.1 * one.v[1].norm()


@pytest.mark.parametrize("name", ["rtn_int4", "dither_int8"])
def test_served_keys_are_those_of_the_reference(name: str) -> None:
    """The recomputation's formula gives the reference's numbers, before a repair and after one, and the exact ones."""
    setting = Setting(quick=True, model="none")
    work = replace(_pools.synthetic(setting, 50, 2, SHAPE), lens=(50, 33))
    pool, meter = _pools.open_pool(setting, work, _pools.CASES[name])
    gated, data = GatedPool(pool, Gate(tau=0.01)), work.layer(0)
    seqs = _pools.fill(gated, work, [data])
    table = pool.table(seqs)
    for b, n in enumerate(work.lens):
        slots = slots_of(table, 50)[b, :n]
        assert torch.equal(slots, table.slots(b))
        assert torch.equal(served_keys(gated, 0, table, 50)[b, :n], reference_keys(pool.stores[0], slots))
        assert torch.equal(exact_of(gated, 0, table, 50)[b, :n], data.k[b, :n])
    done = gated.attend(0, data.q, seqs, scale=data.scale, meter=meter)
    assert done.pages > 0
    now = served_keys(gated, 0, table, 50)
    assert gated.repairs is not None
    for page_index, page in enumerate(pool.pages(seqs[0])):
        rows = slice(16 * page_index, min(50, 16 * page_index + 16))
        for head in range(2):
            same = torch.equal(now[0, rows, head], data.k[0, rows, head].double())
            assert same == gated.repairs.is_exact(0, page, head)


def test_the_truth_finds_a_reading_that_is_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readings at a fiftieth of what they are, and NaN, are violations; the truth agrees with a plain softmax."""
    setting = Setting(quick=True, model="none")
    work = _pools.synthetic(setting, 200, 2, SHAPE)
    pool, meter = _pools.open_pool(setting, work, _pools.CASES["rtn_int4"])
    gated, data = GatedPool(pool, Gate(mode="off")), work.layer(0)
    seqs = _pools.fill(gated, work, [data])
    table, lens = pool.table(seqs), torch.tensor(work.lens)
    exact = Exact(data.q, data.k, lens, data.scale, v=data.v)
    truth = exact.variation(gated, 0, table)
    monkeypatch.setattr(_truth, "CHUNK", 1)  # one sequence at a time
    assert torch.equal(exact.variation(gated, 0, table), truth)
    wide = data.q.double().unflatten(1, (2, 4))
    rows = [torch.softmax(torch.einsum("rhgd,rthd->rhgt", wide, x) * data.scale, -1)
            for x in (data.k.double(), served_keys(gated, 0, table, 200))]  # fmt: skip
    assert torch.allclose(truth, 0.5 * (rows[0] - rows[1]).abs().sum(-1).flatten(1), atol=1e-12)
    assert exact.out is not None
    assert torch.allclose(exact.out, torch.einsum("rhgt,rthd->rhgd", rows[0], data.v.double()).flatten(1, 2), atol=1e-12)
    output = ops.decode(pool, 0, data.q, table, scale=data.scale, meter=meter)
    assert (exact.error(output.out) > 1e-3).all()
    small = tuple(replace(r, meter=r.meter.map(lambda x: x / 50)) for r in output.readings)
    found = Violations()
    found.check(output.readings, truth)
    assert found.proved == 0
    found.check(small, truth)
    assert found.proved > 0
    before = found.proved
    found.compare(Proved(torch.tensor([0.5, math.nan]), "x"), torch.tensor([0.1, 0.0], dtype=torch.float64))
    assert found.proved == before + 1


def test_prompts_come_from_different_places(setting: Setting) -> None:
    ids = _free.prompts(setting, 3, 20)
    assert ids.shape == (3, 20)
    assert len({tuple(row) for row in ids.tolist()}) == 3
