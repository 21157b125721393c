"""On the GPU: graphs, streams, no synchronization, long sequences, the tunings that are chosen."""

from __future__ import annotations

import pytest
import torch

from witcert.kernels.decode import DecodeOutput, Tuning, decode
from witcert.kernels.decode.reference import decode_reference

from .common import VARIANTS, make, stacked

pytestmark = pytest.mark.gpu


def tensors(got: DecodeOutput) -> list[torch.Tensor]:
    out = [got.out, got.lse]
    for reading in got.readings:
        out += [torch.as_tensor(reading.meter.value), reading.log_a, reading.c_max]
    return out


@pytest.mark.parametrize("variant", ["exact-band", "int8-half", "dither-values-tierB"])
def test_graph_replay_is_bit_identical(variant: str) -> None:
    """Captured, replayed between other work, over changed queries: the bits of an eager run."""
    case, meter = make(variant, [300, 77], 2, 3, 128, 16)
    decode(case.q, case.store, case.table, scale=case.scale, meter=meter)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        held = decode(case.q, case.store, case.table, scale=case.scale, meter=meter)
    for _ in range(3):
        case.q.copy_(torch.randn_like(case.q))
        torch.randn(512, 512, device="cuda") @ torch.randn(512, 512, device="cuda")
        graph.replay()
        eager = decode(case.q, case.store, case.table, scale=case.scale, meter=meter)
        for a, b in zip(tensors(held), tensors(eager), strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("variant", ["exact-band", "dither-m2-tierB"])
def test_no_host_synchronization(variant: str) -> None:
    case, meter = make(variant, [100, 7], 2, 3, 128, 16)
    decode(case.q, case.store, case.table, scale=case.scale, meter=meter)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        decode(case.q, case.store, case.table, scale=case.scale, meter=meter)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("variant", VARIANTS)
def test_chosen_tuning(variant: str) -> None:
    """Ragged, shuffled, poisoned; with the tuning that users get."""
    case, meter = make(variant, [1000, 1, 0, 333], 2, 7, 128, 16)
    got = decode(case.q, case.store, case.table, scale=case.scale, meter=meter)
    bare = decode(case.q, case.store, case.table, scale=case.scale)
    assert torch.equal(got.out, bare.out)
    want = decode_reference(case.q, case.store, case.table, scale=case.scale, meter=meter)
    out = stacked(want, "out")
    assert float((got.out.cpu().double() - out).norm() / out.norm()) < (8e-3 if case.q.dtype == torch.bfloat16 else 1.2e-3)
    for i, reading in enumerate(got.readings):
        value, meters = torch.as_tensor(reading.meter.value).cpu().double(), stacked(want, "meters", i)
        assert (value >= meters).all()
        assert (value <= meters * 1.25 + 2e-4).all()


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["exact-band", "int8-half", "dither-tierB"])
def test_long_sequences(variant: str) -> None:
    case, meter = make(variant, [131072, 4097], 1, 1, 64, 16)
    if variant == "dither-tierB":
        from witcert.kernels.decode import TierBMeter

        from .common import BUDGET

        meter = TierBMeter(BUDGET, 2**18)
    want = decode_reference(case.q, case.store, case.table, scale=case.scale, meter=meter)
    for tuning in (None, Tuning(32, splits=1)):
        got = decode(case.q, case.store, case.table, scale=case.scale, meter=meter, tuning=tuning)
        out = stacked(want, "out")
        assert float((got.out.cpu().double() - out).norm() / out.norm()) < 4e-3
        for i, reading in enumerate(got.readings):
            value, meters = torch.as_tensor(reading.meter.value).cpu().double(), stacked(want, "meters", i)
            assert (value >= meters).all()
            assert (value <= meters * 1.25 + 2e-3).all()
