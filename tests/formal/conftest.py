"""Small Lean projects, each compiled and exported once; results are kept by content in formal/.lake."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / "formal" / "tools"
sys.path.insert(0, str(TOOLS))

import export  # noqa: E402
import install  # noqa: E402
import proofs  # noqa: E402
from check import Checker  # noqa: E402

README = "# Sample\n\n<!-- theorems:begin -->\n<!-- theorems:end -->\n"
PROOFS = "# Proofs\n\n<!-- purposes:begin -->\n<!-- purposes:end -->\n"
SPEC = {
    "topics": [
        {
            "topic": "Doubling",
            "theorems": [
                {"name": "two_lt", "layer": "core", "purpose": "doubling keeps order"},
                {"name": "two_real", "layer": "real", "purpose": "the same for real numbers"},
            ],
        }
    ]
}

DEFS = """/-! Definitions. -/
namespace WitCert.Core

/-- Twice a number. -/
def two (n : Nat) : Nat := n + n

/-- Twice twice. -/
def four (n : Nat) : Nat := two (two n)

/-- A commutative addition. -/
class Commutes (α : Type) extends Add α where
  /-- Order does not matter. -/
  comm : ∀ a b : α, a + b = b + a

/-- A pair, from which Lean derives theorems of its own. -/
structure Pair where
  first : Nat
  second : Nat

notation:65 a " ⊞ " b => a + b + 0

#eval four 3
end WitCert.Core
"""

THEOREMS = """import WitCert.Core.Defs
namespace WitCert.Core

/-- Doubling keeps order, e.g. 1 < 2 gives 2 < 4. A second sentence
on two lines. -/
theorem two_lt (x y : Nat) (h_less : x < y) : two x < two y := by unfold two; omega

/-- The same statement with other names, binders and proof. -/
theorem two_lt_again {a b : Nat} (hab : a < b) : two a < two b := two_lt a b hab

/-- Another statement. -/
theorem two_le (x y : Nat) (h : x < y) : two x ≤ two y := Nat.le_of_lt (two_lt x y h)

/-- Four is two twos. -/
theorem four_eq (x : Nat) : four x = two (two x) := rfl

/-- Over any type. -/
theorem poly.{u} (α : Type u) (x : α) : x = x := rfl

/-- Over any type, the universe named otherwise. -/
theorem poly_again.{v} {β : Type v} (y : β) : y = y := Eq.refl y

/-- Uses propositional extensionality. -/
theorem ext (p q : Prop) (h : p ↔ q) : p = q := propext h

/-- Uses it through another theorem. -/
theorem ext_again (p q : Prop) (h : p ↔ q) : q = p := (ext p q h).symm

private theorem hidden : two 1 = 2 := have _ := two_lt 0 1 (by decide); rfl

/-- Rests on a private theorem, and on what a class assumes. -/
theorem shown {α : Type} [Commutes α] (a b : α) : a + b = b + a ∧ two 1 = 2 := ⟨Commutes.comm a b, hidden⟩

/-- Notation of another module. -/
theorem boxed (a b : Nat) : (a ⊞ b) = b + a := by omega

instance : Commutes Nat := ⟨Nat.add_comm⟩

end WitCert.Core
"""

# The first project as someone may spoil it: one definition changed, one statement changed, and what the audit forbids.
SPOILT = """import Lean
set_option warn.sorry false
namespace WitCert.Core

/-- Twice a number. -/
def two (n : Nat) : Nat := n + n + 0

/-- Twice twice. -/
def four (n : Nat) : Nat := two (two n)

/-- Doubling keeps order. -/
theorem two_lt (x y : Nat) (h_less : x < y) : two x < two y := by unfold two; omega

/-- A weaker statement than it was. -/
theorem two_le (x y : Nat) (h : x < y) : two x ≤ two y + 1 := by have := two_lt x y h; omega

/-- Silent. -/
theorem silent : 1 + 1 = 3 := by sorry

axiom assumed : 2 = 3

/-- Rests on an axiom of its own. -/
theorem rests : 3 = 2 := assumed.symm

/-- Trusts the compiler, as `native_decide` does. -/
theorem compiled (a : Bool) (h : Lean.reduceBool a = true) : a = true := Lean.ofReduceBool a true h

theorem bare (n : Nat) : n = n := rfl

set_option debug.skipKernelTC true
open Lean Elab Command in
run_cmd liftCoreM do
  let type := mkConst ``False
  addDecl (.thmDecl { name := `WitCert.Core.forged, levelParams := [], type, value := mkConst ``True.intro })

end WitCert.Core
"""

GOOD = {
    "formal/WitCert/Core.lean": "import WitCert.Core.Defs\nimport WitCert.Core.Theorems\n",
    "formal/WitCert/Core/Defs.lean": DEFS,
    "formal/WitCert/Core/Theorems.lean": THEOREMS,
}


def write(root: Path, files: dict[str, str]) -> Path:
    """A project with these files, and with what every project has."""
    always = {"README.md": README, "docs/proofs.md": PROOFS, "formal/spec_names.json": json.dumps(SPEC)}
    for name, text in {**always, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    shutil.copy(ROOT / "formal" / "Export.lean", root / "formal" / "Export.lean")
    return root


@dataclass
class Sample:
    """A project, where its results are, and its raw export."""

    root: Path
    build: Path
    raw: dict

    @property
    def checker(self) -> Checker:
        return Checker(self.root / "formal", self.build)

    def proofs(self, *args: str) -> int:
        return proofs.main(["--root", str(self.root), "--build", str(self.build), "--lean", "wasm", *args])


@pytest.fixture(scope="session")
def lean() -> None:
    """Lean, installed; skipped where it cannot be."""
    if not install.installed_dir().is_dir() and not shutil.which("npm"):
        pytest.skip("npm is not on PATH: it is needed once to download Lean")
    install.setup()


def build_dir(name: str) -> Path:
    return ROOT / "formal" / ".lake" / "tests" / name


def sample(tmp: Path, name: str, files: dict[str, str]) -> Sample:
    root = write(tmp, files)
    checker = Checker(root / "formal", build_dir(name))
    report = checker.check([m for m in checker.mods if m.startswith("WitCert")])
    assert all(r.compiled for r in report.results.values())
    return Sample(root, checker.build, export.with_wasm(checker, root / "formal" / "Export.lean", ["WitCert.Core"]))


@pytest.fixture(scope="session")
def good(lean: None, tmp_path_factory: pytest.TempPathFactory) -> Sample:
    return sample(tmp_path_factory.mktemp("good"), "good", GOOD)


@pytest.fixture(scope="session")
def spoilt(lean: None, tmp_path_factory: pytest.TempPathFactory) -> Sample:
    return sample(tmp_path_factory.mktemp("spoilt"), "spoilt", {"formal/WitCert/Core.lean": SPOILT})
