"""A prefix read in two parts and merged: the output of the whole, and a meter of every query that is never below the truth."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.kernels.decode.common import DEVICE, VARIANTS
from tests.kernels.decode.test_merge import exact_side as decode_side
from tests.kernels.decode.test_soundness import dots
from witcert import golden
from witcert.errors import InputError
from witcert.golden import mp
from witcert.guarantees import Proved, ProvedNonadaptive
from witcert.kernels.decode import BandMeter, HalfStepMeter, PagePart, Reading
from witcert.kernels.decode.reference import served_keys
from witcert.kernels.extend import ExtendOutput, extend, merge_extend
from witcert.kernels.formats import ExactStore, PackedStore

from .build import Chunk, chunk_case, meters, same_bits, tensors
from .test_soundness import capped

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

ALL = "window-softcap-sinks"


def random_parts(case: Chunk, share: float) -> Tensor:
    batch, pages = case.table.pages.shape
    return (torch.rand(batch, case.store.kv_heads, pages) < share).to(torch.uint8).to(DEVICE)


def by_head(x: Tensor, hkv: int) -> Tensor:
    """[batch, C, Hq, ...] as rows of one KV head each, [batch * Hkv, C, G, ...]."""
    batch, chunk, heads = x.shape[:3]
    return x.view(batch, chunk, hkv, heads // hkv, *x.shape[3:]).transpose(1, 2).flatten(0, 1).contiguous()


def by_row(x: Tensor, batch: int) -> Tensor:
    """The inverse of by_head."""
    x = x.unflatten(0, (batch, -1)).transpose(1, 2)
    return x.flatten(2, 3).contiguous()


def second_read(case: Chunk, parts: Tensor, **options: Any) -> ExtendOutput:
    """Part 1 from an exact side pool of one KV head a row (everything else of it is NaN), without the chunk's own keys."""
    hkv, batch = case.store.kv_heads, len(case.lens)
    old = decode_side(_stored(case), parts.cpu())
    part = replace(old[2], parts=old[2].parts.to(DEVICE))
    options = {"meter": None if case.meter is None else BandMeter(), **case.options, "sinks": None, **options}
    got = extend(
        by_head(case.q, hkv), None, None, old[0], old[1], case.lens.repeat_interleave(hkv), scale=case.scale, part=part,
        own=False, **options,
    )  # fmt: skip
    readings = tuple(
        Reading(r.meter.map(lambda x: by_row(x, batch)), by_row(r.log_a, batch), by_row(r.c_max, batch))
        for r in got.readings
    )
    return ExtendOutput(by_row(got.out, batch), by_row(got.lse, batch), readings)


def _stored(case: Chunk) -> Any:
    """The case as decode's tests know it: exact keys and values [slots, Hkv, d]."""
    from types import SimpleNamespace

    values = case.exact if isinstance(case.store, PackedStore) else case.store.v.cpu()
    return SimpleNamespace(table=case.table, k=case.exact.cpu(), v=values.cpu(), q=case.q)


def both(case: Chunk, parts: Tensor, **changes: Any) -> ExtendOutput:
    """The codes of part 0 with the chunk and the sinks, the exact rows of part 1, and the two merged."""
    first = case.run(part=PagePart(parts, 0), **changes)
    return merge_extend(first, second_read(case, parts), tokens=case.table.max_tokens)


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("variant", VARIANTS)
def test_one_part_is_the_reference_without_the_other(variant: str, own: bool) -> None:
    """Each part by itself, plain and with all options: what belongs to the other is as if it were not cached."""
    for options in ("plain", ALL):
        case = chunk_case(variant, [50, 1, 0, 33], [5, 3, 4, 0], chunk=6, hkv=2, options=options, window=40)
        parts = random_parts(case, 0.5)
        parts[0, 0], parts[0, 1] = 0, 1
        for index in (0, 1):
            part = PagePart(parts, index)
            got, bare = case.run(part=part, own=own), case.run(part=part, own=own, meter=None)
            assert torch.equal(got.out, bare.out)
            assert torch.equal(got.lse, bare.lse)
            rows = case.reference(part=part, own=own)
            tolerance = 1.5e-2 if case.q.dtype == torch.bfloat16 else 2e-3
            for (b, i, h), row in rows.items():
                if not len(row.p):
                    assert all(not bool(x[b, i, h].any()) for x in (*tensors(got)[:1], *tensors(got)[2:]))
                    assert float(got.lse[b, i, h]) == -math.inf
                    continue
                error = float((got.out[b, i, h].double() - row.out).norm() / row.out.norm().clamp_min(0.05))
                assert error < tolerance, (b, i, h, error)
                assert abs(float(got.lse[b, i, h]) - float(row.lse)) < 2e-3
                for value, wanted in zip(meters(got), row.meters, strict=True):
                    assert float(wanted) <= float(value[b, i, h]) <= float(wanted) * 1.1 + 3e-4
            for b, n in enumerate(case.lens.tolist()):
                assert not bool(got.out[b, n:].any())
                assert bool((got.lse[b, n:] == -torch.inf).all())
                assert all(not bool(x[b, n:].any()) for x in tensors(got)[2:])


@pytest.mark.parametrize("variant", ["exact-band", "int8-m4-half", "dither-m2-tierB"])
def test_one_part_of_everything_is_everything(variant: str) -> None:
    """A part that has all pages gives the bits of a read without parts."""
    case = chunk_case(variant, [50, 0, 16], [5, 3, 4], hkv=2, options=ALL, window=40)
    assert same_bits(case.run(), case.run(part=PagePart(random_parts(case, 0.0), 0)))
    assert same_bits(case.run(), case.run(part=PagePart(random_parts(case, 1.0), 1)))


def test_what_belongs_to_the_other_part_is_not_read() -> None:
    """Its pages point nowhere, its codes and witnesses are NaN; and without own, keys of the chunk are NaN, or None."""
    case = chunk_case("dither-m2-tierB", [50, 20], [5, 3], options="softcap")
    parts = random_parts(case, 0.0)
    parts[0, 0, 1] = 1
    before = case.run(part=PagePart(parts, 0))
    assert isinstance(case.store, PackedStore)
    lost = case.table.pages[0, 1].long()
    for x in (case.store.k_scale, case.store.v_scale, case.store.k_outlier):
        assert x is not None
        x[lost] = math.nan
    case.table.pages[0, 1] = 2**31 - 1
    assert same_bits(before, case.run(part=PagePart(parts, 0)))
    bare = case.run(part=PagePart(parts, 0), own=False)
    case.k.fill_(math.nan)
    case.v.fill_(math.nan)
    assert same_bits(bare, case.run(part=PagePart(parts, 0), own=False))
    none = extend(case.q, None, None, case.store, case.table, case.lens, scale=case.scale, meter=case.meter, softcap=4.0,
                  part=PagePart(parts, 0), own=False)  # fmt: skip
    assert same_bits(bare, none)


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("options", ["plain", ALL])
@pytest.mark.parametrize("variant", ["dither-tierB", "int8-half", "exact-band", "dither-m16-bf16-tierB", "dither-half"])
def test_merged_meter_is_never_below_the_truth(variant: str, options: str, share: float) -> None:
    """Prefixes of 35, 1, 0 and 40 tokens, every query and head at 50 digits: the truth of the mixture, zero tolerance."""
    case = chunk_case(variant, [35, 1, 0, 40], [2, 3, 2, 0], chunk=4, hkv=2, options=options, window=30)
    parts = random_parts(case, share)
    got = both(case, parts)
    window, sinks, compared = case.options.get("window", 10**9), case.options.get("sinks"), 0
    for b, n in enumerate(case.lens.tolist()):
        every = case.table.slots(b)
        served = served_keys(case.store, every).cpu()
        exact = case.exact[every.cpu()].double()
        swap = parts[b].bool().cpu().repeat_interleave(16, 1)[:, : len(every)].T  # [T, Hkv]
        mixed = torch.where(swap[..., None], exact, served)
        for i in range(n):
            start = max(0, len(every) + i + 1 - window)
            new = case.k[b, max(0, start - len(every)) : i + 1].cpu().double()
            for h in range(4):
                q, head = case.q[b, i, h].cpu(), h // 2
                good, bad = (
                    capped(case, [golden.number(x) * case.scale for x in dots(q, torch.cat((x[start:, head], new[:, head])))])
                    for x in (exact, mixed)
                )
                sink = [] if sinks is None else [golden.number(float(sinks[h]))]
                top = max(bad + sink)
                p = [mp.exp(x - top) for x in bad + sink]
                truth = golden.total_variation_of_errors(p, [y - x for x, y in zip(good + sink, bad + sink, strict=True)])
                for value in meters(got):
                    gap = golden.number(float(value[b, i, h])) - truth
                    assert gap >= 0, (b, i, h, float(gap))
                    compared += 1
                    if share == 1.0:
                        assert float(value[b, i, h]) < 2e-3
    assert compared == 7 * 4 * len(got.readings)


@pytest.mark.parametrize("options", ["plain", "window", "softcap", "sinks", ALL])
def test_merged_output_is_that_of_the_whole(options: str) -> None:
    """Where both parts serve the same numbers, reading them apart changes nothing but rounding."""
    case = chunk_case("exact-band", [50, 1, 0, 40], [5, 3, 4, 0], chunk=6, hkv=2, options=options, window=20)
    assert isinstance(case.store, ExactStore)
    case.exact = case.store.k.cpu()
    whole, got = case.run(), both(case, random_parts(case, 0.5))
    assert torch.allclose(got.out.float(), whole.out.float(), atol=2e-3)
    assert torch.allclose(got.lse, whole.lse, atol=1e-4)
    for b, n in enumerate(case.lens.tolist()):
        assert not bool(got.out[b, n:].any())
        assert bool((got.lse[b, n:] == -math.inf).all())
        assert all(not bool(x[b, n:].any()) for x in tensors(got)[2:])


def test_a_chunk_that_is_counted_twice_would_show() -> None:
    """The reason for own: with the chunk in both reads the merged log-sum-exp is that of another set of tokens."""
    case = chunk_case("exact-band", [20], [4])
    assert isinstance(case.store, ExactStore)
    whole, parts = case.run(), random_parts(case, 0.0)
    parts[0, 0, 1] = 1
    reads = [case.run(part=PagePart(parts, i)) for i in (0, 1)]
    assert not torch.allclose(merge_extend(*reads, tokens=32).lse, whole.lse, atol=1e-2)
    reads[1] = case.run(part=PagePart(parts, 1), own=False)
    assert torch.allclose(merge_extend(*reads, tokens=32).lse, whole.lse, atol=1e-4)


def test_readings_keep_their_labels_and_a_nan_is_no_claim() -> None:
    case = chunk_case("dither-tierB", [35, 40], [2, 3], hkv=2)
    assert isinstance(case.store, PackedStore)
    case.store.k_scale[case.table.pages[0, 0].long(), 1, 3, 0] = math.nan
    parts = random_parts(case, 0.0)
    got = both(case, parts)
    assert [type(r.meter) for r in got.readings] == [Proved, ProvedNonadaptive]
    assert got.readings[0].meter.theorem == "tierB_adaptive_sound + lse_merge"
    for value in meters(got):
        assert bool((value[0, :2, 2:] == 1).all())
        assert bool((value[0, :2, :2] < 1).all())
        assert bool((value[1] < 1).all())
    parts[0, 1, 0] = 1  # the page with the NaN is not read any more
    assert all(bool((value < 1).all()) for value in meters(both(case, parts)))


@pytest.mark.parametrize("far", [0.0, 20.0, 60.0, 80.0])
@pytest.mark.parametrize("size", [0.0, 3.0, 900.0])
def test_a_light_part_with_a_large_accumulator(far: float, size: float) -> None:
    """A part e^-far lighter whose A is e^far: the rounding of its log-sum-exp, relative to a large number, is paid for."""
    shape = (1, 40, 1)
    unit = torch.rand(shape, dtype=torch.float64)
    true = [torch.full(shape, size, dtype=torch.float64) + unit, size - far - torch.rand(shape, dtype=torch.float64)]
    lse = [x.float() for x in true]
    lse[1] = torch.where(lse[1].double() > true[1], lse[1].nextafter(torch.tensor(-math.inf)), lse[1])  # the unsafe side
    log_a = [torch.full(shape, 1e-3), torch.full(shape, max(far, 1e-3))]

    def output(i: int) -> ExtendOutput:
        out = torch.zeros(*shape, 64, dtype=torch.float16, device=DEVICE)
        value, c = (x.to(DEVICE) for x in (torch.ones(shape), log_a[i] + 1.0))
        return ExtendOutput(out, lse[i].to(DEVICE), (Reading(Proved(value, "meter_sound"), log_a[i].to(DEVICE), c),))

    got = merge_extend(output(0), output(1), tokens=16).readings[0].log_a.cpu().double()
    for t in range(40):
        la, lb = (golden.number(float(x[0, t, 0])) for x in true)
        a, b = (mp.expm1(golden.number(float(x[0, t, 0]))) for x in log_a)
        excess = (mp.exp(la) * a + mp.exp(lb) * b) / (mp.exp(la) + mp.exp(lb))
        assert golden.number(float(got[0, t, 0])) >= mp.log1p(excess)


def test_refusals() -> None:
    case = chunk_case("int8-half", [20], [3], hkv=2)
    parts = random_parts(case, 0.0)
    none = (case.q, None, None, *case.arguments()[3:])
    for match, arguments, options in (
        ("k is NoneType", none, {}),
        ("own=1 is", case.arguments(), {"own": 1}),
        ("part is Tensor", case.arguments(), {"part": parts}),
        ("expected \\(1, 2, 2\\)", case.arguments(), {"part": PagePart(parts[:, :1].contiguous(), 0)}),
        ("k has shape", (case.q, case.k[:, :1].contiguous(), None, *case.arguments()[3:]), {"own": False}),
    ):
        with pytest.raises(InputError, match=match):
            extend(*arguments, **({"scale": 1.0} | options))  # type: ignore[arg-type]
    a, b = case.run(), case.run(meter=None)
    other = chunk_case("int8-half", [20], [2], hkv=2).run()
    for match, first, second, tokens in (
        ("1 readings, second 0", a, b, 32), ("tokens=-1", a, a, -1), ("tokens=16777217", a, a, 2**24 - 2),
        ("second is Tensor", a, a.out, 32), ("second is \\(1, 2", a, other, 32),
    ):  # fmt: skip
        with pytest.raises(InputError, match=match):
            merge_extend(first, second, tokens=tokens)  # type: ignore[arg-type]
    assert isinstance(case.meter, HalfStepMeter)
