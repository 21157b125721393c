"""The kernel's meters against 50-digit arithmetic on the stored bits: never below, with zero tolerance.

For each query and head three things are recomputed. The truth: the total variation between attention over the exact keys
and over the served keys, both as real numbers, with window, soft cap and sink. The meter of real-number bounds (band norms
of the true residual, half a step, the radius of the dither's law) under the real served weights. And C and A of these
bounds with the logit's arithmetic on top, by the derived constants without their margins.

With ``-s`` the number of cells and the smallest distances are printed; docs/error-budget/extend.md quotes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.kernels.decode.test_soundness import dots, real_bounds
from witcert import golden
from witcert.golden import mp
from witcert.kernels.decode.budget import dot_gamma
from witcert.kernels.decode.reference import outlier_mask, served_keys, steps
from witcert.kernels.formats import PackedStore
from witcert.schemes.grid import STEP

from .build import Chunk, chunk_case, meters

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@dataclass
class Tally:
    """Readings compared in this module, and how near to the limit they came."""

    readings: int = 0
    truth: float = 1.0
    meter: float = 1.0
    share: float = 1.0

    def add(self, reading: Any, truth: Any, wanted: Any) -> None:
        self.readings += 1
        self.truth = min(self.truth, float(reading - truth))
        if 1e-30 < wanted < 0.99:  # near 1 every two meters are near; one token alone has a meter of 0
            self.meter = min(self.meter, float(reading - wanted))
            self.share = min(self.share, float(reading / wanted - 1))


@pytest.fixture(scope="module")
def tally() -> Iterator[Tally]:
    found = Tally()
    yield found
    print(f"\n{found.readings} readings, seed 20261129: at least {found.truth:.2e} above the total variation, "
          f"{found.meter:.2e} ({found.share:.1e} of it) above the real meter")  # fmt: skip


def capped(case: Chunk, logits: list[Any]) -> list[Any]:
    cap = case.options.get("softcap")
    return logits if cap is None else [mp.mpf(cap) * mp.tanh(x / mp.mpf(cap)) for x in logits]


def arithmetic(case: Chunk, q: Tensor, served: Tensor, own: Tensor, sink: list[Any]) -> list[Any]:
    """What one logit's arithmetic may cost, twice, derived once more and without margins: prefix, chunk, sink."""
    gamma = 0.0  # an exact store's is in the witness
    if isinstance(case.store, PackedStore):
        gamma = 2 * (2 * len(q) / 16 * 18 * 2.0**-23 + (2.0**-22 if q.dtype == torch.float16 else 2.0**-16))
    size = mp.mpf(case.scale) * golden.norm(q.double().tolist())
    cap = 2 * mp.mpf(case.options.get("softcap", 0.0)) / 2**19
    prefix = [size * golden.norm(k) * gamma + cap for k in served.double().tolist()]
    chunk = [size * golden.norm(k) * dot_gamma(len(q)) + cap for k in own.double().tolist()]
    return prefix + chunk + [abs(x) / 2**22 for x in sink]


def check(case: Chunk, tally: Tally) -> None:
    """Compare every reading of every cell."""
    assert case.meter is not None
    got = case.run()
    values = meters(got)
    compared = 0
    window = case.options.get("window", 10**9)
    sinks = case.options.get("sinks")
    scale = Fraction(case.scale)
    for b, n in enumerate(case.lens.tolist()):
        every = case.table.slots(b)
        for i in range(n):
            start = max(0, len(every) + i + 1 - window)
            slots, own = every[start:], case.k[b, max(0, start - len(every)) : i + 1].cpu()
            all_served, all_exact = served_keys(case.store, slots).cpu(), case.exact[slots.cpu()].double()
            for h in range(case.q.shape[2]):
                q, head = case.q[b, i, h].cpu(), h // case.group
                served, exact, new = all_served[:, head], all_exact[:, head], own[:, head].double()
                good = [golden.number(x * scale) for x in dots(q, torch.cat((exact, new)))]
                bad = [golden.number(x * scale) for x in dots(q, torch.cat((served, new)))]
                good, bad = capped(case, good), capped(case, bad)
                sink = [] if sinks is None else [golden.number(float(sinks[h]))]
                top = max(bad + sink)
                p = [mp.exp(x - top) for x in bad + sink]
                truth = golden.total_variation_of_errors(p, [y - x for x, y in zip(good + sink, bad + sink, strict=True)])
                paid = arithmetic(case, q, served, new, sink)
                rest = [mp.mpf(0)] * (len(new) + len(sink))
                found = real_bounds(case, case.meter, exact, served, slots, head, q) if len(slots) else [[]] * len(values)  # type: ignore[arg-type]
                for r, c in enumerate(found):
                    reading, c = golden.number(float(values[r][b, i, h])), list(c) + rest
                    assert reading >= truth, (b, i, h, r, float(reading - truth))
                    wanted = golden.meter(p, c)
                    assert reading >= wanted, (b, i, h, r, float(reading - wanted))
                    full = [x + y for x, y in zip(c, paid, strict=True)]
                    assert golden.number(float(got.readings[r].c_max[b, i, h])) >= golden.c_max(full)
                    # A is inflated by the launch constant, more than 1 + 4e-5, on top of the larger c
                    assert golden.number(float(got.readings[r].log_a[b, i, h])) >= mp.log(golden.acert(p, full)) + 2e-5
                    tally.add(reading, truth, wanted)
                    compared += 1
    assert compared == int(case.lens.sum()) * case.q.shape[2] * len(values)


VARIANTS = [
    "exact-band",
    "exact-band8-bf16",
    "int8-m4-half",
    "int8-band",
    "dither-half",
    "dither-m2-tierB",
    "dither-values-m16-bf16-tierB",
]


@pytest.mark.parametrize("options", ["plain", "window-softcap-sinks"])
@pytest.mark.parametrize("kind", ["normal", "massive", "flat", "tiny"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_never_below_the_golden_meter(variant: str, kind: str, options: str, tally: Tally) -> None:
    check(chunk_case(variant, [19, 1], [2, 4], kind=kind, page=1, options=options, window=9), tally)


@pytest.mark.parametrize("variant", ["int8-m4-half", "dither-m2-tierB"])
@pytest.mark.parametrize("options", ["window", "softcap", "sinks"])
def test_options_alone(variant: str, options: str, tally: Tally) -> None:
    check(chunk_case(variant, [16, 0], [3, 2], page=16, options=options, window=5), tally)


@pytest.mark.parametrize("variant", ["int8-half", "exact-band", "dither-half"])
@pytest.mark.parametrize("size", [1.0, 8.0, 2.0**-10])
@pytest.mark.parametrize("options", ["plain", "softcap-sinks"])
def test_queries_along_the_residual(variant: str, size: float, options: str, tally: Tally) -> None:
    """An adaptive adversary: each query is aligned with the residual of one token, as large as half a step allows."""
    case = chunk_case(variant, [12], [3], page=1, options=options)
    slots = case.table.slots(0)
    residual = served_keys(case.store, slots).cpu() - case.exact[slots.cpu()].double()
    for i in range(3):
        for h in range(2):
            case.q[0, i, h] = (torch.sign(residual[3 * i + h, 0]) * size).to(case.q.dtype)
    check(case, tally)


def test_residuals_of_exactly_half_a_step(tally: Tally) -> None:
    """Keys halfway between codes: the half-step bound is attained up to the arithmetic, in every channel of a query."""
    case = chunk_case("int8-half", [9], [3], group=1, page=1)
    assert isinstance(case.store, PackedStore)
    slots = case.table.slots(0)
    sign = torch.where(torch.rand(len(slots), 1, 64) < 0.5, -1.0, 1.0).double()
    step = (steps(case.store, slots) / STEP).cpu()
    case.exact = case.exact.double()
    case.exact[slots.cpu()] = served_keys(case.store, slots).cpu() - sign * step / 2
    for i in range(3):
        case.q[0, i, 0] = sign[i, 0].to(case.q.dtype)
    check(case, tally)


def test_bfloat16_outliers_that_float16_cannot_hold(tally: Tally) -> None:
    """An outlier channel is stored as float16: a bfloat16 key of 1e-6 loses up to 2^-25, which a query of 3e4 shows."""
    case = chunk_case("dither-m16-bf16-tierB", [19, 5], [2, 2], kind="tiny", page=1)
    assert isinstance(case.store, PackedStore)
    mask = outlier_mask(case.store)[0].cpu()
    slots = case.table.slots(0)
    lost = served_keys(case.store, slots).cpu()[:, 0] - case.exact[slots.cpu()][:, 0].double()
    assert float(lost[:, mask].abs().max()) > 2.0**-26  # otherwise this test would show nothing
    for i in range(2):
        for h in range(2):
            # the query sees outlier channels only, along the loss of one token: no other term of the bound can pay for it
            case.q[:, i, h] = torch.where(mask, 3e4 * torch.sign(lost[5 * i + 3 * h]), 0.0).to(case.q.dtype)
    check(case, tally)


@pytest.mark.parametrize("variant", ["exact-band8-bf16", "dither-m16-bf16-tierB"])
def test_bfloat16_queries_whose_squares_underflow(variant: str, tally: Tally) -> None:
    """A query of 1e-21: its band norms, from sums of squares in float32, would be 0, and so would every bound."""
    case = chunk_case(variant, [7], [2], page=1)
    case.q.mul_(1e-21)
    check(case, tally)
    # ... and one of 1e-23 with new keys of 1e18, whose arithmetic is worth more than any slack
    case = chunk_case(variant, [0], [2], page=1)
    case.q.mul_(1e-23)
    case.k.mul_(1e18)
    check(case, tally)


@pytest.mark.parametrize("options", ["plain", "softcap", "sinks"])
def test_bounds_of_nothing_but_arithmetic(options: str, tally: Tally) -> None:
    """No prefix: products, or beside tiny ones a cap of 50 and a sink of 40, are all that there is to pay for."""
    kind = "normal" if options == "plain" else "tiny"
    case = chunk_case("int8-half", [0], [3], kind=kind, options=options, softcap=50.0)
    if options == "sinks":
        case.options["sinks"].fill_(40.0)
    check(case, tally)
