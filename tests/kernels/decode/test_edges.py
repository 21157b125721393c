"""What must not leak in, and what must be refused: poison, stale slots, NaN and infinity, empty input, bad arguments."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from witcert.errors import InputError
from witcert.guarantees import Proved, ProvedNonadaptive
from witcert.kernels.decode import BandMeter, HalfStepMeter, TierBMeter, Tuning, decode
from witcert.kernels.formats import Dither, ExactStore, PackedStore, PageTable

from .build import exact_case, owned, packed_case
from .common import BUDGET, DEVICE, make

SMALL = Tuning(16, splits=2)


@pytest.mark.parametrize("variant", ["exact-band", "int8-half", "dither-m2-tierB"])
def test_unowned_slots_do_not_matter(variant: str) -> None:
    """Whatever lies in slots of no sequence, the result has the same bits (they hold NaN to begin with)."""
    case, meter = make(variant, [21, 3], 1, 2, 64, 16)
    before = decode(case.q, case.store, case.table, scale=case.scale, meter=meter, tuning=SMALL)
    free = ~owned(case.table, case.store.slots).to(DEVICE)
    store = case.store
    if isinstance(store, ExactStore):
        assert store.witness is not None
        for x in (store.k, store.v, store.witness):
            x[free] = 3.0
    else:
        rows = free.view(-1, 16)
        for y in (store.k_code, store.v_code):
            y.transpose(1, 2)[rows] = -5
        for x in (store.k_scale, store.v_scale):
            x.transpose(1, 2)[rows] = 1.0
    after = decode(case.q, case.store, case.table, scale=case.scale, meter=meter, tuning=SMALL)
    assert before.out.isfinite().all()
    assert torch.equal(before.out, after.out)
    for a, b in zip(before.readings, after.readings, strict=True):
        assert torch.equal(torch.as_tensor(a.meter.value), torch.as_tensor(b.meter.value))


def test_stale_epoch_changes_the_keys() -> None:
    """The dither is that of the slot's epoch: with another epoch the same codes are other keys."""
    case = packed_case([20], 1, 2, 64, 16, dither=Dither(1, 0), device=DEVICE)
    assert isinstance(case.store, PackedStore)
    assert case.store.epochs is not None
    before = decode(case.q, case.store, case.table, scale=case.scale, tuning=SMALL)
    case.store.epochs.add_(1)
    after = decode(case.q, case.store, case.table, scale=case.scale, tuning=SMALL)
    assert not torch.equal(before.out, after.out)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_key_not_finite_means_meter_one(bad: float) -> None:
    case, meter = make("exact-band", [30, 4], 1, 2, 64, 1)
    assert isinstance(case.store, ExactStore)
    assert case.store.witness is not None
    slot = int(case.table.slots(0)[17])
    case.store.k[slot, 0, 5] = bad
    case.store.witness[slot, 0] = math.inf
    got = decode(case.q, case.store, case.table, scale=case.scale, meter=meter, tuning=SMALL)
    value = torch.as_tensor(got.readings[0].meter.value)
    assert (value[0] == 1).all()
    assert (value[1] < 1).all()
    assert (got.readings[0].log_a[0] == math.inf).all()


def test_only_token_at_minus_infinity() -> None:
    """No mass is left, yet a token was there: no claim."""
    case, meter = make("exact-band", [1], 1, 1, 64, 1)
    assert isinstance(case.store, ExactStore)
    assert case.store.witness is not None
    slot = int(case.table.slots(0)[0])
    case.q.fill_(1.0)
    case.store.k[slot] = -math.inf
    case.store.witness[slot] = math.inf
    got = decode(case.q, case.store, case.table, scale=case.scale, meter=meter, tuning=SMALL)
    assert (torch.as_tensor(got.readings[0].meter.value) == 1).all()


@pytest.mark.parametrize("variant", ["int8-half", "dither-tierB"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_scale_not_finite_means_meter_one(variant: str, bad: float) -> None:
    case, meter = make(variant, [30, 4], 1, 2, 64, 1)
    assert isinstance(case.store, PackedStore)
    case.store.k_scale[int(case.table.slots(0)[3]), 0, 0, 1] = bad
    got = decode(case.q, case.store, case.table, scale=case.scale, meter=meter, tuning=SMALL)
    for reading in got.readings:
        assert (torch.as_tensor(reading.meter.value)[0] == 1).all()
        assert (torch.as_tensor(reading.meter.value)[1] < 1).all()


@pytest.mark.parametrize("variant", ["exact-band", "int8-half", "dither-tierB"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_query_not_finite_means_meter_one(variant: str, bad: float) -> None:
    case, meter = make(variant, [18], 1, 2, 64, 1)
    case.q[0, 0, 7] = bad
    got = decode(case.q, case.store, case.table, scale=case.scale, meter=meter, tuning=SMALL)
    for reading in got.readings:
        value = torch.as_tensor(reading.meter.value)
        assert value[0, 0] == 1
        assert value[0, 1] < 1


def test_value_scale_not_finite_shows_in_the_output() -> None:
    case = packed_case([18], 1, 2, 64, 1, device=DEVICE)
    assert isinstance(case.store, PackedStore)
    case.store.v_scale[int(case.table.slots(0)[3]), 0, 0, 1] = math.inf
    got = decode(case.q, case.store, case.table, scale=case.scale, tuning=SMALL)
    assert got.out[..., 32:].isnan().all()
    assert got.out[..., :32].isfinite().all()


def test_largest_numbers() -> None:
    """Keys and values at the end of float16: finite output, meters within [0, 1]."""
    case = packed_case([18], 1, 2, 64, 1, device=DEVICE)
    assert isinstance(case.store, PackedStore)
    rows = case.table.slots(0)
    case.store.v_scale[rows] = 516.0
    case.store.v_code[rows] = 127
    case.store.k_scale[rows] = 65504.0
    got = decode(case.q, case.store, case.table, scale=case.scale, meter=HalfStepMeter(), tuning=SMALL)
    assert got.out.isfinite().all()
    assert (torch.as_tensor(got.readings[0].meter.value) == 1).all()


def test_no_sequences_and_empty_sequences() -> None:
    case = exact_case([5], 1, 2, 64, 1, device=DEVICE)
    none = PageTable(case.table.pages[:0], case.table.seq_lens[:0], 1)
    assert none.batch == 0
    assert decode(case.q[:0], case.store, none, scale=1.0, meter=BandMeter()).out.shape == (0, 2, 64)
    empty = PageTable(case.table.pages, torch.zeros_like(case.table.seq_lens), 1)
    got = decode(case.q, case.store, empty, scale=1.0, meter=BandMeter(), tuning=SMALL)
    assert (got.out == 0).all()
    assert (got.lse == -math.inf).all()
    assert (torch.as_tensor(got.readings[0].meter.value) == 0).all()


def test_sink_alone() -> None:
    """With no token and a sink, all mass is the sink's: no output, its logit is the mass, nothing to bound."""
    case = exact_case([5], 1, 2, 64, 1, device=DEVICE)
    empty = PageTable(case.table.pages, torch.zeros_like(case.table.seq_lens), 1)
    sinks = torch.tensor([1.5, -2.0], device=DEVICE)
    got = decode(case.q, case.store, empty, scale=1.0, meter=BandMeter(), sinks=sinks, tuning=SMALL)
    assert (got.out == 0).all()
    assert torch.allclose(got.lse[0], sinks, atol=1e-5)
    assert (torch.as_tensor(got.readings[0].meter.value) < 1e-4).all()


def test_labels() -> None:
    case, meter = make("dither-tierB", [9], 1, 2, 64, 1)
    got = decode(case.q, case.store, case.table, scale=case.scale, meter=meter, tuning=SMALL)
    assert [type(r.meter) for r in got.readings] == [Proved, ProvedNonadaptive]
    assert [r.meter.theorem for r in got.readings] == ["tierB_adaptive_sound", "tierB_request_sound"]
    assert [r.meter.delta for r in got.readings] == [BUDGET.delta_req] * 2
    half = decode(case.q, case.store, case.table, scale=case.scale, meter=HalfStepMeter(), tuning=SMALL)
    assert half.readings[0].meter.delta == 0.0


def test_refusals() -> None:
    case = exact_case([9], 2, 2, 64, 16, device=DEVICE)
    packed = packed_case([9], 2, 2, 64, 16, device=DEVICE)
    bare = exact_case([9], 2, 2, 64, 16, bands=None, device=DEVICE)
    wide = exact_case([9], 1, 17, 64, 16, device=DEVICE)
    q, store, table, scale = case.q, case.store, case.table, case.scale
    refused = [
        ("q is not", (q.float(), store, table), {}),
        ("q has shape", (q[:, :3].contiguous(), store, table), {}),
        ("q is not contiguous", (q.transpose(0, 1).contiguous().transpose(0, 1).expand(1, 4, 64)[:, ::2], store, table), {}),
        ("expected at most 16", (wide.q, wide.store, wide.table), {}),
        ("they must agree", (q.bfloat16(), store, table), {}),
        ("page_size 16", (packed.q, packed.store, replace(packed.table, page_size=1)), {}),
        ("needs a store with a witness", (bare.q, bare.store, bare.table), {"meter": BandMeter()}),
        ("needs a packed store", (q, store, table), {"meter": HalfStepMeter()}),
        ("needs a packed store with dither", (packed.q, packed.store, packed.table), {"meter": TierBMeter(BUDGET, 99)}),
        ("meter is str", (q, store, table), {"meter": "half"}),
        ("scale", (q, store, table), {"scale": 0.0}),
        ("scale", (q, store, table), {"scale": math.nan}),
        ("softcap", (q, store, table), {"softcap": -1.0}),
        ("window", (q, store, table), {"window": 0}),
        ("sinks", (q, store, table), {"sinks": torch.zeros(3, device=DEVICE)}),
        ("table is", (q, store, None), {}),
        ("store is", (q, None, table), {}),
    ]
    for message, arguments, options in refused:
        with pytest.raises(InputError, match=message):
            decode(*arguments, **{"scale": scale, **options})  # type: ignore[arg-type]
    dithered = packed_case([9], 2, 2, 64, 16, dither=Dither(0, 0), device=DEVICE)
    with pytest.raises(InputError, match="the meter speaks of 4"):
        decode(dithered.q, dithered.store, dithered.table, scale=scale, meter=TierBMeter(BUDGET, 4))
    for bad in ({"warms": 1}, {"tile": 48}, {"warps": 3}, {"stages": 0}, {"splits": 0}, {"tile": 16, "warps": 2}):
        with pytest.raises((InputError, TypeError)):
            Tuning(**bad)  # type: ignore[arg-type]
    for tokens in (0, 2**25, True):
        with pytest.raises(InputError, match="tokens"):
            TierBMeter(BUDGET, tokens)
    with pytest.raises(InputError, match="pairing"):
        BandMeter("both")  # type: ignore[arg-type]


def test_adjacent_pairs() -> None:
    """A witness of adjacent pairs is read with the query's norms of adjacent pairs."""
    case = exact_case([20], 1, 2, 64, 1, noise=0.1, pairing="adjacent", device=DEVICE)
    from witcert.kernels.decode.reference import decode_reference

    meter = BandMeter("adjacent")
    got = decode(case.q, case.store, case.table, scale=case.scale, meter=meter, tuning=SMALL)
    want = decode_reference(case.q, case.store, case.table, scale=case.scale, meter=meter)[0]
    for h in range(2):
        value = float(torch.as_tensor(got.readings[0].meter.value)[0, h])
        assert float(want[h].meters[0]) <= value <= float(want[h].meters[0]) * 1.01
