"""The checks of corollaries and tails pass on the kernels, and each notices a fault of what it looks at."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from contracts.book import read_checks
from contracts.checks import corollaries, tails
from contracts.checks._data import Written
from contracts.discharge import Setting, Violation

CPU = Setting(torch.device("cpu"), True, False)
CHECKS = read_checks()
MINE = sorted(n for n in CHECKS if n.startswith(("corollaries.", "tails.")))


@pytest.mark.parametrize("name", MINE)
def test_on_the_kernels(name: str) -> None:
    outcome = CHECKS[name].function(CPU)
    assert outcome.cases > 20
    assert outcome.margin >= 0


Cell = tuple[Tensor, Tensor, Tensor]


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (lambda a, c, m: (a - 1e-3 - a.min(), c, m), "log A is negative"),
        (lambda a, c, m: (a, c - 2 * c.max(), m), "C is negative"),
        (lambda a, c, m: (a, c, m - 1), r"outside \[0, 1\]"),
        (lambda a, c, m: (a, c, torch.full_like(m, torch.nan)), r"outside \[0, 1\]"),
        (lambda a, c, m: (a, c, torch.ones_like(m)), "is 1 although"),
        (lambda a, c, m: (a / 8, c, m), "above the e-form"),
        (lambda a, c, m: (a, c / 8, m), "above the half angle"),
        (lambda a, c, m: (a, c, m * 0), "do not spread"),
    ],
)
def test_ranges_notices(monkeypatch: pytest.MonkeyPatch, fault: Callable[[Tensor, Tensor, Tensor], Cell], said: str) -> None:
    read = corollaries._read
    monkeypatch.setattr(corollaries, "_read", lambda case: fault(*read(case)))
    with pytest.raises(Violation, match=said):
        corollaries.ranges(CPU)


@pytest.mark.parametrize("part", [0, 1, 2])
def test_monotone_notices(monkeypatch: pytest.MonkeyPatch, part: int) -> None:
    read, calls = corollaries._read, []

    def falling(case: Any) -> list[Tensor]:
        calls.append(case)
        out = list(read(case))
        out[part] = out[part] / 4 ** len(calls)
        return out

    monkeypatch.setattr(corollaries, "_read", falling)
    with pytest.raises(Violation, match="fell from"):
        corollaries.monotone(CPU)


def bits(x: Tensor, add: int) -> Tensor:
    return (x.view(torch.int16) + add).view(torch.float16)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (lambda x: x.half(), "is below its input"),
        (lambda x: bits(x.half(), 2), "moves the code"),
        (lambda x: torch.where(x == x.half(), x.half(), bits(x.half(), 3)), "is not the least"),
        (lambda x: torch.where(x == x.half(), x.half(), 65504.0 - x.half()), "is not monotone"),
    ],
)
def test_binary16_notices(monkeypatch: pytest.MonkeyPatch, fault: Callable[[Tensor], Tensor], said: str) -> None:
    monkeypatch.setattr(corollaries, "round_up_half", fault)
    with pytest.raises(Violation, match=said):
        corollaries.binary16(CPU)


def tampered(monkeypatch: pytest.MonkeyPatch, module: Any, change: Callable[[Written], None]) -> None:
    write = module.write

    def faulty(*args: Any, **kwargs: Any) -> Written:
        done = write(*args, **kwargs)
        change(done)
        return done

    monkeypatch.setattr(module, "write", faulty)


def lower_scale(done: Written) -> None:
    scale = done.store.k_scale
    scale.copy_(torch.where(scale.isfinite() & (scale > 0), bits(scale, -1), scale))


def raise_codes(done: Written) -> None:
    done.store.k_code.add_(1)


def other_epoch(done: Written) -> None:
    assert done.store.epochs is not None
    done.store.epochs.add_(1)


@pytest.mark.parametrize(
    ("fault", "said"), [(lower_scale, "is below amax"), (raise_codes, "not nearest"), (other_epoch, "not nearest")]
)
def test_codes_notices(monkeypatch: pytest.MonkeyPatch, fault: Callable[[Written], None], said: str) -> None:
    tampered(monkeypatch, corollaries, fault)
    with pytest.raises(Violation, match=said):
        corollaries.codes(CPU)


@pytest.mark.parametrize(
    ("fault", "said"), [(lower_scale, "a scale is"), (raise_codes, "the code of"), (other_epoch, "the code of")]
)
def test_executable_notices(monkeypatch: pytest.MonkeyPatch, fault: Callable[[Written], None], said: str) -> None:
    tampered(monkeypatch, corollaries, fault)
    with pytest.raises(Violation, match=said):
        corollaries.executable(CPU)


def test_rotated_residual_notices_the_wrong_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    write = corollaries.witness_write

    def swapped(*args: Any, bands: Any) -> None:
        write(*args, bands=dataclasses.replace(bands, pairing="half" if bands.pairing == "adjacent" else "adjacent"))

    monkeypatch.setattr(corollaries, "witness_write", swapped)
    with pytest.raises(Violation, match="changes under RoPE"):
        corollaries.rotated_residual(CPU)


def test_coordinates_notices_a_short_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corollaries, "STEP", 0.02)
    decode = corollaries.decode

    def certain(*args: Any, **kwargs: Any) -> Any:
        out = decode(*args, **kwargs)
        out.readings[0].meter.value.mul_(1e-3)
        return out

    monkeypatch.setattr(corollaries, "decode", certain)
    with pytest.raises(Violation, match="coordinate"):
        corollaries.coordinates(CPU)


def test_no_variance_notices_a_radius(monkeypatch: pytest.MonkeyPatch) -> None:
    decode = corollaries.decode

    def wide(*args: Any, **kwargs: Any) -> Any:
        out = decode(*args, **kwargs)
        out.readings[1].c_max.add_(1e-3)
        return out

    monkeypatch.setattr(corollaries, "decode", wide)
    with pytest.raises(Violation, match="no scale meets the query"):
        corollaries.no_variance(CPU)


@pytest.mark.parametrize("factor", [1 - 2.0**-40, 1 + 2.0**-36])
def test_rational_notices(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    meter = corollaries.bounds.meter
    monkeypatch.setattr(corollaries.bounds, "meter", lambda a, c: meter(a, c) * factor)
    with pytest.raises(Violation, match="is off by"):
        corollaries.rational(CPU)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (lambda x: torch.where(x.abs() < 1, 255 / 512 * torch.ones_like(x), x), "whose share is at most"),
        (lambda x: torch.where(x.abs() < 1, x * 1.5, x), "not served as a dither"),
        (lambda x: torch.where(x.abs() < 1, x + 1 / 512, x), "not served as a dither"),
    ],
)
def test_tails_notices(monkeypatch: pytest.MonkeyPatch, fault: Callable[[Tensor], Tensor], said: str) -> None:
    served = Written.served_keys
    monkeypatch.setattr(Written, "served_keys", lambda self: fault(served(self)))
    with pytest.raises(Violation, match=said):
        tails.weighted_sums(CPU)
