"""Rounding toward +infinity to binary16, against the integer model of ``WitCert.Core.ru16``."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from contracts.checks._device import both_round_ups
from contracts.discharge import Outcome, Setting, Violation, discharges
from witcert.witness import ru16

INFINITY = 0x7C00
HALF_MAX = 65504 << 24
CHUNK = 1 << 24
SEED = 60601


def half_value(code: Tensor) -> Tensor:
    """Value of codes below 0x7C00 in units of 2^-24, int64 (``halfValue``)."""
    significand = torch.where(code < 1024, code, 1024 + code % 1024)
    return significand << (torch.where(code < 1024, 1, code // 1024) - 1)


def model(bits: Tensor) -> Tensor:
    """``ru16`` of the nonnegative float32 with these bits, int64, in units of 2^-24; -1 is +infinity.

    A finite float32 is ``significand * 2^(exponent - 126)`` units. Its ceiling (``ceilDiv``) keeps 11 leading bits,
    rounded up (``up11``); more than 65504 is +infinity, and so is NaN, which the theorems do not speak of.
    """
    exponent = (bits >> 23).clamp_min(1)
    significand = (bits & 0x7FFFFF) | torch.where(bits >> 23 > 0, 1 << 23, 0)
    right = (126 - exponent).clamp(0, 40)
    left = (exponent - 126).clamp(0, 18)  # from 2^18 on, every input is above 65504
    units = ((significand << left) + (1 << right) - 1) >> right
    # The exponent of a double that holds units exactly is its log2; units < 2^42.
    drop = ((units.double().view(torch.int64) >> 52) - 1023 - 10).clamp_min(0)
    rounded = (units + (1 << drop) - 1) >> drop << drop
    return torch.where((bits >= 0x7F800000) | (exponent > 143) | (rounded > HALF_MAX), -1, rounded)


def _inputs(setting: Setting) -> Iterator[Tensor]:
    """Bits of nonnegative float32 inputs, int64: all 2^31 at the full amount.

    Else each of the 31744 finite codes, its float32 neighbours, the middle to the next code and its neighbours, and
    random bits, NaN and infinity included.
    """
    if setting.full:
        for first in range(0, 1 << 31, CHUNK):
            yield torch.arange(first, first + CHUNK, device=setting.device)
        return
    code = torch.arange(INFINITY).to(torch.int16).view(torch.float16).float().view(torch.int32).long()
    following = torch.cat((code[1:], torch.tensor([0x47800000])))
    middle = (code.int().view(torch.float32) + following.int().view(torch.float32)).div(2).view(torch.int32).long()
    points = torch.cat([x + shift for x in (code, middle) for shift in (-1, 0, 1)])
    random = torch.randint(0, 1 << 31, (1 << 17,), generator=torch.Generator().manual_seed(SEED))
    yield torch.cat((points[points >= 0], random, torch.arange(0x7F7FFFFF, 0x7F800010), torch.arange(64))).to(
        setting.device
    )


def _compare(name: str, code: Tensor, bits: Tensor) -> None:
    got = torch.where(code == INFINITY, -1, half_value(code.clamp(0, INFINITY - 1)))
    expected = model(bits)
    wrong = (got != expected) | (code < 0) | (code > INFINITY)
    if bool(wrong.any()):
        at = int(wrong.nonzero()[0])
        raise Violation(
            f"{name}: {int(wrong.sum())} of {len(bits)} inputs; first: float32 {int(bits[at]):#010x} gives code "
            f"{int(code[at]):#06x}, {int(got[at])} units of 2^-24; the model says {int(expected[at])} (-1: +infinity)"
        )


@discharges("ru16_ge.conclusion", "ru16_lt_next.conclusion", "ru16_overflow.conclusion")
def ru16_exhaustive(setting: Setting) -> Outcome:
    """The device's two RU16 and the package's equal the integer model, on all 2^31 nonnegative float32 if full."""
    cases = 0
    for bits in _inputs(setting):
        x = bits.to(torch.int32).view(torch.float32)
        names = ("rounding.ru16", "rounding.ru16_code", "witness.ru16")
        for name, half in zip(names, (*both_round_ups(x), ru16(x)), strict=True):
            _compare(name, half.view(torch.int16).long(), bits)
        cases += 3 * len(bits)
    note = "every nonnegative float32, NaN and infinity included" if setting.full else "every code, its neighbours"
    return Outcome(cases, () if setting.full else (SEED,), 0.0, "bits, compared for equality", note=note)
