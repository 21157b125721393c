"""Faulty variants of the kernels, each of which some check must notice.

A check that no fault can fail shows nothing. Each mutant is one replacement in a real source file; it is *killed* when
one of its checks, run at the reduced amount on a copy of the package with that fault, raises ``Violation``. Any other
exception is an error of the mutant, not a kill.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from contracts.discharge import Setting
from contracts.mutants import read_side, sums, write_side
from contracts.mutants.model import Mutant, MutantResult
from contracts.mutants.overlay import mutated, overlay

__all__ = ["MUTANTS", "Mutant", "MutantResult", "mutated", "overlay", "run", "run_one"]

MUTANTS: tuple[Mutant, ...] = write_side.MUTANTS + read_side.MUTANTS + sums.MUTANTS


def run_one(setting: Setting, mutant: Mutant) -> MutantResult:
    """Run one mutant's checks, reduced, on the device of the setting, until one of them raises Violation."""
    start = time.monotonic()
    killed_by = error = None
    try:
        with overlay(mutant) as copy:
            reduced = copy.Setting(setting.device, setting.interpreted, False)
            for name in mutant.checks:
                try:
                    copy.CHECKS[name].function(reduced)
                except copy.Violation:
                    killed_by = name
                    break
    except Exception as problem:  # whatever it is, it belongs to this mutant and is reported with it
        error = f"{type(problem).__name__}: {problem}"
    return MutantResult(mutant.name, mutant.what, killed_by, time.monotonic() - start, error)


def run(setting: Setting, names: Sequence[str] | None = None) -> list[MutantResult]:
    """Results of all mutants, or of those named, in the order of ``MUTANTS``; KeyError for a name that there is not."""
    known = {mutant.name: mutant for mutant in MUTANTS}
    chosen = MUTANTS if names is None else tuple(known[name] for name in names)
    return [run_one(setting, mutant) for mutant in chosen]
