"""A cache read in two parts and merged: the output of the whole, and a meter of the whole that is never below the truth."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from witcert import golden
from witcert.errors import InputError
from witcert.golden import mp
from witcert.guarantees import Proved, ProvedNonadaptive
from witcert.kernels.decode import BandMeter, DecodeOutput, HalfStepMeter, PagePart, Reading, Tuning, decode, merge
from witcert.kernels.decode.budget import dot_gamma
from witcert.kernels.decode.reference import served_keys
from witcert.kernels.formats import ExactStore, PackedStore, PageTable
from witcert.witness import Bands, witness

from .build import Case
from .common import DEVICE, make
from .test_soundness import dots


def exact_side(case: Case, parts: torch.Tensor) -> tuple[ExactStore, PageTable, PagePart]:
    """A side pool of one KV head a row that holds the exact pages of part 1; everything else of it is NaN."""
    table, hkv, page = case.table, case.k.shape[1], case.table.page_size
    batch, pages = table.pages.shape
    d = case.k.shape[-1]
    pool = batch * hkv * pages
    k = torch.full((pool * page, 1, d), math.nan, dtype=case.q.dtype)
    v, w = k.clone(), torch.full((pool * page, 1, 16), math.nan, dtype=torch.float16)
    side = torch.randperm(pool).view(batch * hkv, pages).int()
    for b in range(batch):
        slots = table.slots(b).cpu()
        for h in range(hkv):
            for t, slot in enumerate(slots.tolist()):
                if parts[b, h, t // page]:
                    at = int(side[b * hkv + h, t // page]) * page + t % page
                    k[at, 0], v[at, 0] = case.k[slot, h].to(k.dtype), case.v[slot, h].to(v.dtype)
                    w[at, 0] = witness(case.k[slot, h], case.k[slot, h], Bands(d, 16), dot_gamma(d))
    lens = table.seq_lens.repeat_interleave(hkv)
    side_table = PageTable(side.to(DEVICE), lens.contiguous(), page)
    return ExactStore(k.to(DEVICE), v.to(DEVICE), w.to(DEVICE)), side_table, PagePart(parts.view(-1, 1, pages).contiguous(), 1)


def both(case: Case, meter: object, parts: torch.Tensor, **options: object) -> DecodeOutput:
    """Decode part 0 from the case's store and part 1 from the exact side pool, and merge them."""
    hkv, (batch, heads, d) = case.k.shape[1], case.q.shape
    store, table, part = exact_side(case, parts.cpu())
    part = replace(part, parts=part.parts.to(DEVICE))
    first = decode(case.q, case.store, case.table, scale=case.scale, meter=meter, part=PagePart(parts, 0), **options)  # type: ignore[arg-type]
    options = {**options, "sinks": None}
    second = decode(
        case.q.view(batch * hkv, heads // hkv, d), store, table, scale=case.scale,
        meter=None if meter is None else BandMeter(), part=part, **options,  # type: ignore[arg-type]
    )  # fmt: skip
    readings = []
    for r in second.readings:
        label = Proved(torch.as_tensor(r.meter.value).view(batch, heads), r.meter.theorem)
        readings.append(Reading(label, r.log_a.view(batch, heads), r.c_max.view(batch, heads)))
    second = DecodeOutput(second.out.view(batch, heads, d), second.lse.view(batch, heads), tuple(readings))
    return merge(first, second, tokens=case.table.max_tokens)


def random_parts(case: Case, share: float) -> torch.Tensor:
    batch, pages = case.table.pages.shape
    return (torch.rand(batch, case.k.shape[1], pages) < share).to(torch.uint8).to(DEVICE)


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("variant", ["dither-tierB", "int8-half", "exact-band", "dither-m2-tierB"])
def test_merged_meter_is_never_below_the_truth(variant: str, share: float) -> None:
    """12 variants and shares, 4 sequences (of 0, 1, 35 and 40 tokens), 4 query heads each, at 50 digits."""
    case, meter = make(variant, [35, 1, 0, 40], 2, 2, 64, 16)
    parts = random_parts(case, share)
    got = both(case, meter, parts, tuning=Tuning(16, splits=2))
    least = 1.0
    for b in range(case.table.batch):
        there = case.table.slots(b)
        slots = there.cpu()
        served = served_keys(case.store, there).cpu()
        for h in range(case.q.shape[1]):
            head = h // 2
            for t in range(len(slots)):
                if parts[b, head, t // 16]:
                    served[t, head] = case.k[slots[t], head].double()
            if not len(slots):
                assert all(float(torch.as_tensor(r.meter.value)[b, h]) == 0 for r in got.readings)
                assert not got.out[b, h].any()
                continue
            q = case.q[b, h].cpu()
            good = [golden.number(x) * case.scale for x in dots(q, case.k[slots][:, head])]
            bad = [golden.number(x) * case.scale for x in dots(q, served[:, head])]
            p = [mp.exp(x - max(bad)) for x in bad]
            truth = golden.total_variation_of_errors(p, [y - x for x, y in zip(good, bad, strict=True)])
            for r in got.readings:
                gap = golden.number(float(torch.as_tensor(r.meter.value)[b, h])) - truth
                assert gap >= 0, (b, h, float(gap))
                least = min(least, float(gap))
                if share == 1.0:
                    assert float(torch.as_tensor(r.meter.value)[b, h]) < 2e-3
    assert 0 <= least < 1


@pytest.mark.parametrize("options", [{}, {"window": 20}, {"softcap": 5.0}, {"sinks": True}], ids=str)
def test_merged_output_is_that_of_the_whole(options: dict[str, object]) -> None:
    """Where both parts serve the same numbers, reading them apart changes nothing but rounding."""
    case, meter = make("exact-band", [35, 1, 0, 40], 2, 2, 64, 16)
    store = case.store
    assert isinstance(store, ExactStore)
    case.k, case.v = store.k.cpu(), store.v.cpu()
    if "sinks" in options:
        options = {"sinks": torch.randn(4, device=DEVICE)}
    whole = decode(case.q, store, case.table, scale=case.scale, meter=meter, **options)  # type: ignore[arg-type]
    got = both(case, meter, random_parts(case, 0.5), **options)
    assert torch.allclose(got.out.float(), whole.out.float(), atol=2e-3)
    assert torch.allclose(got.lse, whole.lse, atol=1e-4)


def test_readings_keep_their_labels_and_a_nan_is_no_claim() -> None:
    case, meter = make("dither-tierB", [35, 40], 2, 2, 64, 16)
    assert isinstance(case.store, PackedStore)
    case.store.k_scale[case.table.pages[0, 0].long(), 1, 3, 0] = math.nan
    parts = torch.zeros(2, 2, case.table.pages.shape[1], dtype=torch.uint8, device=DEVICE)
    got = both(case, meter, parts)
    kinds = [type(r.meter) for r in got.readings]
    assert kinds == [Proved, ProvedNonadaptive]
    assert got.readings[1].meter.theorem == "tierB_request_sound + lse_merge"
    for r in got.readings:
        value = torch.as_tensor(r.meter.value)
        assert (value[0, 2:] == 1).all()
        assert (value[0, :2] < 1).all()
    parts[0, 1, 0] = 1  # the page with the NaN is not read any more
    got = both(case, meter, parts)
    assert all((torch.as_tensor(r.meter.value) < 1).all() for r in got.readings)


def test_refusals() -> None:
    case, meter = make("int8-half", [20], 1, 2, 64, 16)
    parts = torch.zeros(1, 1, 2, dtype=torch.uint8, device=DEVICE)
    with pytest.raises(InputError, match="index=2"):
        PagePart(parts, 2)
    with pytest.raises(InputError, match="contiguous uint8"):
        PagePart(parts.int(), 0)
    with pytest.raises(InputError, match="expected \\(1, 1, 2\\)"):
        decode(case.q, case.store, case.table, scale=1.0, part=PagePart(parts[:, :, :1].contiguous(), 0))
    a = decode(case.q, case.store, case.table, scale=1.0, meter=HalfStepMeter())
    b = decode(case.q, case.store, case.table, scale=1.0)
    with pytest.raises(InputError, match="1 readings, second 0"):
        merge(a, b, tokens=32)
    with pytest.raises(InputError, match="tokens=0"):
        merge(a, a, tokens=0)
    assert meter is not None
