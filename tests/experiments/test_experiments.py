"""Every experiment runs in its quick form, draws and describes what it wrote, and its claims hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from experiments import readme, record, registry, style, supervise
from experiments.common import Setting

KNOWN, BROKEN = registry.discover()


def test_every_module_can_be_imported() -> None:
    assert not BROKEN
    assert {"schemes", "msweep", "coverage", "stochastic", "pollution", "output", "recall"} <= set(KNOWN)


@pytest.fixture(scope="session")
def results(setting: Setting) -> dict[str, dict[str, Any]]:
    """Records as they come out of their JSON file, by experiment; filled as tests ask."""
    return {}


def run(name: str, setting: Setting, results: dict[str, dict[str, Any]], folder: Path) -> dict[str, Any]:
    if name not in results:
        found = supervise.execute(KNOWN[name], setting, f"python -m experiments {name} --quick", None)
        results[name] = json.loads(record.save(folder, found).read_text(encoding="utf-8"))
    return results[name]


@pytest.mark.parametrize("name", list(KNOWN))
def test_quick_run(name: str, setting: Setting, results: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    r = run(name, setting, results, tmp_path)
    assert r["violations"] == 0
    assert r["result"]["violations"] == 0
    text = readme.section(KNOWN[name], r)
    assert r["command"] in text
    assert "nan" not in text.split("![")[0].lower().replace("significan", "")
    picture = tmp_path / f"{name}.png"
    style.save(KNOWN[name].draw(r["result"]), picture)
    assert picture.read_bytes()[:4] == b"\x89PNG"


def test_schemes_sees_every_reading(setting: Setting, results: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    found = {s["scheme"]: s for s in run("schemes", setting, results, tmp_path)["result"]["schemes"]}
    assert [r["guarantee"] for r in found["dither_int8"]["readings"]] == ["proved", "proved", "proved-nonadaptive"]
    for s in found.values():
        assert s["rechecked"] > 0
        assert s["forms"]["meter"]["missed_at_tau"] == 0
        assert s["forms"]["eform"]["coverage"] <= s["forms"]["meter"]["coverage"]
        assert s["forms"]["tanh_rival"]["coverage"] <= s["forms"]["meter"]["coverage"]
        assert all(meter >= tv for tv, meter in s["sample"])


def test_more_outlier_pairs_page_in_less(setting: Setting, results: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    for reading in run("msweep", setting, results, tmp_path)["result"]["readings"]:
        rows = reading["rows"]
        assert reading["below_truth"] == 0
        assert rows[-1]["coverage"] >= rows[0]["coverage"]
        assert rows[-1]["largest_meter"] < rows[0]["largest_meter"]
        for row in rows:
            traffic = [t["traffic_bytes"] for t in row["thresholds"]]
            assert traffic == sorted(traffic, reverse=True)
            assert all(t["traffic_bytes"] == 0 for t in row["thresholds"] if t["tau"] >= row["largest_meter"])


def test_a_smaller_budget_covers_less(setting: Setting, results: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    rows = run("coverage", setting, results, tmp_path)["result"]["rows"]
    for k in (1, 2):
        covered = [row["readings"][k]["coverage"] for row in rows]
        assert covered == sorted(covered, reverse=True)
        assert all(row["readings"][k]["requests_failed"] <= row["delta"] * row["requests"] for row in rows)


def test_the_control_is_caught(setting: Setting, results: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    result = run("stochastic", setting, results, tmp_path)["result"]
    ratio = {r["case"]: r["variance_ratio"] for r in result["rows"]}
    assert result["control_caught"]
    assert not result["dither_above_promise"]
    assert 0.9 < ratio["dither, recorded keys"] < 1.1
    assert 0.9 < ratio["dither, half-way keys"] < 1.1
    assert 2.6 < ratio["stochastic, half-way keys"] < 3.4


def test_exact_cache_changes_nothing(setting: Setting, results: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    rows = {r["scheme"]: r for r in run("output", setting, results, tmp_path)["result"]["rows"]}
    for x in rows["identity"]["output"].values():
        assert x["kl"] == 0.0
        assert x["top1"] == 1.0
    assert all(rows["rtn_int4"]["output"][d]["kl"] > rows["rtn_int8"]["output"][d]["kl"] for d in rows["rtn_int4"]["output"])


def test_every_layer_alone_hurts(setting: Setting, results: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    (s,) = run("pollution", setting, results, tmp_path)["result"]["schemes"]
    assert len(s["layers"]) == 2
    assert all(row["kl"] > 0 for row in s["layers"])
    assert s["kl_all"] > 0


def test_the_gate_brings_the_output_back(setting: Setting, results: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    runs = run("recall", setting, results, tmp_path)["result"]["runs"]
    exact, free, gated = runs[0], runs[1], runs[2]
    assert exact["kl"] == 0.0
    assert gated["kl"] < free["kl"]
    assert gated["tv_after"]["max"] <= gated["tau"]
    assert gated["bytes"] > 0 == free["bytes"]
    assert gated["certified"] + gated["repaired"] == gated["cells"]
