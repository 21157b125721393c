"""The export: every public theorem, hypothesis by hypothesis, with hashes that change when and only when they should."""

from __future__ import annotations

import copy
import hashlib
import json

import export
import pytest
import spec

from .conftest import Sample

pytestmark = pytest.mark.lean

Statements = dict[str, dict]


def statements(s: Sample) -> tuple[dict, Statements]:
    built = export.build(s.raw, spec.load(s.root / "formal" / "spec_names.json"), s.checker.mods)
    return built, {t["name"].removeprefix("WitCert.Core."): t for t in built["theorems"]}


@pytest.fixture(scope="module")
def theorems(good: Sample) -> Statements:
    return statements(good)[1]


def test_every_public_theorem_and_nothing_else(theorems: Statements) -> None:
    """Neither private theorems, nor instances, nor what a class assumes, nor what Lean derives for a structure."""
    assert list(theorems) == [
        "two_lt",
        "two_lt_again",
        "two_le",
        "four_eq",
        "poly",
        "poly_again",
        "ext",
        "ext_again",
        "shown",
        "boxed",
    ]


def test_one_entry_in_full(theorems: Statements) -> None:
    t = dict(theorems["two_lt"])
    assert hashlib.sha256(t["explicit"].encode()).hexdigest() == t.pop("statement_hash")
    assert len(t.pop("meaning_hash")) == 64
    nat = "(HAdd.hAdd.[0 0 0] Nat Nat Nat (instHAdd.[0] Nat instAddNat) x0 x0)"
    assert nat not in t["explicit"]  # definitions are named, not unfolded
    less = "(LT.lt.[0] Nat instLTNat {} {})"
    assert t.pop("explicit") == (
        f"(∀ x0 : Nat, (∀ x1 : Nat, (∀ x2 : {less.format('x0', 'x1')}, "
        f"{less.format('(WitCert.Core.two x0)', '(WitCert.Core.two x1)')})))"
    )
    assert t == {
        "name": "WitCert.Core.two_lt", "layer": "core", "spec": True, "module": "WitCert.Core.Theorems",
        "file": "formal/WitCert/Core/Theorems.lean", "line": 6,
        "sentence": "Doubling keeps order, e.g. 1 < 2 gives 2 < 4.",
        "doc": "Doubling keeps order, e.g. 1 < 2 gives 2 < 4. A second sentence\non two lines.",
        "statement": "WitCert.Core.two_lt (x y : Nat) (h_less : x < y) : two x < two y",
        "variables": [{"name": "x", "type": "Nat"}, {"name": "y", "type": "Nat"}], "instances": [],
        "hypotheses": [{"name": "h_less", "type": "x < y"}], "conclusion": "two x < two y",
        "definitions": ["WitCert.Core.two"], "uses": [], "axioms": [],
    }  # fmt: skip


def test_the_hash_of_a_statement_changes_only_with_the_statement(theorems: Statements) -> None:
    assert theorems["two_lt"]["statement_hash"] == theorems["two_lt_again"]["statement_hash"]
    assert theorems["two_lt"]["meaning_hash"] == theorems["two_lt_again"]["meaning_hash"]
    assert theorems["poly"]["statement_hash"] == theorems["poly_again"]["statement_hash"]
    hashes = [t["statement_hash"] for n, t in theorems.items() if not n.endswith("_again")]
    assert len(set(hashes)) == len(hashes)


def test_a_changed_statement_or_definition_changes_its_hash(theorems: Statements, spoilt: Sample) -> None:
    other = statements(spoilt)[1]
    assert other["two_lt"]["statement_hash"] == theorems["two_lt"]["statement_hash"]
    assert other["two_lt"]["meaning_hash"] != theorems["two_lt"]["meaning_hash"]  # `two` is another function there
    assert other["two_le"]["statement_hash"] != theorems["two_le"]["statement_hash"]


def test_meaning_reaches_through_definitions(good: Sample) -> None:
    """`four` is defined by `two`: another `two` gives `four_eq` another meaning."""
    changed = copy.copy(good)
    changed.raw = copy.deepcopy(good.raw)
    for d in changed.raw["definitions"]:
        if d["name"] == "WitCert.Core.two":
            d["value"] += " "
    before, after = statements(good)[0], statements(changed)[0]
    names = {
        t["name"]
        for t, u in zip(before["theorems"], after["theorems"], strict=True)
        if t["meaning_hash"] != u["meaning_hash"]
    }
    assert {n.removeprefix("WitCert.Core.") for n in names} == {"two_lt", "two_lt_again", "two_le", "four_eq", "shown"}
    assert all(
        t["statement_hash"] == u["statement_hash"] for t, u in zip(before["theorems"], after["theorems"], strict=True)
    )
    four = {d["name"]: d for d in before["definitions"]}["WitCert.Core.four"]
    four_after = {d["name"]: d for d in after["definitions"]}["WitCert.Core.four"]
    assert four["content_hash"] == four_after["content_hash"]
    assert four["meaning_hash"] != four_after["meaning_hash"]


def test_axioms_are_those_really_used(theorems: Statements) -> None:
    assert theorems["ext"]["axioms"] == theorems["ext_again"]["axioms"] == ["propext"]
    assert theorems["shown"]["axioms"] == []


def test_uses_are_the_public_theorems_that_the_proof_cites(theorems: Statements) -> None:
    """Directly, or through a private theorem; not through another public one, and not what the statement mentions."""
    core = "WitCert.Core."
    assert theorems["two_lt_again"]["uses"] == theorems["two_le"]["uses"] == [core + "two_lt"]
    assert theorems["shown"]["uses"] == [core + "two_lt"]  # through `hidden`
    assert theorems["ext_again"]["uses"] == [core + "ext"]
    assert theorems["two_lt"]["uses"] == theorems["four_eq"]["uses"] == []


def test_definitions_under_the_statements(good: Sample) -> None:
    built = {d["name"].removeprefix("WitCert.Core."): d for d in statements(good)[0]["definitions"]}
    assert set(built) == {"two", "four", "Commutes"}  # Pair is in no statement
    assert built["two"]["source"] == "/-- Twice a number. -/\ndef two (n : Nat) : Nat := n + n"
    assert built["Commutes"]["kind"] == "class"
    comm = {f["name"]: f for f in built["Commutes"]["fields"]}["comm"]
    assert comm["prop"]
    assert comm["doc"] == "Order does not matter."
    assert comm["type"] == "a + b = b + a"


def test_every_constant_was_replayed(good: Sample) -> None:
    assert good.raw["replayed"] == len(good.raw["constants"]) > 10


def test_the_export_is_stored_by_content(good: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    def no(*args: object, **kwargs: object) -> None:
        raise AssertionError("Lean was run")

    monkeypatch.setattr(export.lean, "script", no)
    program = good.root / "formal" / "Export.lean"
    assert export.with_wasm(good.checker, program, ["WitCert.Core"]) == good.raw
    other = good.checker
    other.mods["WitCert.Core.Defs"].text += "\n"
    with pytest.raises(AssertionError, match="Lean was run"):
        export.with_wasm(other, program, ["WitCert.Core"])


@pytest.mark.parametrize(
    ("doc", "sentence"),
    [
        ("One. Two.", "One."),
        ("At most 0.5 of it. More", "At most 0.5 of it."),
        ("No stop", "No stop"),
        ("Lines\nof one\nsentence.\n\nNext.", "Lines of one sentence."),
        ("By i.e. That is. Rest.", "By i.e. That is."),
        (None, ""),
    ],
)
def test_first_sentence(doc: str | None, sentence: str) -> None:
    assert export.first_sentence(doc) == sentence


def test_differences_name_what_changed(good: Sample) -> None:
    old = statements(good)[0]
    new = json.loads(json.dumps(old))
    assert export.differences(old, new) == []
    gone = new["theorems"].pop(0)
    new["theorems"][0]["conclusion"] = "False"
    new["theorems"][1]["axioms"] = ["Classical.choice"]
    new["schema"] = 2
    assert export.differences(old, new) == [
        f"{gone['name']}: no longer among the theorems",
        f"{new['theorems'][1]['name']}: changed: axioms",
        f"{new['theorems'][0]['name']}: changed: conclusion",
        "changed: schema",
    ]
    assert not any("axioms" in line for line in export.differences(old, new, frozenset({"axioms"})))
    assert export.differences(None, new) == ["there is no committed export"]


def test_a_committed_real_layer_stays_while_its_sources_do(good: Sample) -> None:
    old = {"real_sources": "abc", "theorems": [{"name": "WitCert.x", "layer": "real"}], "definitions": []}
    kept, dropped = {"theorems": [], "definitions": []}, {"theorems": [], "definitions": []}
    export.merge_real(kept, old, "abc")
    export.merge_real(dropped, old, "abd")
    assert kept == {"theorems": old["theorems"], "definitions": [], "real_sources": "abc"}
    assert dropped == {"theorems": [], "definitions": []}
