"""On a GPU: a captured step that grows its cache, the way to the host and back, no waiting, bits of the CPU path."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.store.common import FORMATS, config_of, filled
from witcert.budget import Budget
from witcert.errors import InputError
from witcert.kernels.decode import DecodeOutput
from witcert.kernels.formats import ExactStore
from witcert.schemes import get, names
from witcert.store import CachePool, ops

pytestmark = pytest.mark.gpu

SCALE = 0.125


def tensors(got: DecodeOutput) -> list[Tensor]:
    return [got.out, got.lse, *(x for r in got.readings for x in (torch.as_tensor(r.meter.value), r.log_a, r.c_max))]


@pytest.mark.parametrize("name", ["exact", "int8", "dither-m4-kv"])
def test_a_captured_step_sees_the_cache_grow(name: str) -> None:
    """Write and decode in one graph; between replays slots are reserved and the table changes in place: eager bits.

    40 steps cross two pages. The slots, the table, the queries and the new rows are the graph's inputs.
    """
    f, (a, b) = filled(name, [14, 3])
    pool = f.pool
    meter = pool.meter_for("tierB", Budget(2, 4, 2)) or pool.meter_for("band")
    q = torch.randn(2, 4, 64, device="cuda").to(pool.config.dtype)
    k, v = (torch.randn(2, 2, 64, device="cuda").to(pool.config.dtype) for _ in range(2))
    slots = pool.reserve([a, b], [1, 1])
    table = pool.table([a, b])

    def step() -> DecodeOutput:
        for layer in range(2):
            pool.write(layer, k, v, slots)
        return ops.decode(pool, 1, q, table, scale=SCALE, meter=meter)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        held = step()
    for _ in range(40):
        pool.replayed()
        pool.reserve([a, b], [1, 1], out=slots)
        assert pool.table([a, b]) is table
        for x in (q, k, v):
            x.copy_(torch.randn_like(x))
        graph.replay()
        eager = ops.decode(pool, 1, q, [a, b], scale=SCALE, meter=meter)
        for x, y in zip(tensors(held), tensors(eager), strict=True):
            assert torch.equal(x, y)
        assert pool.verify_backing(1, slots, k, v) == 0
    assert pool.length(a) == 55
    pool.check_table(table, [a, b])
    pool.replayed()
    pool.reserve([a], [0])
    assert pool.sweep(1.0, 0) == []
    assert int(pool._sealed().valid.sum()) == 2 * (3 + 2)


@pytest.mark.parametrize("name", FORMATS)
def test_the_gpu_stores_the_bits_of_the_cpu(name: str) -> None:
    """Payload, scales, outliers, backing rows and their tags; witnesses are not below the CPU's."""
    config = config_of(name, pages=40, tokens=300)
    pools = [CachePool(config, device) for device in ("cpu", "cuda")]
    slots = []
    for pool in pools:
        generator = torch.Generator().manual_seed(11)
        seqs = [pool.open(), pool.open()]
        slots.append(pool.reserve(seqs, [200, 33]))
        for layer in range(2):
            k, v = (torch.randn(233, 2, 64, generator=generator).to(config.dtype).to(pool.device) for _ in range(2))
            pool.write(layer, k, v, slots[-1])
            assert pool.verify_backing(layer, slots[-1], k, v) == 0
        pool.fork(seqs[0])
    torch.cuda.synchronize()
    one, two = pools
    rows = torch.cat([torch.from_numpy(one.allocator.slots_of(s)) for s in one.allocator.sequences]).unique()
    assert one.host is not None
    assert two.host is not None
    for x, y in ((one.host.k, two.host.k), (one.host.v, two.host.v)):
        assert torch.equal(x[:, rows].view(torch.int16), y[:, rows].view(torch.int16))
    assert torch.equal(one.host.tags[:, rows], two.host.tags[:, rows])
    for x, y in zip(one.tensors.rows, two.tensors.rows, strict=True):
        if config.packed:
            x, y = (z.cpu()[:, rows // 16, :, rows % 16] for z in (x, y))
        else:
            x, y = (z.cpu()[:, rows] for z in (x, y))
        if x.shape[-1] == config.bands and x.dtype == torch.float16:
            assert bool((y >= x).all())
            assert bool((y.float() <= x.float() * 1.002 + 1e-7).all())
        elif config.scheme != "stochastic_int8":
            assert torch.equal(x.contiguous().view(torch.int8), y.contiguous().view(torch.int8))


@pytest.mark.parametrize("name", ["scheme", "dither"])
def test_there_and_back(name: str) -> None:
    """Rows go out to pinned memory and come back through page-in, bit for bit; the backing store is pinned."""
    f, (a,) = filled(name, [45])
    pool, pages = f.pool, f.pool.pages(a)
    assert pool.host is not None
    assert all(x.is_pinned() for x in (pool.host.k, pool.host.v, pool.host.tags))
    k = f.exact[a, 0][0]
    if name == "scheme":
        pool.page_in(0, list(pages), [1] * len(pages))
        store, rows = pool.stores[0], torch.from_numpy(pool.allocator.slots_of(a)).cuda()
        assert isinstance(store, ExactStore)
        assert torch.equal(store.k[rows, 1].view(torch.int16), k[:, 1].contiguous().view(torch.int16))
        return
    side = pool.side_reserve(0, len(pages))
    pool.page_in(0, list(pages), [1] * len(pages), side)
    rows = torch.cat([torch.arange(s * 16, s * 16 + 16) for s in side])[:45].cuda()
    assert torch.equal(pool.side[0].k[rows, 0].view(torch.int16), k[:, 1].contiguous().view(torch.int16))
    assert pool.check_side(0, side) == []
    pool.restore(0, list(pages))
    assert pool.check(0, pages) == []


def test_a_step_waits_for_nothing() -> None:
    """Reserve, write, table and decode: no synchronization with the device."""
    f, (a, b) = filled("dither", [14, 3])
    pool, meter = f.pool, f.pool.meter_for("tierB", Budget(2, 4, 2))
    q = torch.randn(2, 4, 64, device="cuda").half()
    k, v = (torch.randn(2, 2, 64, device="cuda").half() for _ in range(2))

    def step() -> None:
        slots = pool.reserve([a, b], [1, 1])
        for layer in range(2):
            pool.write(layer, k, v, slots)
            ops.decode(pool, layer, q, [a, b], scale=SCALE, meter=meter)

    step()
    step()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(5):
            step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert pool.length(a) == 21


def test_references_are_not_for_a_gpu() -> None:
    with pytest.raises(InputError, match="kernels=False on a GPU"):
        CachePool(config_of("exact"), "cuda", kernels=False)


@pytest.mark.parametrize("name", [n for n in names() if get(n).capturable])
def test_a_capturable_scheme_is_captured(name: str) -> None:
    """The write of each such scheme as a graph, replayed with other rows into other slots: the bits of an eager one."""
    pools = [CachePool(config_of("exact", format="scheme", scheme=name, backing=True), "cuda") for _ in range(2)]
    seqs = [pool.open() for pool in pools]
    k, v = (torch.zeros(3, 2, 64, device="cuda", dtype=pools[0].config.dtype) for _ in range(2))
    slots = [pool.reserve([seq], [3]) for pool, seq in zip(pools, seqs, strict=True)]
    for pool, at in zip(pools, slots, strict=True):
        pool.write(1, k, v, at)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        pools[1].write(1, k, v, slots[1])
    generator = torch.Generator("cuda").manual_seed(7)
    for size in (1.0, 300.0, 1e-6, 0.0):
        for x in (k, v):
            x.copy_(torch.randn(x.shape, generator=generator, device="cuda") * size)
        for pool, seq, at in zip(pools, seqs, slots, strict=True):
            pool.replayed()
            pool.reserve([seq], [3], out=at)
        pools[0].write(1, k, v, slots[0])
        graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(*slots)
    one, other = (pool.stores[1] for pool in pools)
    assert isinstance(one, ExactStore)
    assert isinstance(other, ExactStore)
    assert one.witness is not None
    assert other.witness is not None
    backing = [pool.backing[1] for pool in pools if pool.backing is not None]
    pairs = [(one.k, other.k), (one.v, other.v), (one.witness, other.witness)]
    for x, y in [*pairs, (backing[0].k, backing[1].k), (backing[0].v, backing[1].v)]:
        assert torch.equal(x[:15].view(torch.int16), y[:15].view(torch.int16))  # slots 0 to 14 hold the five writes
