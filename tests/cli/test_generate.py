"""``witcert generate`` on tiny models: text, report and errors."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import models
from tests.hf.serving_models import build
from witcert.cli import main

transformers = models.transformers


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    build("llama").save_pretrained(folder)
    models.tokenizer().save_pretrained(folder)
    return folder


def run(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[int, str, str]:
    code = 0
    try:
        main(["generate", *map(str, args)])
    except SystemExit as e:
        code = int(e.code or 0)
    out = capsys.readouterr()
    assert "Traceback" not in out.err + out.out
    return code, out.out, out.err


@pytest.mark.parametrize(
    ("options", "guarantees"),
    [
        ((), ["proved"]),
        (("--format", "exact"), ["proved"]),
        (("--format", "int8-dither", "--gate", "head"), ["proved", "proved-nonadaptive"]),
        (("--scheme", "rtn_int4", "--gate", "off"), ["proved"]),
    ],
)
def test_text_and_report(
    capsys: pytest.CaptureFixture[str], llama: Path, options: tuple[str, ...], guarantees: list[str]
) -> None:
    args = ("A prompt of some length.", "--model", llama, "-n", 5, *options)
    code, out, err = run(capsys, *args, "--json")
    assert code == 0, err
    data = json.loads(out)
    request = data["request"]
    assert 1 <= len(data["tokens"]) <= 5
    assert request["steps"] == len(data["tokens"]) - 1
    assert request["cells"] == request["steps"] * 2 * 4
    assert request["certified"] + request["repaired"] + request["uncertified"] == request["cells"]
    assert [m["guarantee"] for m in request["worst_by_layer"]] == guarantees
    assert all(len(m["value"]) == 2 for m in request["worst_by_layer"])
    code, again, err = run(capsys, *args)
    assert code == 0
    assert again.rstrip("\n") == data["text"]
    assert all(g in err for g in guarantees)
    assert f"of {request['cells']} cells" in " ".join(err.split())


def test_what_an_audit_advises_is_served(capsys: pytest.CaptureFixture[str], llama: Path, tmp_path: Path) -> None:
    """``witcert audit --outliers FILE``, then ``witcert generate --outliers FILE``."""
    (tmp_path / "mine.txt").write_text("a line of text that says nothing in particular. " * 8)
    where = tmp_path / "o.safetensors"
    text = ("--text", tmp_path / "mine.txt", "--tokens", 48, "--queries", 4)
    with contextlib.suppress(SystemExit):
        main([*map(str, ("audit", llama, *text, "--pairs", "2", "--outliers", where, "--json"))])
    assert json.loads(capsys.readouterr().out)["advice"]["pairs"] == 2
    args = ("A prompt of some length.", "--model", llama, "-n", 4, "--json")
    code, out, err = run(capsys, *args, "--outliers", where)
    assert code == 0, err
    assert json.loads(out)["bytes"]["outliers"] > 0
    code, _, err = run(capsys, *args, "--outliers", where, "--format", "exact")
    assert (code, "only packed formats" in " ".join(err.split())) == (2, True)
    code, _, err = run(capsys, *args, "--outliers", tmp_path / "none")
    assert (code, "no such file" in " ".join(err.split())) == (2, True)


def test_float32_and_sampling_and_standard_input(
    capsys: pytest.CaptureFixture[str], llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import io

    sampled = ("--temperature", "0.8", "--seed", "3", "--json", "-n", "4", "--dtype", "float32", "--model", llama)
    first = json.loads(run(capsys, "some text", *sampled)[1])
    monkeypatch.setattr("sys.stdin", io.StringIO("some text"))
    assert json.loads(run(capsys, "-", *sampled)[1])["tokens"] == first["tokens"]


def test_telemetry_goes_to_the_file_that_report_reads(
    capsys: pytest.CaptureFixture[str], llama: Path, tmp_path: Path
) -> None:
    file = tmp_path / "run.jsonl"
    code, _, err = run(capsys, "some text", "-n", 5, "--model", llama, "--telemetry", file)
    assert code == 0, err
    main(["report", str(file), "--json"])
    assert json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("",), "prompt"),
        (("x", "--tau", "0"), "tau"),
        (("x", "--format", "int5"), "int5"),
        (("x", "--format", "exact", "--scheme", "rtn_int8"), "different formats"),
        (("x", "--scheme", "rtn_int9"), "rtn_int8"),
        (("x", "--gate", "maybe"), "gate"),
        (("x", "--meter", "tierB"), "meter"),
        (("x", "--max-new-tokens", "0"), "max-new-tokens"),
        (("x", "--max-new-tokens", "5000"), "context"),
        (("x", "--temperature", "-1"), "temperature"),
        (("x", "--delta", "2"), "delta"),
        (("x", "--dtype", "int8"), "dtype"),
        (("x", "--device", "tpu"), "device"),
        (("x", "--chat"), "chat template"),
        (("x", "--model", "/nonexistent"), "model"),
    ],
)
def test_errors_name_what_is_wrong(
    capsys: pytest.CaptureFixture[str], llama: Path, args: tuple[Any, ...], message: str
) -> None:
    rest = () if "--model" in args else ("--model", llama)
    code, _, err = run(capsys, *args, *rest)
    assert code == 2
    assert message in " ".join(err.split())


def test_models_that_cannot_be_attached(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    models.save("llama", tmp_path)
    code, _, err = run(capsys, "x", "--model", tmp_path)
    assert code == 2
    assert "head dimension 16" in err


def test_damaged_weights(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    model = build("llama")
    with torch.no_grad():
        model.model.layers[1].self_attn.k_proj.weight[3, 4] = float("nan")
    model.save_pretrained(tmp_path)
    models.tokenizer().save_pretrained(tmp_path)
    code, _, err = run(capsys, "x", "--model", tmp_path)
    assert code == 2
    assert "k_proj.weight" in err
