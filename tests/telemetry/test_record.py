"""Telemetry.record: counts equal a direct count, tiers stay apart, nothing waits, bad calls are refused and count nothing."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import triton
from torch.utils._python_dispatch import TorchDispatchMode

from witcert.errors import InputError, WitCertError
from witcert.kernels.telemetry import LOST, ONE, edges
from witcert.telemetry import Snapshot, Telemetry
from witcert.telemetry.history import POINTS, History
from witcert.telemetry.snapshot import Point, quantile

from .common import BATCH, HEADS, LAYERS, fill, measured, nonadaptive, proved

NAN, INF = math.nan, math.inf
INTERPRETED = triton.knobs.runtime.interpret
interpreted = pytest.mark.skipif(not INTERPRETED, reason="the kernel is compiled here and cannot reach CPU tensors")


def make(**options: Any) -> Telemetry:
    return Telemetry(LAYERS, HEADS, **options)


def test_counts_are_a_direct_count() -> None:
    telemetry = make()
    meters = fill(telemetry, 5, repaired=torch.tensor([[True, False], [True, True]]), bytes=1000)
    got = telemetry.snapshot()
    assert got.steps == 5
    assert got.repairs == 5 * LAYERS * 3
    assert got.pagein_bytes == 5 * LAYERS * 1000
    assert got.violations == 0
    for i, tier in enumerate(got.tiers):
        x = meters[:, :, i].transpose(0, 1).reshape(LAYERS, -1, HEADS).double().numpy()  # [layers, steps * batch, heads]
        assert tier.cells.tolist() == [5 * BATCH * HEADS] * LAYERS
        assert tier.certified.tolist() == (x <= 0.2).sum((1, 2)).tolist()
        upper = np.array(edges()[:ONE])
        for layer in range(LAYERS):
            expected = np.bincount(np.searchsorted(upper, x[layer].ravel()), minlength=ONE)
            assert tier.histogram[layer, :ONE].tolist() == expected.tolist()
        assert np.array_equal(tier.worst, x.max(1))
        assert np.array_equal(tier.last, meters[-1, :, i].amax(1).double().numpy())
        for p in (0.5, 0.95, 1.0):
            exact = np.quantile(x, p, method="inverted_cdf")
            assert exact <= tier.quantile(p) <= max(1.26 * exact, 2.0**-20)  # type: ignore[operator]
    assert [t.label for t in got.tiers] == ["proved", "proved-nonadaptive"]
    assert [t.delta for t in got.tiers] == [0.0, 0.01]


def test_lost_cells_count_as_1_and_apart() -> None:
    telemetry = make()
    meter = torch.tensor([[0.1, 1.0, NAN, 1.0, 0.5, -0.5]])
    c_max = torch.tensor([[0.2, INF, 1.0, NAN, INF, 1.0]])
    telemetry.record(0, (proved(meter, c_max),))
    tier = telemetry.snapshot().tier("proved")
    assert tier.cells[0] == 6
    assert tier.nan[0] == 4
    assert tier.certified[0] == 1
    assert tier.violations[0] == 3  # NaN, 0.5 in spite of C = inf, -0.5
    assert tier.worst[0].tolist() == [pytest.approx(0.1), 1, 1, 1, 1, 1]
    assert tier.units[0] == math.ceil(float(torch.tensor(0.1)) * 2**24) + 5 * 2**24
    assert tier.quantile(0.5) == 1.0


def test_wide_meters_are_rounded_up() -> None:
    """A float64 reading just above an edge, or above tau, is not counted below it."""
    telemetry = make(tau=0.25)
    meter = torch.full((1, HEADS), 0.25, dtype=torch.float64)
    meter[0, 0] += 1e-12
    telemetry.record(0, (proved(meter),))
    tier = telemetry.snapshot().tier("proved")
    assert tier.certified[0] == HEADS - 1
    assert tier.worst[0, 0] > 0.25


def test_a_chunk_counts_only_its_queries() -> None:
    telemetry = make()
    meter = torch.rand(2, 4, HEADS)
    telemetry.record(1, (proved(meter),), lens=torch.tensor([3, 0]))
    tier = telemetry.snapshot().tier("proved")
    assert tier.cells.tolist() == [0, 3 * HEADS, 0]
    assert np.array_equal(tier.worst[1], meter[0, :3].amax(0).double().numpy())


def test_steps_end_with_the_last_layer_or_when_a_layer_comes_again() -> None:
    telemetry = make()
    meter = torch.rand(1, HEADS)
    for layer in (0, 1, 2, 0, 0, 1):
        telemetry.record(layer, (proved(meter),) if layer != 2 else ())
    assert telemetry.read().steps == 2  # 0 1 2, 0; what waits is not counted yet
    assert telemetry.snapshot().steps == 3
    assert telemetry.snapshot().tier("proved").cells.tolist() == [3 * HEADS, 2 * HEADS, 0]


def test_another_number_of_rows_begins_another_count() -> None:
    telemetry = make()
    for rows in (1, 4):
        telemetry.record(rows // 4, (proved(torch.rand(rows, HEADS)),))
    telemetry.record(2, (proved(torch.rand(2, 3, HEADS)),))
    assert telemetry.snapshot().tier("proved").cells.tolist() == [HEADS, 4 * HEADS, 6 * HEADS]


@interpreted
def test_the_reference_and_the_kernel_count_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """The path without Triton against the path with it."""
    meters = torch.rand(3, 2, BATCH, HEADS) ** 4
    results = []
    for interpret in (True, False):
        monkeypatch.setattr(triton.knobs.runtime, "interpret", interpret)
        telemetry = make(sample=0.25)
        for step in meters:
            for layer in range(LAYERS):
                telemetry.record(layer, (proved(step[0]), nonadaptive(step[1])))
        results.append(telemetry._record.memory.clone())
    assert torch.equal(*results)


class NoWaiting(TorchDispatchMode):
    """Forbids every operation that reads a tensor's numbers on the host or moves it there."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name()
        assert not any(x in name for x in ("_local_scalar_dense", "nonzero", "aten::equal", "_to_copy", "unique")), name
        return func(*args, **(kwargs or {}))


@interpreted
def test_nothing_on_the_hot_path_reads_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the kernel path (interpreted here): no operation whose result the host would have to wait for."""
    monkeypatch.setattr(triton.knobs.runtime, "interpret", True)
    telemetry = make(jsonl=None)
    fill(telemetry, 1)
    meters = torch.rand(4, BATCH, HEADS)
    with NoWaiting():
        for meter in meters:
            for layer in range(LAYERS):
                telemetry.record(layer, (proved(meter), nonadaptive(meter)), request=["a", "b"], bytes=3, repaired=0)
        with pytest.raises(AssertionError):
            float(meters[0, 0, 0])
    assert telemetry.snapshot().steps == 5


@pytest.mark.gpu
def test_no_host_synchronization(tmp_path: Any) -> None:
    telemetry = Telemetry(LAYERS, HEADS, device="cuda", jsonl=tmp_path / "run.jsonl", sample=1.0)
    meters = torch.rand(100, BATCH, HEADS, device="cuda")

    def step(meter: torch.Tensor) -> None:
        for layer in range(LAYERS):
            telemetry.record(layer, (proved(meter), nonadaptive(meter)))

    step(meters[0])
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for meter in meters:  # more than one drain of the ring
            step(meter)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    got = telemetry.snapshot()
    assert got.steps == 101
    assert got.dropped == 0
    telemetry.close()


@pytest.mark.gpu
def test_replays_of_a_graph_are_counted() -> None:
    telemetry = Telemetry(LAYERS, HEADS, device="cuda")
    meter = torch.rand(BATCH, HEADS, device="cuda")

    def step(layers: int = LAYERS) -> None:
        for layer in range(layers):
            telemetry.record(layer, (proved(meter), nonadaptive(meter)))

    step()
    graph = torch.cuda.CUDAGraph()
    with telemetry.exclusive(), torch.cuda.graph(graph):
        step()
    for _ in range(7):
        graph.replay()
    assert telemetry.snapshot().steps == 8
    assert telemetry.snapshot().tier("proved").cells.tolist() == [8 * BATCH * HEADS] * LAYERS
    part = torch.cuda.CUDAGraph()
    with telemetry.exclusive(), torch.cuda.graph(part):
        step(1)
    with pytest.raises(WitCertError, match="whole steps"):
        telemetry.snapshot()


BAD: list[tuple[str, Callable[[Telemetry], None]]] = [
    ("layer", lambda t: t.record(LAYERS, ())),
    ("layer", lambda t: t.record(True, ())),
    ("measured", lambda t: t.record(0, (measured(torch.rand(1, HEADS)),))),
    ("readings", lambda t: t.record(0, (torch.rand(1, HEADS),))),  # type: ignore[arg-type]
    ("two of", lambda t: t.record(0, (proved(torch.rand(1, HEADS)), proved(torch.rand(1, HEADS), delta=0.01)))),
    ("meter", lambda t: t.record(0, (proved(torch.rand(1, HEADS).half()),))),
    ("meter", lambda t: t.record(0, (proved(torch.rand(1, HEADS + 1)),))),
    ("meter", lambda t: t.record(0, (proved(torch.rand(HEADS)),))),
    ("meter", lambda t: t.record(0, (proved(torch.rand(1, HEADS)), nonadaptive(torch.rand(2, HEADS))))),
    ("c_max", lambda t: t.record(0, (proved(torch.rand(2, HEADS), torch.rand(1, HEADS)),))),
    ("bytes", lambda t: t.record(0, (), bytes=-1)),
    ("bytes", lambda t: t.record(0, (), bytes=1.5)),  # type: ignore[arg-type]
    ("repaired", lambda t: t.record(0, (), repaired=-1)),
    ("repaired", lambda t: t.record(0, (), repaired=True)),
    ("repaired", lambda t: t.record(0, (proved(torch.rand(2, HEADS)),), repaired=torch.ones(1, 2, dtype=torch.bool))),
    ("repaired", lambda t: t.record(0, (proved(torch.rand(2, HEADS)),), repaired=torch.ones(2, 2))),
    ("request", lambda t: t.record(0, (proved(torch.rand(2, HEADS)),), request=["a"])),
    ("request", lambda t: t.record(0, (proved(torch.rand(2, HEADS)),), request=[1.5, "a"])),  # type: ignore[list-item]
    ("lens", lambda t: t.record(0, (proved(torch.rand(2, HEADS)),), lens=torch.tensor([1, 1]))),
    ("lens", lambda t: t.record(0, (proved(torch.rand(2, 3, HEADS)),), lens=torch.tensor([1]))),
]


@pytest.mark.parametrize(("match", "call"), BAD, ids=[f"{i}-{m}" for i, (m, _) in enumerate(BAD)])
def test_bad_calls_are_refused_and_count_nothing(match: str, call: Callable[[Telemetry], None]) -> None:
    telemetry = make()
    with pytest.raises(InputError, match=match):
        call(telemetry)
    got = telemetry.snapshot()
    assert (got.steps, got.repairs, got.pagein_bytes) == (0, 0, 0)
    assert not any(t.cells.any() for t in got.tiers)


def test_bad_settings() -> None:
    for name, value in (("tiers", ("gold",)), ("tiers", ()), ("tau", 0), ("sample", 0), ("sample", 2), ("sample", NAN)):
        with pytest.raises(InputError, match=name):
            make(**{name: value})
    with pytest.raises(InputError, match="heads"):
        Telemetry(1, 0)
    telemetry = make()
    telemetry.count_violations(2)
    with pytest.raises(InputError, match="number"):
        telemetry.count_violations(-1)
    assert telemetry.snapshot().violations == 2
    telemetry.close()
    with pytest.raises(WitCertError, match="closed"):
        telemetry.record(0, ())


def test_a_third_tier_is_counted_apart() -> None:
    telemetry = make(tiers=("measured", "proved"))
    telemetry.record(2, (measured(torch.full((1, HEADS), 0.5)), proved(torch.full((1, HEADS), 0.125))))
    got = telemetry.snapshot()
    assert (got.tier("measured").quantile(0.5), got.tier("proved").quantile(0.5)) == (0.5, 0.125)
    with pytest.raises(InputError, match="label"):
        got.tier("proved-nonadaptive")


def test_json_and_back() -> None:
    telemetry = make()
    fill(telemetry, 2)
    telemetry.record(0, (proved(torch.full((1, HEADS), NAN)),))
    got = telemetry.snapshot()
    text = json.dumps(got.to_json(), allow_nan=False)
    again = Snapshot.from_json(json.loads(text))
    assert json.dumps(again.to_json(), allow_nan=False) == text
    assert again.tier("proved").histogram[0, LOST] == HEADS
    for damage in ("tiers", "tau", "history"):
        data = json.loads(text)
        del data[damage]
        with pytest.raises(InputError, match="damaged"):
            Snapshot.from_json(data)
    for other in (None, [], {"format": "x"}):
        with pytest.raises(InputError, match="not a snapshot"):
            Snapshot.from_json(other)


def test_quantiles_of_few_and_none() -> None:
    histogram = np.zeros(LOST + 2, dtype=np.int64)
    assert quantile(histogram, 0.5) is None
    histogram[0] = 1
    assert quantile(histogram, 0.0) == quantile(histogram, 1.0) == edges()[0]
    histogram[LOST] = 1
    assert quantile(histogram, 0.5) == edges()[0]
    assert quantile(histogram, 0.51) == 1.0


def test_history_is_bounded_and_keeps_the_newest() -> None:
    history = History()
    for i in range(20 * POINTS):
        history.add(Point(i * 0.7, i, 0, 0, {}))
    points = history.points()
    assert len(points) <= POINTS + 1
    assert points[-1].steps == 20 * POINTS - 1
    assert points[0].steps == 0
    times = [p.time for p in points]
    assert times == sorted(times)


def test_snapshots_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        make().snapshot().steps = 3  # type: ignore[misc]
