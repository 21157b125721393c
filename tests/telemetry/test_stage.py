"""Readings that are decoded into the stage: counted as the copies of the same readings are, in whatever order steps come."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
import triton
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.store.common import DEVICE, filled
from witcert.budget import Budget
from witcert.errors import InputError, WitCertError
from witcert.kernels.decode import Reading, ReadingBuffers
from witcert.kernels.telemetry import StepRecord
from witcert.store import ops
from witcert.telemetry import Telemetry
from witcert.telemetry.recorder import PENDING

from .common import BATCH, HEADS, LAYERS, fill, nonadaptive, proved
from .test_record import INTERPRETED, NoWaiting, interpreted


def make(**options: Any) -> Telemetry:
    return Telemetry(LAYERS, HEADS, **({"sample": 0.25} | options))


def decoded(meters: Tensor, tops: Tensor, into: ReadingBuffers | None, swapped: bool = False) -> list[Reading]:
    """Readings [readings, batch, heads], as a decode into the buffers gives them."""
    kinds = (nonadaptive, proved) if swapped else (proved, nonadaptive)
    if into is None:
        return [kind(m.clone(), c.clone()) for kind, m, c in zip(kinds, meters, tops, strict=False)]
    into.meter.copy_(meters)
    into.c_max.copy_(tops)
    return [kind(m, c) for kind, (m, c) in zip(kinds, into.each, strict=False)]


class Pair:
    """The same calls to two: one that decodes into the stage where it is told to, one that never does."""

    def __init__(self, **options: Any) -> None:
        self.staged, self.plain = make(**options), make(**options)

    def layer(self, layer: int, *, batch: int = BATCH, readings: int = 2, other: bool = False, swapped: bool = False) -> bool:
        """One call; other: what is recorded is not what was decoded, as after a repair. Whether there was a place."""
        meters, tops = torch.rand(2, readings, batch, HEADS)
        into = self.staged.stage(layer, batch, readings)
        got = decoded(meters, tops, into, swapped)
        if other:
            meters, tops = meters / 2, tops / 2
            got = decoded(meters, tops, None, swapped)
        self.staged.record(layer, got, bytes=layer)
        self.plain.record(layer, decoded(meters, tops, None, swapped), bytes=layer)
        return into is not None

    def empty(self, layer: int) -> None:
        for telemetry in (self.staged, self.plain):
            telemetry.record(layer, ())

    def chunk(self, layer: int) -> None:
        meter, lens = torch.rand(BATCH, 3, HEADS), torch.tensor([3, 1])
        for telemetry in (self.staged, self.plain):
            telemetry.record(layer, (proved(meter),), lens=lens)

    def check(self) -> None:
        """The same to the bit: every count, every last and worst meter, every sampled cell."""
        for telemetry in (self.staged, self.plain):
            telemetry.commit()
        a, b = self.staged._record.view(), self.plain._record.view()
        for name, part in a.items():
            assert torch.equal(part, b[name]), name
        assert self.staged.snapshot().pagein_bytes == self.plain.snapshot().pagein_bytes


class Names(TorchDispatchMode):
    """The operations that ran."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func.name())
        return func(*args, **(kwargs or {}))


def test_layout() -> None:
    """Layer-major: one layer's meters are one contiguous block, its C another, a stage apart."""
    telemetry = make()
    for layer in range(LAYERS):
        into = telemetry.stage(layer, BATCH, 2)
        assert into is not None
        stage = telemetry._stage
        assert stage is not None
        assert stage.tensor.shape == (2, LAYERS * 2, BATCH, HEADS)
        for part, x in enumerate((into.meter, into.c_max)):
            assert x.is_contiguous()
            assert x.shape == (2, BATCH, HEADS)
            assert x.data_ptr() == stage.tensor[part, 2 * layer].data_ptr()


@pytest.mark.parametrize("readings", [1, 2])
@pytest.mark.parametrize("batch", [1, 5])
def test_steps_are_counted_as_their_copies_are(batch: int, readings: int) -> None:
    pair = Pair()
    for step in range(4):
        for layer in range(LAYERS):
            assert pair.layer(layer, batch=batch, readings=readings, swapped=step == 2)
    pair.check()
    assert pair.staged.snapshot().steps == 4


@interpreted
def test_nothing_is_copied_and_nothing_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Around the launch: it is given the stage itself, with no operation on it, where the copy needs a concatenation."""
    monkeypatch.setattr(triton.knobs.runtime, "interpret", True)
    launched: list[Tensor] = []
    monkeypatch.setattr(StepRecord, "add", lambda self, stage, rows, **_: launched.append(stage))
    telemetry = make()
    fill(telemetry, 1)
    launched.clear()
    for staged in (True, False, True, False):
        held = []
        for layer in range(LAYERS):
            into = telemetry.stage(layer, BATCH, 2) if staged else None
            held.append(decoded(*torch.rand(2, 2, BATCH, HEADS), into))
        with Names() as names, NoWaiting():
            for layer, readings in enumerate(held):
                telemetry.record(layer, readings)
        assert telemetry._stage is not None
        assert (launched.pop() is telemetry._stage.tensor) is staged
        assert not launched
        assert any("cat" in name for name in names.seen) is not staged
        assert bool(names.seen) is not staged, names.seen


@interpreted
def test_the_kernel_and_the_reference_count_a_stage_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for interpret in (True, False):
        monkeypatch.setattr(triton.knobs.runtime, "interpret", interpret)
        torch.manual_seed(3)
        pair = Pair()
        for layer in [*range(LAYERS)] * 3:
            pair.layer(layer)
        pair.check()
        results.append(pair.staged._record.memory.clone())
    assert torch.equal(*results)


def test_other_readings_than_those_in_the_stage() -> None:
    """A repaired layer, a layer without a meter, layers out of order: counted from a copy."""
    pair = Pair()
    for layer in range(LAYERS):
        pair.layer(layer, other=layer == 1)
    for layer in range(LAYERS):
        if layer == 1:
            pair.empty(layer)
        else:
            pair.layer(layer)
    for layer in (1, 0, 2):
        pair.layer(layer)
    pair.chunk(0)
    for layer in range(LAYERS):
        pair.layer(layer, swapped=layer == 1)
    pair.check()
    assert pair.staged.snapshot().steps == 5


def test_wide_readings_beside_the_stage_are_rounded_up() -> None:
    telemetry = make(tau=0.25)
    above = torch.full((BATCH, HEADS), 0.25, dtype=torch.float64) + 1e-12
    for layer in range(LAYERS):
        into = telemetry.stage(layer, BATCH, 1)
        quarter = torch.full((1, BATCH, HEADS), 0.25)
        readings = decoded(quarter, quarter, into)
        telemetry.record(layer, readings if layer != 1 else (proved(above),))
    got = telemetry.snapshot()
    assert got.steps == 1
    assert got.tier("proved").certified.tolist() == [BATCH * HEADS, 0, BATCH * HEADS]


def test_another_c_beside_the_meter_of_the_stage() -> None:
    telemetry = make()
    for layer in range(LAYERS):
        into = telemetry.stage(layer, BATCH, 1)
        half = torch.full((1, BATCH, HEADS), 0.5)
        (reading,) = decoded(half, half, into)
        lost = torch.full((BATCH, HEADS), torch.inf)
        telemetry.record(layer, [Reading(reading.meter, lost, lost) if layer == 1 else reading])
    assert telemetry.snapshot().tier("proved").nan.tolist() == [0, BATCH * HEADS, 0]


def test_a_pass_that_broke_off_is_counted_before_it_is_overwritten() -> None:
    pair = Pair()
    for layers in ((0, 1), (0, 1, 2), (0,), (0, 1, 2)):
        for layer in layers:
            pair.layer(layer)
    for layer in (0, 1):
        pair.layer(layer)
    for layer in range(LAYERS):
        pair.layer(layer, batch=BATCH + 1)  # the same memory
    pair.check()
    assert pair.staged.snapshot().steps == 6


def test_layers_of_different_numbers_of_readings_are_one_step() -> None:
    pair = Pair()
    assert [pair.layer(layer, readings=1 + layer % 2) for layer in range(LAYERS)] == [True, False, True]
    pair.check()
    assert pair.staged.snapshot().steps == 1


def test_any_order_of_calls() -> None:
    """Random passes: broken off, of changing batches and labels, repaired, unmetered, mixed with chunks."""
    choose = random.Random(20261129)
    pair = Pair()
    used = 0
    for _ in range(150):
        batch, readings = choose.choice((1, 2, 3, 9)), choose.choice((1, 2))
        odd = choose.random() < 0.5
        for layer in range(choose.choice((1, 2, LAYERS, LAYERS, LAYERS))):
            if odd and choose.random() < 0.1:
                pair.empty(layer)
            elif odd and choose.random() < 0.1:
                pair.chunk(layer)
            else:
                swapped, other = odd and choose.random() < 0.2, odd and choose.random() < 0.2
                few = choose.choice((1, 2)) if odd and choose.random() < 0.1 else readings
                used += pair.layer(layer, batch=batch, readings=few, swapped=swapped, other=other)
    pair.check()
    assert used > 200


def test_what_was_not_written_counts_as_lost() -> None:
    telemetry = make()
    for layer in range(LAYERS):
        into = telemetry.stage(layer, BATCH, 1)
        assert into is not None
        telemetry.record(layer, [proved(*into.each[0])])
    tier = telemetry.snapshot().tier("proved")
    assert tier.nan.tolist() == [BATCH * HEADS] * LAYERS
    assert tier.certified.sum() == 0


def test_memory_grows_by_doubling_and_stays() -> None:
    telemetry = make()
    first = telemetry.stage(0, 1, 1)
    assert first is not None
    first.meter.fill_(0.5)
    for batch in [*range(1, 60), *range(60, 0, -7)]:
        assert telemetry.stage(0, batch, 2) is not None
        memory = telemetry._stages._memory
        assert sum(len(x) for x in memory) < 2 * len(memory[-1])
    assert len(memory[-1]) < 2 * 2 * LAYERS * 2 * 60 * HEADS
    assert memory[0].data_ptr() == first.meter.data_ptr()
    assert bool((memory[0][: first.meter.numel()] == 0.5).all())
    assert len(telemetry._stages._stages) <= 64


def test_no_place() -> None:
    """Nothing to write, or too much: none, and what is recorded is counted all the same."""
    telemetry = make()
    assert telemetry.stage(0, 0, 1) is None
    assert telemetry.stage(0, 1, 0) is None
    most = PENDING // (LAYERS * HEADS)
    assert telemetry.stage(0, most + 1, 1) is None
    pair = Pair()
    pair.staged._stages.most = LAYERS * 2 * HEADS
    for _ in range(2):
        assert [pair.layer(layer, batch=2) for layer in range(LAYERS)] == [False] * LAYERS
    assert [pair.layer(layer, batch=1) for layer in range(LAYERS)] == [True] * LAYERS
    pair.check()
    assert pair.staged.snapshot().steps == 3


def test_bad_calls() -> None:
    telemetry = make()
    for name, arguments in (
        ("layer", (LAYERS, 1, 1)), ("layer", (-1, 1, 1)), ("layer", (True, 1, 1)), ("batch", (0, -1, 1)),
        ("batch", (0, 1.5, 1)), ("batch", (0, True, 1)), ("readings", (0, 1, 3)), ("readings", (0, 1, -1)),
        ("readings", (0, 1, None)),
    ):  # fmt: skip
        with pytest.raises(InputError, match=name):
            telemetry.stage(*arguments)  # type: ignore[arg-type]
    only = make(tiers=("proved",))
    into = only.stage(0, 1, 1)
    assert into is not None
    with pytest.raises(InputError, match="proved-nonadaptive"):
        only.record(0, [nonadaptive(*into.each[0])])
    twice = telemetry.stage(0, 1, 2)
    assert twice is not None
    with pytest.raises(InputError, match="two of"):
        telemetry.record(0, [proved(*x) for x in twice.each])
    telemetry.close()
    with pytest.raises(WitCertError, match="closed"):
        telemetry.stage(0, 1, 1)


def test_inference_mode_and_outside() -> None:
    pair = Pair()
    with torch.inference_mode():
        for layer in range(LAYERS):
            assert pair.layer(layer)
    for layer in range(LAYERS):
        assert pair.layer(layer)
    pair.check()


@pytest.mark.parametrize("kernels", [False, True])
@pytest.mark.parametrize("name", ["scheme", "int8", "dither"])
def test_decode_of_a_pool_into_the_stage(name: str, kernels: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both paths of the store, against decodes into new tensors: the same readings, the same record."""
    monkeypatch.setattr(triton.knobs.runtime, "interpret", INTERPRETED)
    if DEVICE == "cuda" and not kernels:
        pytest.skip("the float64 path is for the CPU")
    f, seqs = filled(name, [19, 3], kernels=kernels)
    c = f.pool.config
    meter = f.pool.meter_for("tierB" if name == "dither" else "half" if name == "int8" else "band", Budget(c.layers, 4, 2))
    assert meter is not None
    staged, plain = (Telemetry(c.layers, c.heads, device=f.pool.device) for _ in range(2))
    for _ in range(2):
        for layer in range(c.layers):
            q = torch.randn(2, c.heads, 64, device=f.pool.device).to(c.dtype)
            want = ops.decode(f.pool, layer, q, seqs, scale=0.125, meter=meter)
            into = staged.stage(layer, 2, len(want.readings))
            assert into is not None
            got = ops.decode(f.pool, layer, q, seqs, scale=0.125, meter=meter, into=into)
            assert torch.equal(got.out, want.out)
            for a, b in zip(got.readings, want.readings, strict=True):
                assert torch.equal(torch.as_tensor(a.meter.value), torch.as_tensor(b.meter.value))
                assert torch.equal(a.log_a, b.log_a)
                assert torch.equal(a.c_max, b.c_max)
            staged.record(layer, got.readings)
            plain.record(layer, want.readings)
        assert staged._staged == 0
        assert not staged._waiting
    assert torch.equal(staged._record.memory, plain._record.memory)
    with pytest.raises(InputError, match="into holds readings"):
        ops.decode(f.pool, 0, q, seqs, scale=0.125, meter=meter, into=staged.stage(0, 3, len(want.readings)))
    with pytest.raises(InputError, match="no meter"):
        ops.decode(f.pool, 0, q, seqs, scale=0.125, into=staged.stage(0, 2, len(want.readings)))


@pytest.mark.gpu
def test_replays_of_staged_steps_are_counted() -> None:
    """Captured on one stage, replayed between eager steps, also after a larger step took other memory."""
    telemetry = Telemetry(LAYERS, HEADS, device="cuda")
    source = torch.rand(2, 2, BATCH, HEADS, device="cuda")

    def step(batch: int = BATCH) -> None:
        for layer in range(LAYERS):
            into = telemetry.stage(layer, batch, 2)
            assert into is not None
            meters, tops = source if batch == BATCH else torch.rand(2, 2, batch, HEADS, device="cuda")
            telemetry.record(layer, decoded(meters, tops, into))

    step()
    graph = torch.cuda.CUDAGraph()
    with telemetry.exclusive(), torch.cuda.graph(graph):
        step()
    for _ in range(3):
        graph.replay()
        step()
    step(8 * BATCH)
    for _ in range(4):
        source.copy_(torch.rand_like(source))
        graph.replay()
    got = telemetry.snapshot()
    assert got.steps == 1 + 3 + 3 + 1 + 4
    tier = got.tier("proved")
    assert tier.cells.tolist() == [(11 + 8) * BATCH * HEADS] * LAYERS
    assert torch.equal(torch.tensor(tier.last), source[0, 0].amax(0).double().cpu().expand(LAYERS, -1))
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    fresh = Telemetry(LAYERS, HEADS, device="cuda")
    other = torch.cuda.CUDAGraph()
    with torch.cuda.graph(other):
        assert fresh.stage(0, BATCH, 2) is None
