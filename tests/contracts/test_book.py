"""The contracts fit, and whatever is taken away from either side is noticed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from contracts import book as books
from contracts.book import Book, BookError, Facts, Theorem, problems
from contracts.discharge import Check, Outcome, Setting
from contracts.model import Assumed, ByConstruction, Checked, Cited, Contract, Derived, Output, Same, Unused, lemma

# What exists, for tests that take one thing away; the fixture below checks that all of it fits.
CONTRACTS = books.read_contracts()
CHECKS = dict(books.read_checks())


@pytest.fixture(scope="module")
def book() -> Book:
    return books.load()


def without(mapping: Mapping[str, object], key: str) -> dict:
    return {k: v for k, v in mapping.items() if k != key}


def test_everything_fits(book: Book) -> None:
    assert [c.theorem for c in book.contracts] == list(book.facts.theorems)
    promised = json.loads((books.ROOT / "formal" / "spec_names.json").read_text(encoding="utf-8"))["topics"]
    names = {t["name"] for topic in promised for t in topic["theorems"] if t["layer"] == "core"}
    assert {name for name, t in book.facts.theorems.items() if t.spec} == names
    assert problems(book.contracts, book.facts) == []


def test_pending_names_of_the_real_layer_have_no_contract(book: Book) -> None:
    assert book.pending
    assert not {p.removeprefix("WitCert.Core.") for p in book.pending} & {c.theorem for c in book.contracts}


# --- taking any single thing away ------------------------------------------------------------------


@pytest.mark.parametrize("name", [c.theorem for c in CONTRACTS])
def test_without_any_one_contract(book: Book, name: str) -> None:
    left = [c for c in book.contracts if c.theorem != name]
    assert f"{name}: no contract for this theorem" in problems(left, book.facts)


@pytest.mark.parametrize("name", [c.theorem for c in CONTRACTS])
def test_without_any_one_theorem(book: Book, name: str) -> None:
    facts = dataclasses.replace(book.facts, theorems=without(book.facts.theorems, name))
    assert f"{name}: a contract, but no exported theorem has this name" in problems(book.contracts, facts)


@pytest.mark.parametrize("obligation", [f"{c.theorem}.{h}" for c in CONTRACTS for h in c.hypotheses])
def test_without_any_one_hypothesis(book: Book, obligation: str) -> None:
    """In the contract, the theorem keeping it; and in the theorem, the contract keeping it."""
    name, _, hypothesis = obligation.rpartition(".")
    contract, theorem = book.contract(name), book.facts.theorems[name]
    poorer = dataclasses.replace(contract, hypotheses=without(contract.hypotheses, hypothesis))
    changed = [poorer if c is contract else c for c in book.contracts]
    assert f"{obligation}: nothing discharges this hypothesis" in problems(changed, book.facts)
    less = dataclasses.replace(theorem, hypotheses=tuple(h for h in theorem.hypotheses if h[0] != hypothesis))
    facts = dataclasses.replace(book.facts, theorems={**book.facts.theorems, name: less})
    assert f"{obligation}: discharged, but the theorem has no such hypothesis" in problems(book.contracts, facts)


@pytest.mark.parametrize("name", sorted(CHECKS))
def test_without_any_one_check(book: Book, name: str) -> None:
    facts = dataclasses.replace(book.facts, checks=without(book.facts.checks, name))
    found = problems(book.contracts, facts)
    assert {r for r in found if f"the contract names the check {name}, which does not exist" in r}
    assert len(found) == len(CHECKS[name].obligations)


@pytest.mark.parametrize("obligation", sorted({f"{n}|{o}" for n, c in CHECKS.items() for o in c.obligations}))
def test_without_any_one_obligation_of_a_check(book: Book, obligation: str) -> None:
    name, _, carried = obligation.partition("|")
    check = CHECKS[name]
    lighter = dataclasses.replace(check, obligations=tuple(o for o in check.obligations if o != carried))
    facts = dataclasses.replace(book.facts, checks={**book.facts.checks, name: lighter})
    wanted = f"{carried}: the contract names the check {name}, which does not carry this obligation"
    assert wanted in problems(book.contracts, facts)


@pytest.mark.parametrize("name", [c.theorem for c in CONTRACTS])
def test_any_one_changed_hash(book: Book, name: str) -> None:
    theorem = book.facts.theorems[name]
    other = dataclasses.replace(theorem, statement="0" * 64, meaning="0" * 64)
    facts = dataclasses.replace(book.facts, theorems={**book.facts.theorems, name: other})
    found = problems(book.contracts, facts)
    for part in ("statement", "meaning"):
        assert any(f"{name}: the {part} hash is 0000000000000000" in r for r in found)


@pytest.mark.parametrize(
    "letter",
    sorted({d.letter for c in CONTRACTS for h in c.hypotheses for d in c.discharges(h) if isinstance(d, Assumed)}),
)
def test_without_any_one_row_of_soundness(book: Book, letter: str) -> None:
    facts = dataclasses.replace(book.facts, letters=without(book.facts.letters, letter))
    assert any(f"assumed under {letter}, and SOUNDNESS.md has no such row" in r for r in problems(book.contracts, facts))


@pytest.mark.parametrize("name", [c.theorem for c in CONTRACTS if isinstance(c.conclusion, Cited)])
def test_a_proof_that_no_longer_cites_a_lemma(book: Book, name: str) -> None:
    citing = sorted(book.facts.citing()[name])[0]
    user = book.facts.theorems[citing]
    other = dataclasses.replace(user, uses=user.uses - {name})
    facts = dataclasses.replace(book.facts, theorems={**book.facts.theorems, citing: other})
    found = problems(book.contracts, facts)
    assert f"{name}.conclusion: the proof of {citing} does not cite this theorem" in found


# --- each kind of misfit, on a book of two theorems ---------------------------------------------------

HASH, OTHER = "a" * 64, "b" * 64


def theorem(name: str, *hypotheses: str, uses: tuple[str, ...] = (), spec: bool = True) -> Theorem:
    return Theorem(
        name, spec, "M", "f.lean", 1, "It holds.", tuple((h, "P") for h in hypotheses), "Q", HASH, HASH, frozenset(uses)
    )


def nothing(setting: Setting) -> Outcome:
    raise AssertionError("not run")


def check(name: str, *obligations: str) -> Check:
    return Check(name, obligations, "Compares.", nothing)


WHERE = ByConstruction("contracts/book.py:load", "it is so")
MAIN = Contract("main", HASH, HASH, Output("a number", "m.ends"), {"h": WHERE})
HELP = lemma("help", HASH[:16], HASH[:16], "h_pos", "main")
FACTS = Facts(
    {t.name: t for t in (theorem("main", "h", uses=("help",)), theorem("help", "h_pos", spec=False))},
    {"m.ends": check("m.ends", "main.conclusion")},
    {"E": "random numbers"},
)


def test_two_contracts_that_fit() -> None:
    assert problems([MAIN, HELP], FACTS) == []


def reasons(main: Contract = MAIN, helper: Contract = HELP, facts: Facts = FACTS) -> list[str]:
    return problems([main, helper], facts)


def met(*discharges: object) -> Contract:
    return dataclasses.replace(MAIN, hypotheses={"h": discharges})


@pytest.mark.parametrize(
    ("discharge", "said"),
    [
        ((), "main.h: nothing discharges this hypothesis"),
        ((ByConstruction("contracts/book.py:gone", "so"),), "the file defines no gone"),
        ((ByConstruction("contracts/gone.py:load", "so"),), "there is no such file"),
        ((ByConstruction("contracts/book.py", "so"),), "expected path:symbol"),
        ((ByConstruction("README.md:WitCert", "so"),), "expected path:symbol"),
        ((ByConstruction("contracts/book.py:load", " "),), "but not how"),
        ((Assumed("Z", "luck"),), "assumed under Z, and SOUNDNESS.md has no such row"),
        ((Assumed("E", ""),), "assumed under E, but not what"),
        ((Checked("m.gone"),), "main.h: the contract names the check m.gone, which does not exist"),
        ((Checked("m.ends"),), "main.h: the contract names the check m.ends, which does not carry this obligation"),
        ((Checked(),), "main.h: names no check, or one twice"),
        ((Derived("gone", how="so"),), "main.h: derived from gone, and no exported theorem has this name"),
        ((Derived("main", how="so"),), "main.h: derived from the theorem itself"),
        ((Derived("help"),), "main.h: derived from help, but not how"),
        ((Same("help.h_gone", how="so"),), "main.h: the same as help.h_gone, and there is no such hypothesis"),
        ((Same("main.h", how="so"),), "main.h: the same as a hypothesis of the theorem itself"),
        ((Unused("idle"),), "main.h: a hypothesis is unused exactly if its theorem is"),
    ],
)
def test_a_discharge_that_does_not_hold(discharge: tuple[object, ...], said: str) -> None:
    assert any(said in r for r in reasons(met(*discharge)))


@pytest.mark.parametrize(
    ("contract", "said"),
    [
        (dataclasses.replace(MAIN, statement=OTHER), "main: the statement hash is aaaaaaaaaaaaaaaa, the contract was written"),
        (dataclasses.replace(MAIN, meaning=OTHER), "main: the meaning hash is aaaaaaaaaaaaaaaa, the contract was written"),
        (dataclasses.replace(MAIN, statement="aaa"), "main: the contract gives 3 digits of the statement hash"),
        (dataclasses.replace(MAIN, hypotheses={"h": WHERE, "h2": WHERE}), "main.h2: discharged, but the theorem has no such"),
        (dataclasses.replace(MAIN, conclusion=Output("", "m.ends")), "main.conclusion: names no output"),
        (dataclasses.replace(MAIN, conclusion=Output("a number")), "main.conclusion: names no check"),
        (dataclasses.replace(MAIN, conclusion=Cited("help")), "main.conclusion: no proof cites this theorem"),
        (dataclasses.replace(MAIN, conclusion=Unused("idle")), "but the specification names this theorem"),
    ],
)
def test_a_contract_that_does_not_hold(contract: Contract, said: str) -> None:
    assert any(said in r for r in reasons(contract))


def test_a_lemma_is_discharged_only_in_proofs_that_cite_it() -> None:
    wrong = dataclasses.replace(HELP, hypotheses={"h_pos": Derived("other")})
    facts = dataclasses.replace(FACTS, theorems={**FACTS.theorems, "other": theorem("other")})
    assert "help.h_pos: derived in the proof of other, which does not cite this lemma" in reasons(helper=wrong, facts=facts)
    unsaid = dataclasses.replace(HELP, conclusion=Cited())
    assert "help.conclusion: the proof of main cites this theorem, the contract does not say so" in reasons(helper=unsaid)
    flagged = dataclasses.replace(HELP, conclusion=Unused("idle"), hypotheses={"h_pos": Unused("idle")})
    assert "help.conclusion: flagged as unused, but the proof of main cites it" in reasons(helper=flagged)


def test_an_orphan_check() -> None:
    facts = dataclasses.replace(FACTS, checks={**FACTS.checks, "m.alone": check("m.alone", "main.h")})
    found = reasons(facts=facts)
    assert "check m.alone: no contract names it" in found
    assert "check m.alone: carries main.h, which its contract says is met otherwise" in found


def test_a_check_of_what_does_not_exist() -> None:
    facts = dataclasses.replace(FACTS, checks={"m.ends": check("m.ends", "main.conclusion", "main.h9", "gone.h")})
    found = reasons(facts=facts)
    assert "check m.ends: carries main.h9, and main has no such hypothesis" in found
    assert "check m.ends: carries gone.h, and no exported theorem is called 'gone'" in found


def test_two_contracts_of_one_theorem() -> None:
    assert "main: 2 contracts, expected one" in problems([MAIN, MAIN, HELP], FACTS)


@pytest.mark.parametrize("back", [Derived("main", how="so"), Same("main.h", how="so")])
def test_a_circle(back: Derived | Same) -> None:
    first, second = (theorem(n, "h") for n in ("main", "other"))
    facts = Facts({"main": first, "other": second},
                  {"m.ends": check("m.ends", "main.conclusion", "other.conclusion")}, {})  # fmt: skip
    main = met(Derived("other", how="so"))
    other = Contract("other", HASH, HASH, Output("a number", "m.ends"), {"h": back})
    assert any(r.startswith("circular: main <- ") or "circular: " in r for r in problems([main, other], facts))
    assert problems([main, dataclasses.replace(other, hypotheses={"h": WHERE})], facts) == []


# --- the files -------------------------------------------------------------------------------------------


def test_symbols_of_python_and_lean(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("N = 1\nx: int = 2\n@f\ndef g():\n  h = 1\nclass C:\n  y: int\n  def m(self): ...\n")
    (tmp_path / "A.lean").write_text("/-- -/\n@[simp] private theorem a.b' (x) : x = x := rfl\nnoncomputable def c := 1\n")
    for where in ("a.py:N", "a.py:x", "a.py:g", "a.py:C", "a.py:C.y", "a.py:C.m", "A.lean:a.b'", "A.lean:c"):
        assert books._missing(where, tmp_path) is None, where
    for where in ("a.py:h", "a.py:m", "a.py:C.z", "A.lean:x", "a.txt:N", f"{tmp_path}/a.py:N"):
        assert books._missing(where, tmp_path), where


def test_a_letter_twice_in_soundness() -> None:
    assert books.read_letters("| A | one | x |\n|---|\n| BC | two | y |\n| word | z |\n") == {"A": "one", "BC": "two"}
    with pytest.raises(BookError, match="two rows have the letter A"):
        books.read_letters("| A | one | x |\n| A | two | y |\n")


@pytest.mark.parametrize("damage", ["gone", "not JSON", "{}"])
def test_unreadable_statements(tmp_path: Path, damage: str) -> None:
    (tmp_path / "formal").mkdir()
    (tmp_path / "SOUNDNESS.md").write_text("| A | one | x |\n")
    if damage != "gone":
        (tmp_path / "formal" / "statements.json").write_text(damage)
    with pytest.raises(BookError, match="cannot be read"):
        books.load(tmp_path)


def test_no_file_of_contracts_is_long() -> None:
    for path in (books.ROOT / "contracts").rglob("*.py"):
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 400, path
