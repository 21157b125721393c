"""Every mutant is killed by a check, an unmutated copy passes the same checks, and a survivor is reported as one."""

import sys
from dataclasses import replace

import pytest
import torch

import contracts.checks
from contracts import mutants
from contracts.discharge import CHECKS, Setting
from contracts.mutants import MUTANTS, Mutant, overlay

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's, on NaN and overflow

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SETTING = Setting(DEVICE, interpreted=DEVICE.type == "cpu", full=False)
FILE = "witcert/kernels/rounding.py"
HARMLESS = Mutant(
    "harmless", "A comment changes.", FILE, "drop 13 bits", "drop thirteen bits", ("rounding.ru16_exhaustive",)
)


def test_names_texts_and_checks_exist() -> None:
    assert contracts.checks.__file__
    assert len(MUTANTS) >= 24
    assert len({m.name for m in MUTANTS}) == len(MUTANTS)
    for mutant in MUTANTS:
        assert mutant.what.endswith(".")
        assert mutants.mutated(mutant).count(mutant.new) >= 1
        assert set(mutant.checks) <= CHECKS.keys(), mutant.name


@pytest.mark.parametrize("name", [m.name for m in MUTANTS])
def test_killed(name: str) -> None:
    (result,) = mutants.run(SETTING, [name])
    assert result.error is None
    assert result.killed_by is not None


def _pass_in_a_copy(names: set[str]) -> None:
    with overlay(None) as copy:
        assert copy.CHECKS is not CHECKS
        reduced = copy.Setting(SETTING.device, SETTING.interpreted, False)
        for name in sorted(names):
            assert copy.CHECKS[name].function(reduced).cases > 0, name


def test_an_unmutated_copy_passes_checks_that_kill() -> None:
    """Some of each file of mutants: rounding, codes, counters, splits, repair."""
    some = {"rounding.ru16_exhaustive", "int8.codes", "dither.counters", "merge.partition", "repair.exact"}
    assert some <= {name for mutant in MUTANTS for name in mutant.checks}
    _pass_in_a_copy(some)


@pytest.mark.slow
def test_an_unmutated_copy_passes_every_check_that_kills(request: pytest.FixtureRequest) -> None:
    if "slow" not in request.config.getoption("markexpr"):
        pytest.skip("every check passes on the package itself in test_checks_*.py, and a copy differs in nothing: -m slow")
    _pass_in_a_copy({name for mutant in MUTANTS for name in mutant.checks})


def test_a_survivor_is_reported_and_nothing_is_left_behind() -> None:
    before = {n: m for n, m in sys.modules.items() if n.split(".")[0] in ("witcert", "contracts")}
    path = list(sys.path)
    result = mutants.run_one(SETTING, HARMLESS)
    assert (result.name, result.killed_by, result.error) == ("harmless", None, None)
    assert {n: m for n, m in sys.modules.items() if n.split(".")[0] in ("witcert", "contracts")} == before
    assert sys.path == path


def test_what_cannot_be_run_is_an_error_and_not_a_kill() -> None:
    for change, message in (
        ({"old": "no such text"}, "0 times"),
        ({"old": "bits", "new": "bit"}, "expected once"),
        ({"old": "def ru16_bits(x):", "new": "def ru16_bits(x:"}, "SyntaxError"),
        ({"checks": ("rounding.no_such_check",)}, "KeyError"),
    ):
        result = mutants.run_one(SETTING, replace(HARMLESS, **change))  # type: ignore[arg-type]
        assert result.killed_by is None
        assert result.error is not None
        assert message in result.error


def test_a_mutant_changes_something() -> None:
    with pytest.raises(ValueError, match="changes nothing"):
        replace(HARMLESS, new=HARMLESS.old)
    with pytest.raises(ValueError, match="nothing looks at it"):
        replace(HARMLESS, checks=())
    with pytest.raises(KeyError):
        mutants.run(SETTING, ["no_such_mutant"])
