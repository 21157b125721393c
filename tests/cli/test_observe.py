"""The main job end to end on tiny models of several families, with its report."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests import models
from witcert import schemes
from witcert.cli import main

FAST = ("--tokens", "72", "--queries", "6")


def run(capsys: pytest.CaptureFixture[str], *args: object, status: int = 0) -> str:
    try:
        main([str(a) for a in args])
        code = 0
    except SystemExit as e:
        code = int(e.code or 0)
    out = capsys.readouterr()
    assert code == status, out.err
    return out.out


def check(results: dict[str, Any]) -> None:
    assert results["violations"] == 0
    for row in results["schemes"]:
        assert row["cells"] > 0
        assert row["tv"]["guarantee"] == "measured"
        for m in row["meters"]:
            assert m["guarantee"] in ("proved", "proved-nonadaptive")
            assert m["theorem"]
            assert m["violations"] == 0
            assert m["margin"] >= 0
            assert m["meter"]["max"] <= 1
    assert all(r["holds"] for r in results["rechecks"])
    assert results["rechecks"]


@pytest.mark.parametrize("family", ["llama", "gemma2", "qwen3", "gpt_oss", "phi3", "cohere"])
def test_all_schemes_on_another_family(family: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = models.save(family, tmp_path / "m")
    results = json.loads(run(capsys, "observe", folder, *FAST, "--domains", "recall,code", "--json"))
    check(results)
    assert [r["scheme"] for r in results["schemes"]] == schemes.names()
    assert set(results["about"]["texts"]) == {"recall", "code"}
    for row in results["schemes"]:
        assert set(row["output"]) == {"recall", "code"}
        assert row["output"]["recall"]["recall"] is not None
    identity = next(r for r in results["schemes"] if r["scheme"] == "identity")
    assert identity["output"]["code"] == {"guarantee": "measured", "kl": 0.0, "top1": 1.0, "recall": None}


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.images: list[dict[str, str | None]] = []
        self.remote: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        a = dict(attrs)
        if tag == "img":
            self.images.append(a)
        for name in ("src", "href"):
            if (a.get(name) or "").startswith(("http:", "https:", "//")):
                self.remote.append(str(a[name]))


def test_report_is_complete_and_self_contained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = models.save("llama", tmp_path / "m")
    text = tmp_path / "my text.txt"
    text.write_text("A text of mine, with <tags> & more. " * 30)
    out = run(
        capsys,
        "observe",
        folder,
        *FAST,
        "--text",
        text,
        "--out",
        tmp_path / "r",
        "--schemes",
        "rtn_int8,rtn_int4,dither_int8,sign_1bit",
    )
    assert "0 violations" in out
    assert "proved-nonadaptive" in out
    names = {p.name for p in (tmp_path / "r").iterdir()}
    assert {"report.html", "results.json", "cells.safetensors"} <= names
    assert not [n for n in names if n.endswith(".part")]
    page = _Page()
    html = (tmp_path / "r" / "report.html").read_text()
    page.feed(html)
    assert len(page.images) == len([n for n in names if n.endswith(".png")]) == 6
    assert all((i["src"] or "").startswith("data:image/png;base64,") and i["alt"] for i in page.images)
    assert not page.remote
    assert "<tags>" not in html
    check(json.loads((tmp_path / "r" / "results.json").read_text()))
    from safetensors import safe_open

    with safe_open(tmp_path / "r" / "cells.safetensors", "pt") as f:
        keys = list(f.keys())
        assert "my text/dither_int8/meter.proved-nonadaptive" in keys
        assert f.get_tensor("my text/rtn_int8/tv.measured").shape[:2] == (2, 4)


def test_a_recording_gives_the_numbers_of_the_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = models.save("gemma2", tmp_path / "m")
    file = tmp_path / "a.safetensors"
    common = ("--domains", "code", *FAST)
    info = json.loads(run(capsys, "capture", folder, *common, "--out", file, "--json"))
    assert info["bytes"] == file.stat().st_size
    direct = json.loads(run(capsys, "observe", folder, *common, "--schemes", "rtn_int8,dither_int8", "--json"))
    recorded = json.loads(run(capsys, "observe", "--activations", file, "--schemes", "rtn_int8,dither_int8", "--json"))
    for a, b in zip(direct["schemes"], recorded["schemes"], strict=True):
        assert a["meters"] == b["meters"]
        assert a["tv"] == b["tv"]
        assert b["output"] == {}


def test_your_own_scheme_in_five_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The README's snippet, run as it stands there."""
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    block = readme.split("<!-- snippet:begin -->")[1].split("<!-- snippet:end -->")[0]
    code = block.split("```python\n")[1].split("```")[0]
    assert len([line for line in code.splitlines() if line.strip()]) <= 5
    plugin = tmp_path / "mine.py"
    plugin.write_text(code)
    folder = models.save("llama", tmp_path / "m")
    results = json.loads(
        run(capsys, "observe", folder, *FAST, "--domains", "code", "--plugin", plugin, "--schemes", "mine", "--json")
    )
    check(results)


def test_list_of_schemes(capsys: pytest.CaptureFixture[str]) -> None:
    listed = json.loads(run(capsys, "schemes", "--json"))
    assert [s["name"] for s in listed] == schemes.names()
    assert all(s["summary"] for s in listed)
    assert "dither_int8" in run(capsys, "schemes")


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    import witcert

    assert witcert.__version__ in run(capsys, "--version")
    help_text = run(capsys, "--help")
    assert "observe" in help_text
    assert "capture" in help_text
