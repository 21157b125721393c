"""Chunks over a gated pool: repaired pages are read exactly, the chunk once, and no meter of a query is below the truth."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.gate.test_gated import METERS, append, gated, meter_of
from tests.store.common import DEVICE, Filled
from witcert.errors import CorruptionError
from witcert.gate import Gate, GatedPool, chunk
from witcert.gate.choose import deciding
from witcert.kernels.decode.reference import served_keys, served_values
from witcert.kernels.extend import ExtendOutput
from witcert.store import ops

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

SCALE = 64**-0.5
LENS = [6, 0, 4, 3]
PREFIX = [70, 9, 0, 33]


def served(got: Filled, pool: GatedPool, seq: int, layer: int, length: int) -> tuple[Tensor, Tensor]:
    """Keys and values of the first ``length`` tokens as they are read now, float64 [length, Hkv, d]."""
    table = got.pool.table([seq])
    slots = table.slots(0)[:length]
    keys, values = (f(got.pool.stores[layer], slots).clone() for f in (served_keys, served_values))
    side = None if pool.repairs is None else pool.repairs.side_table(layer, table)
    if side is not None:
        parts, pages = side
        size = got.pool.config.page_size
        for t in range(length):
            for h in range(keys.shape[1]):
                if parts[0, h, t // size]:
                    at = int(pages[h, t // size]) * size + t % size
                    keys[t, h], values[t, h] = (x[at, 0].double() for x in (got.pool.side[layer].k, got.pool.side[layer].v))
    return keys, values


def chunk_of(got: Filled, pool: GatedPool, seqs: list[int]) -> tuple[Any, Any]:
    """New tokens of every sequence, written as an attached model does before it attends to them."""
    append(pool, got, seqs, LENS)
    q = torch.randn(4, 6, 4, 64, device=DEVICE).to(got.pool.config.dtype) * 4
    tensors: list[Tensor] = [q]
    for which in (0, 1):
        x = torch.full((4, 6, 2, 64), torch.nan, dtype=q.dtype, device=DEVICE)
        for b, (seq, n) in enumerate(zip(seqs, LENS, strict=True)):
            x[b, :n] = got.exact[seq, 0][which][len(got.exact[seq, 0][which]) - n :]
        tensors.append(x)
    table = got.pool.table(seqs, back=LENS)
    return tensors, (table, torch.tensor(LENS, dtype=torch.int32, device=DEVICE))


def check(got: Filled, pool: GatedPool, seqs: list[int], new: Any, out: ExtendOutput, options: dict[str, Any]) -> float:
    """Every reading of every query at least its true distance, the output that of the mixture; the largest meter."""
    q, window, largest = new[0], options.get("window") or 10**6, 0.0
    for b, (seq, n) in enumerate(zip(seqs, LENS, strict=True)):
        exact, values = (x.double() for x in got.exact[seq, 0])
        mixed, values = exact.clone(), values.clone()
        mixed[: PREFIX[b]], values[: PREFIX[b]] = served(got, pool, seq, 0, PREFIX[b])
        for i in range(n):
            end = PREFIX[b] + i + 1
            start = max(0, end - window)
            for h in range(4):
                rows = []
                for keys in (exact, mixed):
                    x = keys[start:end, h // 2] @ q[b, i, h].double() * SCALE
                    x = x if "softcap" not in options else options["softcap"] * torch.tanh(x / options["softcap"])
                    sinks = options.get("sinks")
                    rows.append(torch.softmax(x if sinks is None else torch.cat((x, sinks[h : h + 1].double())), 0))
                tv = float((rows[0] - rows[1]).abs().sum() / 2)
                wanted = rows[1][: end - start] @ values[start:end, h // 2]
                assert torch.allclose(out.out[b, i, h].double(), wanted, atol=3e-2), (b, i, h)
                for r in out.readings:
                    reading = float(torch.as_tensor(r.meter.value)[b, i, h])
                    assert tv <= reading + 1e-15, (b, i, h, r.meter.theorem, reading - tv)  # the truth's own float64
                    largest = max(largest, reading)
    return largest


OPTIONS: list[dict[str, Any]] = [{}, {"window": 20, "softcap": 6.0, "sinks": True}]


@pytest.mark.parametrize("kernels", [False, True] if DEVICE == "cpu" else [True])
@pytest.mark.parametrize("chosen", OPTIONS, ids=["plain", "window-softcap-sinks"])
@pytest.mark.parametrize("name", list(METERS))
def test_meters_over_repaired_prefixes_never_understate(name: str, chosen: dict[str, Any], kernels: bool) -> None:
    """4 formats, some pages repaired by a step before; ragged chunks, one of them empty, one without prefix."""
    pool, got, seqs = gated(name, Gate(tau=0.1), PREFIX)
    got.pool.kernels = kernels
    meter, options = meter_of(pool, METERS[name]), dict(chosen)
    if "sinks" in options:
        options["sinks"] = torch.randn(4, device=DEVICE)
    q = (torch.randn(4, 4, 64, device=DEVICE) * (1 if name == "scheme" else 16)).to(got.pool.config.dtype)
    done = pool.attend(0, q[[0, 1, 3]], [seqs[0], seqs[1], seqs[3]], scale=SCALE, meter=meter)
    assert done.pages > 0
    new, where = chunk_of(got, pool, seqs)
    out = chunk.extend(pool, 0, *new, *where, meter=meter, scale=SCALE, **options)
    bare = chunk.extend(pool, 0, *new, *where, scale=SCALE, **options)
    assert torch.equal(out.out, bare.out)
    assert bare.readings == ()
    assert len(out.readings) == (2 if METERS[name] == "tierB" else 1)
    assert check(got, pool, seqs, new, out, options) > 1e-3
    for b, n in enumerate(LENS):
        assert not bool(out.out[b, n:].any())
        assert all(not bool(torch.as_tensor(r.meter.value)[b, n:].any()) for r in out.readings)


@pytest.mark.parametrize("name", ["int8", "dither"])
def test_repaired_pages_are_read_exactly(name: str) -> None:
    """One KV head repaired whole: its queries' meters drop to the arithmetic, those of the other head stay."""
    pool, got, seqs = gated(name, Gate(tau=1e-4, mode="head"), PREFIX)
    meter = meter_of(pool, METERS[name])
    new, where = chunk_of(got, pool, seqs)
    before = chunk.extend(pool, 0, *new, *where, meter=meter, scale=SCALE)
    direct = ops.extend(pool.pool, 0, *new, *where, meter=meter, scale=SCALE)
    assert torch.equal(before.out, direct.out)  # nothing is repaired yet: one read
    q = torch.randn(4, 4, 64, device=DEVICE).half() * 16
    q[:, 2:] = 0.0  # the second KV head never fires
    done = pool.attend(0, q, seqs, scale=SCALE, meter=meter)
    assert done.pages == sum(len(got.pool.allocator.pages_of(seq)) for seq in seqs)
    after = chunk.extend(pool, 0, *new, *where, meter=meter, scale=SCALE)
    check(got, pool, seqs, new, after, {})
    for old, r in zip(before.readings, after.readings, strict=True):
        was, now = (torch.as_tensor(x.meter.value) for x in (old, r))
        assert bool((was[0] > 1e-3).all())
        assert float(now[..., :2].max()) < 5e-4
        assert torch.allclose(now[..., 2:], was[..., 2:], atol=1e-4)
        assert type(old.meter) is type(r.meter)
        assert r.meter.theorem == f"{old.meter.theorem} + lse_merge"
        assert r.meter.delta == old.meter.delta


COUNTED = [n if past else 0 for n, past in zip(LENS, PREFIX, strict=True)]


def attended(pool: GatedPool, seqs: list[int], new: Any, where: Any, **how: Any) -> chunk.ChunkAttended:
    return chunk.attend(pool, 0, *new, *where, seqs=seqs, prefix=PREFIX, queries=COUNTED, scale=SCALE, **how)


@pytest.mark.parametrize("kernels", [False, True] if DEVICE == "cpu" else [True])
@pytest.mark.parametrize("mode", ["block", "head"])
@pytest.mark.parametrize("name", list(METERS))
def test_what_a_chunk_reads_is_brought_to_tau(name: str, mode: Any, kernels: bool) -> None:
    """4 formats, by block and by head; ragged chunks, one empty and one without prefix: every counted cell ends at most tau."""
    pool, got, seqs = gated(name, Gate(tau=0.1, mode=mode, chunk=6), PREFIX)
    got.pool.kernels = kernels
    meter = meter_of(pool, METERS[name])
    new, where = chunk_of(got, pool, seqs)
    new[0][:, :, 2:] *= 2.0**-6  # the second KV head seldom fires
    done = attended(pool, seqs, new, where, meter=meter)
    assert done.fired is not None
    assert bool(done.fired[0, 0])
    assert not bool(done.fired[1:3].any())  # no query, or none that sees a stored prefix
    assert done.pages > 0
    assert done.bytes > 0
    assert done.refused == 0
    before, after = (torch.as_tensor(deciding(x, pool.gate).meter.value) for x in (done.before, done.output.readings))
    for b, n in enumerate(COUNTED):
        assert bool((after[b, :n] <= pool._most).all())
    assert float(before[0].max()) > 0.1
    assert check(got, pool, seqs, new, done.output, {}) > 1e-3
    book = pool.ledger.summary()
    was, now = ([x[b, :n] <= pool._most for b, n in enumerate(COUNTED)] for x in (before, after))
    assert book["cells"] == 4 * sum(COUNTED)
    assert book["certified"] == sum(int((x & y).sum()) for x, y in zip(was, now, strict=True))
    assert book["repaired"] == book["cells"] - book["certified"] > 0
    assert (book["pages"], book["bytes"], book["fired"]) == (done.pages, done.bytes, int(done.fired.sum()))
    # what was repaired stays exact: nothing fires again, and the chunk's own pages were not paged in
    again = attended(pool, seqs, new, where, meter=meter)
    assert (again.pages, again.bytes) == (0, 0)
    assert torch.equal(again.output.out, done.output.out)
    held = {p for seq, past in zip(seqs, PREFIX, strict=True) for p in got.pool.pages(seq)[: -(-past // 16)]}
    assert set((got.pool.exact_pages[0] >= 0).any(-1).nonzero()[0].tolist()) <= held


def test_blocks_of_a_chunk_move_less_than_heads() -> None:
    moved = {}
    for mode in ("block", "head"):
        torch.manual_seed(5)
        pool, got, seqs = gated("int8", Gate(tau=0.12, mode=mode, chunk=6), PREFIX)  # type: ignore[arg-type]
        new, where = chunk_of(got, pool, seqs)
        moved[mode] = attended(pool, seqs, new, where, meter=meter_of(pool, "half")).bytes
    assert 0 < moved["block"] < moved["head"]


def test_a_window_is_repaired_by_whole_heads() -> None:
    pool, got, seqs = gated("int8", Gate(tau=0.1, chunk=6), PREFIX)
    new, where = chunk_of(got, pool, seqs)
    done = attended(pool, seqs, new, where, meter=meter_of(pool, "half"), window=20, softcap=6.0)
    assert done.fired is not None
    heads = [(b, h) for b, h in done.fired.nonzero().tolist()]
    assert done.pages == sum(-(-PREFIX[b] // 16) for b, _ in heads) > 0
    check(got, pool, seqs, new, done.output, {"window": 20, "softcap": 6.0})


@pytest.mark.parametrize("gate", [Gate(tau=0.1), Gate(tau=0.1, chunk=5), Gate(mode="off", chunk=6)])
def test_longer_chunks_are_left_alone(gate: Gate) -> None:
    """With the gate's limit below the longest chunk nothing is repaired, waited for or booked."""
    pool, got, seqs = gated("int8", gate, PREFIX)
    new, where = chunk_of(got, pool, seqs)
    meter = meter_of(pool, "half")
    done = attended(pool, seqs, new, where, meter=meter)
    bare = chunk.extend(pool, 0, *new, *where, meter=meter, scale=SCALE)
    assert done.fired is None
    assert (done.pages, done.bytes, done.before) == (0, 0, done.output.readings)
    assert torch.equal(done.output.out, bare.out)
    assert pool.ledger.summary()["cells"] == 0
    assert attended(pool, seqs, new, where).fired is None  # without a meter


def test_a_damaged_backing_row_repairs_nothing() -> None:
    pool, got, seqs = gated("int8", Gate(tau=0.1, mode="head", chunk=6), PREFIX)
    new, where = chunk_of(got, pool, seqs)
    assert got.pool.backing is not None
    got.pool.backing[0].k.view(torch.int16)[got.pool.pages(seqs[0])[1] * 16 + 3, 0, 9] ^= 1
    with pytest.raises(CorruptionError, match="backing store"):
        attended(pool, seqs, new, where, meter=meter_of(pool, "half"))
    assert not bool((got.pool.exact_pages >= 0).any())
    assert pool.ledger.summary()["cells"] == 0


def test_without_room_beside_cells_stay_above_and_are_counted() -> None:
    pool, got, seqs = gated("int8", Gate(tau=0.01, chunk=6), PREFIX, side_pages=3)
    new, where = chunk_of(got, pool, seqs)
    done = attended(pool, seqs, new, where, meter=meter_of(pool, "half"))
    assert done.refused > 0
    assert done.pages == 3
    assert pool.ledger.summary()["uncertified"] > 0
    check(got, pool, seqs, new, done.output, {})


@pytest.mark.parametrize("mode", ["block", "head"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["scheme", "int8", "dither"])
def test_a_query_that_is_no_number_is_never_certified(name: str, bad: float, mode: Any) -> None:
    """Its cell reads 1 and stays above tau, whatever is paged in for it; the cells beside it are brought to tau and counted."""
    pool, got, seqs = gated(name, Gate(tau=0.1, mode=mode, chunk=6), PREFIX)
    new, where = chunk_of(got, pool, seqs)
    new[0][0, 2, 1, 5] = bad
    done = attended(pool, seqs, new, where, meter=meter_of(pool, METERS[name]))
    for r in done.output.readings:
        assert float(torch.as_tensor(r.meter.value)[0, 2, 1]) == 1.0
    value = torch.as_tensor(deciding(done.output.readings, pool.gate).meter.value)
    above = [(b, *at) for b, n in enumerate(COUNTED) for at in (value[b, :n] > pool._most).nonzero().tolist()]
    assert above == [(0, 2, 1)]
    book = pool.ledger.summary()
    assert book["uncertified"] == 1
    assert book["certified"] + book["repaired"] == 4 * sum(COUNTED) - 1
