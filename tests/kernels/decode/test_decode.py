"""Every variant of decode against the float64 reference: output, mass, meters; and what may not change anything."""

from __future__ import annotations

import pytest
import torch

from witcert.kernels.decode import Tuning, decode
from witcert.kernels.decode.reference import decode_reference

from .build import exact_case
from .common import DEVICE, VARIANTS, make, stacked

OPTIONS = {
    "plain": {},
    "window": {"window": 19},
    "softcap": {"softcap": 4.0},
    "sinks": {"sinks": True},
    "all": {"window": 23, "softcap": 30.0, "sinks": True},
}


def tolerance(dtype: torch.dtype) -> float:
    """Relative error of the output: rounded weights, values and output."""
    return 8e-3 if dtype == torch.bfloat16 else 1.2e-3


def check(variant: str, lens: list[int], hkv: int, group: int, d: int, page: int, option: str,
          tuning: Tuning, kind: str = "normal") -> None:  # fmt: skip
    case, meter = make(variant, lens, hkv, group, d, page, kind)
    options = dict(OPTIONS[option])
    if "sinks" in options:
        options["sinks"] = torch.randn(hkv * group).to(DEVICE)
    got = decode(case.q, case.store, case.table, scale=case.scale, meter=meter, tuning=tuning, **options)
    bare = decode(case.q, case.store, case.table, scale=case.scale, tuning=tuning, **options)
    assert torch.equal(got.out, bare.out)
    assert torch.equal(got.lse, bare.lse)
    assert got.out.isfinite().all()

    want = decode_reference(case.q, case.store, case.table, scale=case.scale, meter=meter, **options)
    out = stacked(want, "out")
    assert float((got.out.cpu().double() - out).norm() / out.norm().clamp_min(1e-9)) < tolerance(case.q.dtype)
    lse = stacked(want, "lse")
    alive = lse.isfinite()
    assert torch.equal(got.lse.cpu().isfinite(), alive)
    assert torch.allclose(got.lse.cpu().double()[alive], lse[alive], atol=2e-3)
    for i, reading in enumerate(got.readings):
        meters = stacked(want, "meters", i)
        value = torch.as_tensor(reading.meter.value).cpu().double()
        assert (value >= meters).all(), float((value - meters).min())
        assert (value <= 1).all()
        # what the kernel adds for its own arithmetic: about a tenth of a half-step bound, and a constant
        assert (value <= meters * 1.25 + 2e-4).all(), float((value - meters).max())
        empty = ~alive
        assert (value[empty] == 0).all()


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("page", [1, 16])
def test_matches_reference(variant: str, page: int) -> None:
    check(variant, [37, 1, 0, 16], 2, 3, 64, page, "plain", Tuning(tile=16, splits=2))


@pytest.mark.parametrize("option", list(OPTIONS)[1:])
@pytest.mark.parametrize("variant", ["exact-band", "dither-values-tierB"])
def test_options(variant: str, option: str) -> None:
    check(variant, [40, 5], 1, 2, 64, 16, option, Tuning(tile=16, splits=2))


@pytest.mark.parametrize(("d", "group"), [(128, 7), (256, 1), (64, 16), (128, 9)])
@pytest.mark.parametrize("variant", ["exact-band", "dither-m8-tierB"])
def test_head_dims_and_groups(variant: str, d: int, group: int) -> None:
    check(variant, [21], 1, group, d, 16, "plain", Tuning(tile=32, splits=1))


@pytest.mark.parametrize("kind", ["massive", "tiny", "flat", "zero", "huge"])
@pytest.mark.parametrize("variant", ["exact-band", "int8-half"])
def test_kinds_of_keys(variant: str, kind: str) -> None:
    case, meter = make(variant, [33], 1, 2, 64, 1, kind)
    got = decode(case.q, case.store, case.table, scale=case.scale, meter=meter, tuning=Tuning(tile=16, splits=2))
    want = decode_reference(case.q, case.store, case.table, scale=case.scale, meter=meter)
    value = torch.as_tensor(got.readings[0].meter.value).cpu().double()
    assert (value >= stacked(want, "meters")).all()
    assert got.out.isfinite().all()


@pytest.mark.parametrize("tuning", [Tuning(16, splits=1), Tuning(32, splits=3), Tuning(64, 2, splits=1), Tuning(64, 4, 2, 2)])
def test_tunings_agree(tuning: Tuning) -> None:
    """How the work is cut moves the output by rounding only."""
    case, meter = make("dither-tierB", [70, 9], 1, 2, 64, 16)
    base = decode(case.q, case.store, case.table, scale=case.scale, meter=meter, tuning=Tuning(16, splits=1))
    got = decode(case.q, case.store, case.table, scale=case.scale, meter=meter, tuning=tuning)
    assert torch.allclose(got.out.float(), base.out.float(), atol=2e-3)
    for a, b in zip(got.readings, base.readings, strict=True):
        assert torch.allclose(torch.as_tensor(a.meter.value), torch.as_tensor(b.meter.value), atol=1e-4)


def test_more_splits_than_tiles() -> None:
    case = exact_case([17, 3], 1, 2, 64, 1, device=DEVICE)
    many = decode(case.q, case.store, case.table, scale=case.scale, tuning=Tuning(16, splits=9))
    one = decode(case.q, case.store, case.table, scale=case.scale, tuning=Tuning(16, splits=1))
    assert torch.allclose(many.out.float(), one.out.float(), atol=1e-3)


def test_deterministic() -> None:
    case, meter = make("dither-values-tierB", [50, 20], 1, 3, 64, 16)
    runs = [decode(case.q, case.store, case.table, scale=case.scale, meter=meter) for _ in range(2)]
    assert torch.equal(runs[0].out, runs[1].out)
    for a, b in zip(runs[0].readings, runs[1].readings, strict=True):
        assert torch.equal(torch.as_tensor(a.meter.value), torch.as_tensor(b.meter.value))
        assert torch.equal(a.log_a, b.log_a)
        assert torch.equal(a.c_max, b.c_max)
