"""Adversarial regression suite: no bound is ever below the total variation, query by query, with zero tolerance.

Why: a plausible formula once passed 32,256 averaged checks and is false. Here every cell counts on its own, logit
errors are chosen against the bound, the computed truth carries its own error bound, and the closest cells are settled
at 50 digits. The table of distances is printed by ``test_report`` (``pytest -rA`` or ``-s``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.adversary import SEED, Cells, Verdict, cells, true_variation
from witcert import bounds, golden

pytestmark = pytest.mark.slow

PER_KIND = 256
Formula = Callable[[Tensor, Tensor], Tensor]


accumulated = functools.lru_cache(maxsize=1)(bounds.accumulate)  # the same two tensors for one formula after another


def from_accumulators(f: Callable[[bounds.Accumulators], Tensor]) -> Formula:
    return lambda p, c: f(accumulated(p, c))


FORMULAS: dict[str, Formula] = {
    "eform": from_accumulators(lambda a: bounds.eform(a.log_a)),
    "sharp": from_accumulators(lambda a: bounds.sharp(a.log_a)),
    "tanh_half": from_accumulators(lambda a: bounds.tanh_half(a.c_max)),
    "tanh_rival": from_accumulators(lambda a: bounds.tanh_rival(a.c_max)),
    "one_sub_ratio": from_accumulators(lambda a: bounds.one_sub_ratio(a.log_a, a.log_a_neg)),
    "two_sided": from_accumulators(lambda a: bounds.two_sided(a.log_a, a.log_a_neg)),
    "retention": bounds.retention,
    "meter": from_accumulators(lambda a: bounds.meter(a.log_a, a.c_max)),
}


def true_at_50_digits(p: np.ndarray, c: np.ndarray, eps: np.ndarray) -> golden.Number:
    return _settled(tuple(p.tolist()), tuple(eps.tolist()))


@functools.cache
def _settled(p: tuple[float, ...], eps: tuple[float, ...]) -> golden.Number:
    return golden.total_variation_of_errors(p, eps)


def examine(formulas: dict[str, Formula], per_kind: int, dtype: torch.dtype = torch.float64) -> dict[str, Verdict]:
    """Run the referee over every adversarial cell; in float32 the inputs themselves are rounded first."""
    verdicts = {name: Verdict(name, cap=1.0) for name in formulas}
    for batch in cells(per_kind):
        for cell in batch.chunks():
            if dtype == torch.float32:
                p, c = cell.p.astype(np.float32).astype(float), cell.c.astype(np.float32).astype(float)
                cell = Cells(p, c, cell.eps.clip(-c, c))
            true, error = true_variation(cell)
            p_t, c_t = torch.from_numpy(cell.p).to(dtype), torch.from_numpy(cell.c).to(dtype)
            for name, formula in formulas.items():
                value = formula(p_t, c_t)
                assert value.dtype == dtype
                verdicts[name].add(value.double().numpy(), true, error, cell.p, cell.c, cell.eps)
    return verdicts


@pytest.fixture(scope="module")
def verdicts() -> dict[str, Verdict]:
    return {n: v.settle(true_at_50_digits) for n, v in examine(FORMULAS, PER_KIND).items()}


@pytest.mark.parametrize("name", FORMULAS)
def test_no_cell_exceeds_the_bound(verdicts: dict[str, Verdict], name: str) -> None:
    verdict = verdicts[name]
    assert verdict.seen >= 500_000
    assert verdict.settled >= 200
    assert verdict.sound, verdict.line()


@pytest.mark.parametrize("name", ["sharp", "tanh_half", "meter"])
def test_the_suite_reaches_the_bound(verdicts: dict[str, Verdict], name: str) -> None:
    """A suite that stays far from the bound proves nothing: the tight families come within rounding of it."""
    assert verdicts[name].closest < 1e-13


def test_no_cell_exceeds_the_bound_in_float32() -> None:
    for verdict in examine(FORMULAS, 32, torch.float32).values():
        assert verdict.seen >= 60_000
        assert verdict.settle(true_at_50_digits).sound, verdict.line()


def test_two_token_counterexample() -> None:
    """p~ = (1/2, 1/2), c = (0.1, 0.1), eps = (0.1, -0.1): total variation 0.049834, the dispersion formula 0.006423."""
    p, c = torch.tensor([0.5, 0.5], dtype=torch.float64), torch.tensor([0.1, 0.1], dtype=torch.float64)
    eps = torch.tensor([0.1, -0.1], dtype=torch.float64)
    tv, formula = bounds.total_variation_of_errors(p, eps).item(), bounds.dispersion_unsound(p, c).item()
    assert f"{tv:.6f}" == "0.049834"
    assert f"{formula:.6f}" == "0.006423"
    assert f"{float(golden.total_variation_of_errors([0.5, 0.5], [0.1, -0.1])):.6f}" == "0.049834"
    assert f"{float(golden.dispersion_unsound([0.5, 0.5], [0.1, 0.1])):.6f}" == "0.006423"
    assert f"{bounds.worst_case_tv(p, c).item():.6f}" == "0.049834"
    for name, sound in FORMULAS.items():
        assert sound(p, c).item() >= tv, name
    print(f"\ntwo-token counterexample: TV {tv:.6f}, dispersion formula {formula:.6f}, factor {tv / formula:.1f}")


# ---- mutants: the suite must notice a wrong bound


def _unit(x: Tensor) -> Tensor:
    return torch.nan_to_num(x, nan=1.0).clamp(0.0, 1.0)


def _mean(p: Tensor, x: Tensor) -> Tensor:
    return (p * x).sum(-1)


MUTANTS: dict[str, Formula] = {
    "dispersion": lambda p, c: _unit(bounds.dispersion_unsound(p, c)),
    "1 - 1/A beyond A = 2": from_accumulators(lambda a: _unit(-torch.expm1(-a.log_a))),
    "A from the mean bound": lambda p, c: bounds.sharp(_mean(p, c).clamp_min(0.0)),
    "A without p": lambda p, c: bounds.sharp(torch.logsumexp(c, -1) - np.log(c.shape[-1])),
    "A of A-": from_accumulators(lambda a: bounds.sharp(-a.log_a_neg)),
    "1 - 1/A by cancellation": lambda p, c: _unit(1.0 - 1.0 / _mean(p, torch.exp(c))),
    "half of A - 1": from_accumulators(lambda a: _unit(0.5 * torch.expm1(a.log_a))),
    "tanh(C/4)": from_accumulators(lambda a: bounds.tanh_half(0.5 * a.c_max)),
    "tanh of min c": lambda p, c: bounds.tanh_half(c.amin(-1)),
    "tanh of mean c": lambda p, c: bounds.tanh_half(_mean(p, c).clamp_min(0.0)),
    "1 - A-": from_accumulators(lambda a: _unit(-torch.expm1(a.log_a_neg))),
    "half of 1 - A-/A": from_accumulators(lambda a: _unit(0.5 * bounds.one_sub_ratio(a.log_a, a.log_a_neg))),
    "2^-48 below sharp": from_accumulators(lambda a: _unit(bounds.sharp(a.log_a) * (1 - 2.0**-48))),
    "2^-49 below tanh": from_accumulators(lambda a: _unit(bounds.tanh_half(a.c_max) * (1 - 2.0**-49))),
    "c rounded to half": lambda p, c: FORMULAS["meter"](p, c.clamp_max(6e4).half().double()),
    "largest token left out": lambda p, c: FORMULAS["sharp"](p, c.masked_fill(c == c.amax(-1, keepdim=True), 0.0)),
}


@pytest.fixture(scope="module")
def mutant_verdicts() -> dict[str, Verdict]:
    return {n: v.settle(true_at_50_digits, limit=50) for n, v in examine(MUTANTS, 8).items()}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_bound_is_caught(mutant_verdicts: dict[str, Verdict], name: str) -> None:
    assert mutant_verdicts[name].violations > 0, mutant_verdicts[name].line()


def test_report(verdicts: dict[str, Verdict], mutant_verdicts: dict[str, Verdict]) -> None:
    """Print the distances (shown by ``-rA`` or ``-s``); fails if the table would be empty."""
    print(f"\nadversarial cells, seed {SEED}; distance = (bound - TV) / TV, settled at {golden.DIGITS} digits")
    for verdict in verdicts.values():
        print(verdict.line())
    print("wrong bounds and how often the suite proves them wrong (suspects / cells)")
    for name, verdict in mutant_verdicts.items():
        print(f"{name:<26} {len(verdict.suspects):>7,} / {verdict.seen:,}")
    assert verdicts
    assert len(mutant_verdicts["dispersion"].suspects) > 1000
