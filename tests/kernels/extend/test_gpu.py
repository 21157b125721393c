"""On the GPU: graphs, no synchronization, long prefixes and chunks, the tiles that are chosen."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.decode.common import BUDGET, VARIANTS
from witcert.kernels.decode import TierBMeter
from witcert.kernels.extend.reference import Row

from .build import Chunk, chunk_case, meters, same_bits

pytestmark = pytest.mark.gpu
ALL = "window-softcap-sinks"


def check(case: Chunk, count: int = 40, factor: float = 1.1, constant: float = 1.5e-3) -> None:
    """The same bits without meter; a random sample of the rows against the reference."""
    got, bare = case.run(), case.run(meter=None)
    assert torch.equal(got.out, bare.out)
    assert torch.equal(got.lse, bare.lse)
    some = [(b, i, h) for b, n in enumerate(case.lens.tolist()) for i in {0, 1, n // 2, n - 1} if 0 <= i < n for h in (0,)]
    for _ in range(count):
        b = int(torch.randint(len(case.lens), ()))
        if int(case.lens[b]):
            i, h = int(torch.randint(int(case.lens[b]), ())), int(torch.randint(case.q.shape[2], ()))
            some.append((b, i, h))
    rows: dict[tuple[int, int, int], Row] = case.reference(only=frozenset(some))
    assert set(rows) == set(some)
    tolerance = 1.5e-2 if case.q.dtype == torch.bfloat16 else 2.5e-3
    for (b, i, h), row in rows.items():
        error = float((got.out[b, i, h].double() - row.out).norm() / row.out.norm().clamp_min(0.05))
        assert error < tolerance, (b, i, h, error)
        assert abs(float(got.lse[b, i, h]) - float(row.lse)) < 2e-3
        for value, wanted in zip(meters(got), row.meters, strict=True):
            reading = float(value[b, i, h])
            assert float(wanted) <= reading <= 1.0, (b, i, h, reading - float(wanted))
            assert reading <= float(wanted) * factor + constant, (b, i, h, reading, float(wanted))
    for b, n in enumerate(case.lens.tolist()):
        assert not bool(got.out[b, n:].any())
        assert all(bool((value[b, n:] == 0).all()) for value in meters(got))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("options", ["plain", ALL])
def test_chosen_tiles(variant: str, options: str) -> None:
    """Ragged, shuffled, poisoned; the reading of every query, under the options of a model that has them all."""
    case = chunk_case(variant, [1000, 1, 0, 333], [200, 3, 170, 0], chunk=210, hkv=2, group=7, d=128, options=options,
                      window=150, softcap=30.0)  # fmt: skip
    check(case)


@pytest.mark.parametrize(("d", "group", "page"), [(64, 16, 1), (256, 1, 16), (256, 8, 1), (128, 1, 1), (64, 3, 16)])
@pytest.mark.parametrize("variant", ["exact-band8-bf16", "int8-m4-half", "dither-values-m2-tierB"])
def test_head_dims_and_groups(variant: str, d: int, group: int, page: int) -> None:
    check(chunk_case(variant, [517, 40], [1, 70], hkv=1, group=group, d=d, page=page))


@pytest.mark.parametrize("variant", ["exact-band", "int8-half", "dither-values-m4-tierB"])
def test_many_programs(variant: str) -> None:
    """Enough rows for the largest tiles."""
    check(chunk_case(variant, [700, 64, 129], [1024, 1000, 513], hkv=8, group=4, d=128), count=60)


@pytest.mark.parametrize("variant", ["exact-band", "int8-m4-half", "dither-m2-tierB"])
def test_graph_replay_is_bit_identical(variant: str) -> None:
    """Captured, replayed between other work, over changed queries and lengths: the bits of an eager run."""
    case = chunk_case(variant, [300, 77], [128, 70], hkv=2, group=3, d=128, options=ALL, window=100)
    case.run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        held = case.run()
    for step in range(3):
        case.q.copy_(torch.randn_like(case.q))
        case.lens.sub_(step)
        torch.randn(512, 512, device="cuda") @ torch.randn(512, 512, device="cuda")
        graph.replay()
        assert same_bits(held, case.run())


@pytest.mark.parametrize("variant", ["exact-band", "dither-m2-tierB"])
def test_no_host_synchronization(variant: str) -> None:
    case = chunk_case(variant, [100, 7], [64, 5], hkv=2, group=3, d=128, options=ALL)
    case.run()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        case.run()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["exact-band", "int8-half", "dither-m4-tierB"])
def test_long_prefix(variant: str) -> None:
    case = chunk_case(variant, [131072, 4097], [33, 128], hkv=1, group=1)
    if case.meter == TierBMeter(BUDGET, 4096):
        case.meter = TierBMeter(BUDGET, 2**18)
    check(case, count=10, constant=3e-3)


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["exact-band-bf16", "int8-half"])
def test_longest_chunk(variant: str) -> None:
    """65536 new tokens, most of them prefill without a prefix."""
    case = chunk_case(variant, [0, 50], [65536, 60000], hkv=1, group=1, options="window-sinks", window=4096)
    check(case, count=20, constant=3e-3)
    assert all(bool(((value >= 0) & (value <= 1)).all()) for value in meters(case.run()))
