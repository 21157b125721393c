"""What must not leak in, and what must be refused: poison, stale slots, NaN and infinity, overflow, bad arguments."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.kernels.decode.build import exact_case, owned
from tests.kernels.decode.common import BUDGET, DEVICE
from tests.kernels.stores import poisoned_store
from witcert.errors import InputError
from witcert.guarantees import Proved, ProvedNonadaptive
from witcert.kernels.decode import BandMeter, HalfStepMeter, TierBMeter
from witcert.kernels.dither_int8_write import dither_int8_write
from witcert.kernels.extend import extend
from witcert.kernels.formats import Dither, ExactStore, PackedStore, PageTable
from witcert.kernels.rtn_write import rtn_write

from .build import Chunk, chunk_case, meters, poison_chunk, same_bits, tensors

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

VARIANTS = ["exact-band", "int8-m4-half", "dither-values-m2-tierB"]
ALL = "window-softcap-sinks"


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("value", [7.0, math.inf])
def test_what_no_sequence_owns_does_not_matter(variant: str, value: float) -> None:
    """Slots of nobody and tokens past the chunk hold NaN to begin with; with anything else the bits are the same."""
    case = chunk_case(variant, [21, 3, 0], [3, 4, 0], chunk=6, options=ALL)
    before = case.run()
    assert all(bool(x.isfinite().all()) for x in tensors(before) if x is not before.lse)
    free = ~owned(case.table, case.store.slots).to(DEVICE)
    store = case.store
    if isinstance(store, ExactStore):
        assert store.witness is not None
        for x in (store.k, store.v, store.witness):
            x[free] = value
    else:
        rows = free.view(-1, 16)
        for y in (store.k_code, store.v_code):
            y.transpose(1, 2)[rows] = -5
        for z in (store.k_scale, store.v_scale, store.k_outlier):
            if z is not None:
                z.transpose(1, 2)[rows] = value
    poison_chunk(case, value)
    assert same_bits(before, case.run())


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_the_window_hides_is_not_read(variant: str) -> None:
    """Pages before the window of the first query: their table entries point nowhere, their slots hold NaN."""
    case = chunk_case(variant, [70], [3], options="window", window=8)
    before = case.run()
    hidden = case.table.slots(0)[: 70 - 7]
    case.table.pages[0, :3] = 2**31 - 1  # 48 positions; the query at 70 sees from 63 on
    store = case.store
    if isinstance(store, ExactStore):
        store.k[hidden], store.v[hidden] = torch.nan, torch.nan
    else:
        for x in (store.k_scale, store.v_scale, store.k_outlier):
            if x is not None:
                x[hidden // 16, :, hidden % 16] = torch.nan
    assert same_bits(before, case.run())


def test_queries_see_no_later_keys() -> None:
    """Keys and values of the last tokens of a chunk change nothing before them; a later NaN key neither."""
    case = chunk_case("dither-m2-tierB", [20], [6], options="sinks")
    before = case.run()
    case.k[0, 4:], case.v[0, 4:] = torch.nan, 100.0
    after = case.run()
    for x, y in zip(tensors(before), tensors(after), strict=True):
        axis = 1 if x.ndim < 4 or x.shape[-1] == 64 else 0
        assert axis == 1
        assert torch.equal(x[:, :4], y[:, :4])
    assert all(bool((x[0, 4:] == 1).all()) for x in meters(after))


def test_stale_epoch_changes_the_keys() -> None:
    case = chunk_case("dither-tierB", [20], [2])
    assert isinstance(case.store, PackedStore)
    assert case.store.epochs is not None
    before = case.run()
    case.store.epochs.add_(1)
    assert not torch.equal(before.out, case.run().out)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["query", "new key", "scale", "outlier", "witness", "stored key", "sink"])
def test_what_is_not_finite_makes_the_meter_one(where: str, bad: float) -> None:
    variant = "exact-band" if where in ("witness", "stored key") else "dither-m4-tierB"
    case = chunk_case(variant, [20, 8], [6, 2], hkv=2, options="sinks")
    slot, store = int(case.table.slots(0)[3]), case.store
    hit = torch.zeros(2, 6, 4, dtype=torch.bool)  # the cells that must be 1
    if where == "query":
        case.q[0, 2, 1, 7] = bad
        hit[0, 2, 1] = True
    elif where == "new key":
        case.k[0, 2, 0, 7] = bad
        hit[0, 2:, :2] = True
    elif where == "sink":
        case.options["sinks"][1] = bad
        hit[0, :6, 1], hit[1, :2, 1] = bad != -math.inf, bad != -math.inf
    else:
        hit[0, :, :2] = True
        if isinstance(store, PackedStore):
            pool = store.k_scale if where == "scale" else store.k_outlier
            assert pool is not None
            pool[slot // 16, 0, slot % 16, 1] = bad
        elif where == "witness":
            assert store.witness is not None
            store.witness[slot, 0, 4] = abs(bad)
        else:
            store.k[slot, 0, 4] = bad
    got = case.run()
    for value, reading in zip(meters(got), got.readings, strict=True):
        assert torch.equal(value.cpu() == 1.0, hit)
        assert bool((reading.log_a.cpu()[hit] == math.inf).all())


def test_only_token_at_minus_infinity() -> None:
    """No mass is left, yet a token was there: no claim."""
    for options in ("plain", "sinks"):
        case = chunk_case("exact-band", [0], [1], options=options)
        case.q.fill_(1.0)
        case.k.fill_(-math.inf)
        assert bool((meters(case.run())[0] == 1).all())


def test_a_sink_at_minus_infinity_is_no_sink() -> None:
    case = chunk_case("dither-m2-tierB", [20, 0], [3, 2])
    bare = case.run()
    assert same_bits(bare, case.run(sinks=torch.full((2,), -math.inf, device=DEVICE)))


def test_value_not_finite_shows_in_the_output() -> None:
    case = chunk_case("int8-half", [18], [2])
    assert isinstance(case.store, PackedStore)
    slot = int(case.table.slots(0)[3])
    case.store.v_scale[slot // 16, 0, slot % 16, 1] = math.inf
    got = case.run()
    assert not bool(got.out[..., 32:].isfinite().any())
    assert bool(got.out[..., :32].isfinite().all())


@pytest.mark.parametrize("dithered", [False, True])
def test_largest_float16(dithered: bool) -> None:
    """Keys and values of +-65504, whose served numbers exceed float16 by up to half a step: finite, and the reference's."""
    case = chunk_case("int8-half", [16], [2], page=16)
    case.store = poisoned_store(1, 64, 16, case.store.slots // 16, dither=Dither(3, 0) if dithered else None)
    k = torch.where(torch.rand(16, 1, 64, device=DEVICE) < 0.5, -65504.0, 65504.0).half()
    (dither_int8_write if dithered else rtn_write)(k, k, case.table.slots(0), case.store)
    case.q *= 1e-4
    case.v.fill_(65504.0)
    got, rows = case.run(), case.reference()
    for (b, i, h), row in rows.items():
        assert bool(got.out[b, i, h].isfinite().all())
        assert float((got.out[b, i, h].double() - row.out).norm() / row.out.norm()) < 3e-3
        assert float(row.meters[0]) <= float(meters(got)[0][b, i, h]) <= 1.0


@pytest.mark.parametrize(("small", "size", "witness"), [(2.0**-6, 1.0, 1.0), (1.0, 2.0**-76, 65504.0)])
@pytest.mark.parametrize("bands", [8, 16])
def test_the_query_side_of_a_band_is_rounded_up(small: float, size: float, witness: float, bands: int) -> None:
    """Norms that float16 would round down, and norms whose squares vanish in float32, with the witness given."""
    case = chunk_case("exact-band8-bf16", [5], [1], group=1)
    assert isinstance(case.store, ExactStore)
    w = torch.full((case.store.slots, 1, bands), witness, dtype=torch.float16, device=DEVICE)
    case.store, case.scale = ExactStore(case.store.k, case.store.v, w), 1.0
    case.store.k[case.table.slots(0)] = 0.0
    case.k.zero_()
    case.q.fill_(small * size)
    width = 64 // bands // 2  # channels of a band in each half
    case.q[..., : 32 : width] = size  # one large channel in each band
    norm = size * math.sqrt(1.0 + (2 * width - 1) * small**2)
    assert float(case.run().readings[0].c_max[0, 0, 0]) >= bands * norm * witness


def overflowing(jump: float, bound: float) -> Chunk:
    """A first token whose bound is 2^bound of its weight, and a later one of which the logit is larger by jump (log 2)."""
    case = chunk_case("exact-band", [90], [1], page=1, group=1)
    assert isinstance(case.store, ExactStore)
    assert case.store.witness is not None
    slots, unit = case.table.slots(0), math.log(2.0)
    case.scale = 1.0
    case.q.zero_()
    case.q[..., 0] = 1.0
    case.store.k[slots] = 0
    case.store.k[slots, :, 0] = -3000.0
    case.store.witness[slots] = 0
    case.store.k[slots[0], :, 0], case.store.witness[slots[0], :, 0] = 0.0, bound * unit
    case.store.k[slots[80], :, 0] = jump * unit
    case.k.zero_()
    case.k[..., 0] = -3000.0
    return case


@pytest.mark.parametrize("jump", [100.0, 125.5, 127.5, 130.0, 140.0])
@pytest.mark.parametrize("bound", [90.0, 110.0, 126.0, 140.0])
@pytest.mark.parametrize("sink", [False, True])
def test_a_rescale_that_underflows_loses_no_bound(jump: float, bound: float, sink: bool) -> None:
    """The first token's weight vanishes beside the later one's, its weighted bound need not: A keeps it."""
    case = overflowing(0.0 if sink else jump, bound)
    if sink:
        case.options["sinks"] = torch.tensor([jump * math.log(2.0)], device=DEVICE)
    got = case.run()
    kept = 2.0 ** (bound - 0.1 - jump)  # of the other token's weight; fp16 rounds both exponents by less than 0.1
    truth = kept / (1.0 + kept)
    assert float(meters(got)[0][0, 0, 0]) >= truth * (1 - 1e-6)
    if jump >= 127 and bound == 110.0:
        assert float(meters(got)[0][0, 0, 0]) < 1e-3  # and no more than needed


def test_no_sequences_and_empty_chunks() -> None:
    case = chunk_case("exact-band", [5], [0], chunk=2)
    none = PageTable(case.table.pages[:0], case.table.seq_lens[:0], case.table.page_size)
    got = extend(case.q[:0], case.k[:0], case.v[:0], case.store, none, case.lens[:0], scale=1.0, meter=BandMeter())
    assert got.out.shape == (0, 2, 2, 64)
    assert got.readings[0].log_a.shape == (0, 2, 2)
    got = case.run(sinks=torch.ones(2, device=DEVICE))
    assert not bool(got.out.any())
    assert bool((got.lse == -math.inf).all())
    assert bool((meters(got)[0] == 0).all())


def test_a_table_without_pages() -> None:
    """Prefill before anything is cached: nothing of the store is read, and only arithmetic is left to bound."""
    case = chunk_case("dither-m2-tierB", [3, 0], [9, 4], options="sinks")
    case.table = PageTable(case.table.pages[:, :0].contiguous(), torch.zeros_like(case.table.seq_lens), 16)
    got = case.run()
    for (b, i, h), row in case.reference().items():
        assert float((got.out[b, i, h].double() - row.out).norm() / row.out.norm()) < 2e-3
        assert all(0.0 < float(value[b, i, h]) < 1e-3 for value in meters(got))


def test_labels() -> None:
    case = chunk_case("dither-tierB", [9], [2])
    got = case.run()
    assert [type(r.meter) for r in got.readings] == [Proved, ProvedNonadaptive]
    assert [r.meter.theorem for r in got.readings] == ["tierB_adaptive_sound", "tierB_request_sound"]
    assert [r.meter.delta for r in got.readings] == [BUDGET.delta_req] * 2
    assert all(x.shape == (1, 2, 2) for r in got.readings for x in (torch.as_tensor(r.meter.value), r.log_a, r.c_max))
    half = case.run(meter=HalfStepMeter()).readings
    assert [(type(r.meter), r.meter.theorem, r.meter.delta) for r in half] == [(Proved, "meter_sound", 0.0)]


def shifted(x: Tensor) -> Tensor:
    """The same numbers, contiguous, two bytes past a multiple of 16."""
    room = torch.empty(x.numel() + 1, dtype=x.dtype, device=x.device)
    room[1:] = x.flatten()
    return room[1:].view(x.shape)


def test_refusals() -> None:
    case = chunk_case("int8-half", [20], [6], hkv=2)
    q, k, v, store, table, lens = case.arguments()
    bare = exact_case([20], 2, 2, 64, 16, bands=None, device=DEVICE)
    wide = chunk_case("int8-half", [20], [2], group=17)
    dithered = chunk_case("dither-tierB", [20], [6], hkv=2)
    odd = ExactStore(*(torch.zeros(40, 2, 64, dtype=torch.float16, device=DEVICE) for _ in range(2)))
    long = torch.empty(1, 65537, 1, 64, dtype=torch.float16, device=DEVICE)
    one = chunk_case("int8-half", [20], [1], group=1)
    huge = PageTable(torch.zeros(1, 2**20 + 1, dtype=torch.int32, device=DEVICE), table.seq_lens, 16)
    flat = q.transpose(1, 2).contiguous().transpose(1, 2)
    cases: list[tuple[str, tuple[object, ...], dict[str, object]]] = [
        ("q is not", (q.float(), k, v, store, table, lens), {}),
        ("q is not", (q[0], k, v, store, table, lens), {}),
        ("q is not contiguous", (flat, k, v, store, table, lens), {}),
        ("q is not contiguous", (shifted(q), k, v, store, table, lens), {}),
        ("q has shape", (q[:, :, :3].contiguous(), k, v, store, table, lens), {}),
        ("k has shape", (q, k[:, :4].contiguous(), v, store, table, lens), {}),
        ("k is", (q, shifted(k), v, store, table, lens), {}),
        ("v is", (q, k, v.bfloat16(), store, table, lens), {}),
        ("v is NoneType", (q, k, None, store, table, lens), {}),
        ("0 tokens a chunk", (q[:, :0], k[:, :0], v[:, :0], store, table, lens), {}),
        ("65537 tokens a chunk", (long, long, long, one.store, one.table, one.lens), {}),
        ("expected at most 16", wide.arguments(), {}),
        ("they must agree", (q.bfloat16(), k.bfloat16(), v.bfloat16(), bare.store, bare.table, lens), {}),
        ("lens is", (q, k, v, store, table, lens.long()), {}),
        ("lens is", (q, k, v, store, table, lens.repeat(2)), {}),
        ("page_size 16", (q, k, v, store, replace(table, page_size=1), lens), {}),
        ("not whole pages", (q, k, v, odd, table, lens), {}),
        ("the table allows 16777232", (q, k, v, store, huge, lens), {}),
        ("needs a packed store", (q, k, v, bare.store, bare.table, lens), {"meter": HalfStepMeter()}),
        ("needs a store with a witness", (q, k, v, bare.store, bare.table, lens), {"meter": BandMeter()}),
        ("needs a packed store with dither", case.arguments(), {"meter": TierBMeter(BUDGET, 4096)}),
        ("the meter speaks of 4", dithered.arguments(), {"meter": TierBMeter(BUDGET, 4)}),
        ("meter is type", case.arguments(), {"meter": TierBMeter}),
        ("store is NoneType", (q, k, v, None, table, lens), {}),
        ("table is Tensor", (q, k, v, store, table.pages, lens), {}),
    ]
    bad_options: list[tuple[str, object]] = [
        ("scale", 0.0), ("scale", math.nan), ("scale", "1"), ("softcap", -1.0), ("softcap", math.inf), ("window", 0),
        ("window", True), ("window", 2.0), ("sinks", torch.zeros(3, device=DEVICE)), ("sinks", [0.0] * 4),
        ("sinks", torch.zeros(4, dtype=torch.float16, device=DEVICE)), ("sinks", torch.zeros(8, device=DEVICE)[::2]),
    ]  # fmt: skip
    cases += [(name, case.arguments(), {name: value}) for name, value in bad_options]
    for match, arguments, keywords in cases:
        with pytest.raises(InputError, match=match):
            extend(*arguments, **({"scale": 1.0} | keywords))  # type: ignore[arg-type]
