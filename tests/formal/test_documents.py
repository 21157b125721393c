"""The documents made from the statements."""

from __future__ import annotations

from pathlib import Path

import documents
import pytest
from problem import Problem
from transcribe import to_ascii

THEOREM = {
    "name": "WitCert.Core.two_lt", "layer": "core", "spec": True, "module": "WitCert.Core.A",
    "file": "formal/WitCert/Core/A.lean", "line": 7,
    "sentence": "Doubling `2·x` keeps 50 % & order.", "doc": "Doubling `2·x` keeps 50 % & order. More.", "statement": "",
    "variables": [{"name": "ε", "type": "Nat → R"}], "instances": ["Field R"],
    "hypotheses": [{"name": "h_less", "type": "∀ t,\n  t ≤ x₁"}], "conclusion": "a² ∧ b", "explicit": "",
    "statement_hash": "0123456789abcdef" * 4, "meaning_hash": "fedcba9876543210" * 4, "definitions": [], "axioms": ["propext"],
}  # fmt: skip
LEMMA = {**THEOREM, "name": "WitCert.Core.lemma", "spec": False, "sentence": "a | b"}
DEFINITION = {
    "name": "WitCert.Core.two",
    "file": "formal/WitCert/Core/A.lean",
    "line": 3,
    "sentence": "Twice.",
    "source": "def two := 2",
}
STATEMENTS = {
    "theorems": [THEOREM, LEMMA],
    "definitions": [DEFINITION],
    "pending": [{"name": "WitCert.two_lt", "layer": "real", "file": "formal/WitCert/B.lean"}],
}


@pytest.fixture
def promised():
    import spec

    return [spec.SpecName("two_lt", layer, "Doubling", "order | kept") for layer in ("core", "real")]


def test_markdown(promised) -> None:
    text = documents.markdown(STATEMENTS, promised)
    assert "- **S1**: `Field R`" in text
    assert "## Doubling\n\n### `Core.two_lt`\n\nDoubling `2·x` keeps 50 % & order. More.\n\n*For:* order | kept" in text
    assert "-- setting S1\nε : Nat → R\nh_less : ∀ t,\n      t ≤ x₁\n⊢ a² ∧ b\n" in text
    assert "`0123456789abcdef` · `fedcba9876543210` · axioms: propext" in text
    assert "| `Core.lemma` | a \\| b | [WitCert/Core/A.lean:7](../formal/WitCert/Core/A.lean#L7) |" in text
    assert "```lean\ndef two := 2\n```" in text
    assert "- `WitCert.two_lt`: pending (written in formal/WitCert/B.lean, not compiled)" in text
    assert "1 of them named in the specification" in text


def test_tex(promised) -> None:
    text = documents.tex(STATEMENTS, promised)
    assert r"\witcert@set{two_lt}{Doubling \texttt{2*x} keeps 50 \% \& order.}" in text
    ascii_part, unicode_part = text.split("}{%\n")[1:3]
    assert ascii_part.isascii()
    assert "epsilon : Nat -{}\\textgreater{} R" in ascii_part
    assert "forall t,\\\\{}\n\\hspace*{3em}t \\textless{}= x\\_1" in ascii_part
    assert "ε : Nat → R" in unicode_part
    assert "lemma" not in text
    assert r"\paragraph{\texttt{two\_lt}} \witcertsentence{two_lt}\witcertstatement{two_lt}" in text


def test_readme_and_purposes(promised) -> None:
    section = documents.readme_section(STATEMENTS, promised)
    assert "- Doubling `2·x` keeps 50 % & order. [`two_lt`](formal/WitCert/Core/A.lean#L7)" in section
    assert "Pending, so not proved here: 0 names of the Core layer, 1 of the Real layer" in section
    table = documents.purposes_table(STATEMENTS, promised)
    assert "| `two_lt` | order \\| kept | [proved](../formal/WitCert/Core/A.lean#L7) | pending |" in table


def test_between() -> None:
    text = "a\n<!-- x:begin -->\nold\n<!-- x:end -->\nb"
    assert documents.between(text, "x", "new", Path("f")) == "a\n<!-- x:begin -->\nnew\n<!-- x:end -->\nb"
    for bad in ("", "<!-- x:end --><!-- x:begin -->", text + text):
        with pytest.raises(Problem, match="expected one"):
            documents.between(bad, "x", "new", Path("f"))


def test_files_only_where_markers_are(tmp_path: Path, promised) -> None:
    (tmp_path / "README.md").write_text("no markers")
    assert {p.name for p in documents.files(tmp_path, STATEMENTS, promised)} == {"theorems.md", "theorems.tex"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ε₁₂ ≤ x⁻¹", "epsilon_12 <= x^-1"),
        ("½·a²ⁿ ŷ ≠ p̃", "1/2*a^2n y_hat != p_tilde"),
        ("∀ x, ‖x‖ → ¬p", "forall x, ||x|| -> not p"),
    ],
)
def test_ascii(text: str, expected: str) -> None:
    assert to_ascii(text) == expected


def test_ascii_never_drops_a_character() -> None:
    with pytest.raises(Problem, match="U\\+2603"):
        to_ascii("☃")
