"""Chunks over a gated pool: repaired pages are read exactly, the chunk once, and no meter of a query is below the truth."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.gate.test_gated import METERS, append, gated, meter_of
from tests.store.common import DEVICE, Filled
from witcert.gate import Gate, GatedPool, chunk
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
