"""Each rule of the audit, broken once."""

from __future__ import annotations

from pathlib import Path

import audit
import pytest
import source
import spec

from .conftest import Sample


def messages(text: str) -> list[tuple[int, str]]:
    return [(f.line, f.message) for f in audit.text("WitCert.A", Path("A.lean"), source.code_only(text))]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("theorem a : 1 = 2 := by sorry", "uses sorry"),
        ("theorem a : 1 = 2 := by admit", "uses admit"),
        ("theorem a : 1 = 1 := by native_decide", "trusts the compiler (native_decide)"),
        ("example := Lean.ofReduceBool", "trusts the compiler (native_decide)"),
        ("example := Lean.trustCompiler", "trusts the compiler (native_decide)"),
        ("set_option debug.skipKernelTC true", "turns the kernel's check off (debug.skipKernelTC)"),
        ("set_option maxHeartbeats 400001 in", "maxHeartbeats 400001 is above 400000"),
        ("set_option synthInstance.maxHeartbeats 1_000_000", "maxHeartbeats 1000000 is above 400000"),
        ("set_option maxHeartbeats 0", "maxHeartbeats 0 (no limit) is above 400000"),
    ],
)
def test_text_rules(text: str, message: str) -> None:
    assert messages(f"-- {text}\n/- {text} -/\n{text}\n") == [(3, message)]  # comments are free


def test_text_that_is_allowed() -> None:
    assert messages('set_option maxHeartbeats 400000\ndef s := "sorry"\ntheorem sorryless : True := trivial') == []


def project(tmp_path: Path, files: dict[str, str]) -> list[str]:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return [f.message for f in audit.tree(source.discover(tmp_path))]


CORE = {"WitCert/Core.lean": "import WitCert.Core.A\n", "WitCert/Core/A.lean": "import Init\nimport Std.Data\n"}


def test_a_sound_tree(tmp_path: Path) -> None:
    real = {"WitCert.lean": "import WitCert.Norm\n", "WitCert/Norm.lean": "import Mathlib.Data\nimport WitCert.Core\n"}
    assert project(tmp_path, {**CORE, **real, "Export.lean": "import Lean\n-- not part of the project's tree"}) == []


def test_a_file_that_its_root_does_not_reach(tmp_path: Path) -> None:
    stray = {"WitCert/Core/B.lean": "", "WitCert.lean": "", "WitCert/Norm.lean": ""}
    assert project(tmp_path, {**CORE, **stray}) == [
        "WitCert.Core.B is not checked: the root import WitCert.Core does not reach it",
        "WitCert.Norm is not checked: the root import WitCert does not reach it",
    ]


def test_a_layer_without_its_root(tmp_path: Path) -> None:
    assert project(tmp_path, {**CORE, "WitCert/Norm.lean": ""}) == [
        "WitCert.Norm is not checked: the root import WitCert has no file"
    ]


@pytest.mark.parametrize("imp", ["Mathlib.Data", "Lean", "WitCert.Norm", "Initial"])
def test_core_imports_only_lean_s_own_library(tmp_path: Path, imp: str) -> None:
    real = {"WitCert.lean": "import WitCert.Norm\n", "WitCert/Norm.lean": ""}
    assert project(tmp_path, {**CORE, **real, "WitCert/Core/A.lean": f"import {imp}\n"}) == [
        f"WitCert.Core.A imports {imp}; Core may import Init, Std and Core only"
    ]


@pytest.mark.lean
def test_what_only_the_compiled_modules_show(spoilt: Sample) -> None:
    """Also where the source hides it: the warning about `sorry` is silenced in that file."""
    mods = source.discover(spoilt.root / "formal")
    found = {(f.line, f.message) for f in audit.compiled(spoilt.raw, mods)}
    refused = {f for f in found if "the kernel refuses" in f[1]}
    assert len(refused) == 1
    assert "WitCert.Core.forged" in min(refused)[1]  # put in with the kernel's check turned off
    assert found - refused == {
        (18, "WitCert.Core.silent uses sorry"),
        (20, "WitCert.Core.assumed is an axiom"),
        (23, "WitCert.Core.rests rests on the axiom WitCert.Core.assumed"),
        (26, "WitCert.Core.compiled trusts the compiler (Lean.ofReduceBool, native_decide)"),
        (28, "WitCert.Core.bare has no docstring"),
    }
    assert {f.path for f in audit.compiled(spoilt.raw, mods)} == {str(spoilt.root / "formal/WitCert/Core.lean")}


@pytest.mark.lean
def test_nothing_in_a_sound_project(good: Sample) -> None:
    mods = source.discover(good.root / "formal")
    promised = spec.load(good.root / "formal" / "spec_names.json")
    assert audit.compiled(good.raw, mods) == []
    assert audit.missing(promised, good.raw, {"core"}, Path("spec")) == []


@pytest.mark.lean
def test_an_axiom_anywhere_below_is_found_where_lean_lists_it(good: Sample) -> None:
    """With an ordinary Lean the whole closure is listed, through Lean's own library too."""
    raw = {**good.raw, "constants": [dict(c) for c in good.raw["constants"]]}
    next(c for c in raw["constants"] if c["name"] == "WitCert.Core.two_lt")["closure"] = [
        "propext",
        "Lean.trustCompiler",
    ]
    found = audit.compiled(raw, source.discover(good.root / "formal"))
    assert [f.message for f in found] == ["WitCert.Core.two_lt trusts the compiler (Lean.trustCompiler, native_decide)"]


@pytest.mark.lean
def test_a_promised_name_that_is_missing(good: Sample) -> None:
    promised = [
        spec.SpecName("two_lt", "core", "", ""),
        spec.SpecName("two", "core", "", ""),  # a definition is no theorem
        spec.SpecName("hidden", "core", "", ""),  # nor is a private one public
        spec.SpecName("nowhere", "real", "", ""),  # the Real layer was not compiled
    ]
    assert [f.message for f in audit.missing(promised, good.raw, {"core"}, Path("spec"))] == [
        "WitCert.Core.two is promised and no public theorem has that name",
        "WitCert.Core.hidden is promised and no public theorem has that name",
    ]
