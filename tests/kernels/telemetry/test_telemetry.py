"""Telemetry: every cell is counted once, in its tier and layer; NaN is counted apart; the ring holds what it says."""

import math

import pytest
import torch
from torch import Tensor

from tests.kernels.stores import DEVICE
from witcert.errors import InputError
from witcert.kernels.telemetry import BINS, Telemetry
from witcert.kernels.telemetry.reference import histogram_reference, samples_reference

TIERS = ("proved", "proved-nonadaptive")


def hard_meters(*shape: int) -> Tensor:
    """Meters over [0, 1] with the ends of bins, numbers just below 1, 1 itself, NaN, and what should never be."""
    meter = torch.rand(shape).flatten()
    edges = torch.arange(BINS + 1) / BINS
    special = torch.cat((edges, edges.nextafter(torch.tensor(-1.0)).clamp_min(0.0),
                         torch.tensor([1.5, math.inf, math.nan, -0.0, -1e-9, -math.inf, 1e-45])))  # fmt: skip
    meter[: min(len(meter), len(special))] = special[: len(meter)]
    return meter.reshape(shape).to(DEVICE)


def test_every_cell_is_counted_once_where_it_belongs() -> None:
    telemetry = Telemetry.empty(TIERS, 3, device=DEVICE)
    expected = torch.zeros_like(telemetry.histogram)
    for tier, layer, shape in ((0, 0, (4, 300)), (1, 2, (1, 7)), (0, 0, (2, 28)), (0, 1, (1,)), (1, 2, (1, 2048))):
        meter = hard_meters(*shape)
        telemetry.record(meter, tier=TIERS[tier], layer=layer)
        expected[tier, layer] += histogram_reference(meter)
    assert torch.equal(telemetry.histogram, expected)
    assert int(telemetry.histogram.sum()) == 1200 + 7 + 56 + 1 + 2048
    assert telemetry.state[0] == 5


def test_what_is_not_finite_is_counted_apart_although_its_meter_is_1() -> None:
    telemetry = Telemetry.empty(TIERS, 1, device=DEVICE)
    meter = torch.tensor([1.0, 1.0, 1.0, 0.5, math.nan, 1.0], device=DEVICE)
    c_max = torch.tensor([9.0, math.inf, math.nan, 1.0, 1.0, 0.0], device=DEVICE)
    telemetry.record(meter, tier="proved", layer=0, c_max=c_max)
    assert torch.equal(telemetry.histogram[0, 0], histogram_reference(meter, c_max).to(DEVICE))
    assert telemetry.histogram[0, 0, BINS:].tolist() == [2, 3, 0]


def test_the_ring_holds_the_last_samples_in_order() -> None:
    telemetry = Telemetry.empty(TIERS, 2, capacity=64, stride=5, device=DEVICE)
    expected: list[tuple[int, str, int, int, float]] = []
    for launch in range(12):
        meter = torch.rand(3, 11, device=DEVICE)
        tier, layer = TIERS[launch % 2], launch % 3 % 2
        telemetry.record(meter, tier=tier, layer=layer)
        for cell in samples_reference(33, launch, 5):
            expected.append((launch, tier, layer, cell, float(meter.flatten()[cell])))
    got = [(s.launch, s.tier, s.layer, s.cell, s.meter) for s in telemetry.samples()]
    assert len(expected) > 64
    assert got == expected[-64:]


def test_one_launch_never_overruns_the_ring() -> None:
    telemetry = Telemetry.empty(("proved",), 1, capacity=64, stride=1, device=DEVICE)
    telemetry.record(torch.rand(1000, device=DEVICE), tier="proved", layer=0)
    assert [s.cell for s in telemetry.samples()] == list(range(64))
    telemetry.record(torch.rand(0, device=DEVICE), tier="proved", layer=0)
    assert telemetry.state.tolist() == [2, 64]


def test_refusals() -> None:
    telemetry = Telemetry.empty(TIERS, 2, device=DEVICE)
    meter = torch.rand(4, device=DEVICE)
    cases: list[tuple[str, object, dict[str, object]]] = [
        ("tier", meter, {"tier": "measured", "layer": 0}),
        ("layer", meter, {"tier": "proved", "layer": 2}),
        ("layer", meter, {"tier": "proved", "layer": True}),
        ("meter", meter.double(), {"tier": "proved", "layer": 0}),
        ("meter", torch.rand(4, 4, device=DEVICE).T, {"tier": "proved", "layer": 0}),
        ("c_max", meter, {"tier": "proved", "layer": 0, "c_max": torch.rand(5, device=DEVICE)}),
        ("meter", 0.5, {"tier": "proved", "layer": 0}),
    ]
    for match, x, keywords in cases:
        with pytest.raises(InputError, match=match):
            telemetry.record(x, **keywords)  # type: ignore[arg-type]
    for bad in ({"tiers": ()}, {"tiers": ("a", "a")}, {"layers": 0}, {"capacity": 63}, {"stride": 0}):
        with pytest.raises(InputError, match=next(iter(bad))):
            Telemetry.empty(**({"tiers": TIERS, "layers": 2} | bad))  # type: ignore[arg-type]
    assert int(telemetry.histogram.sum()) == 0


@pytest.mark.gpu
def test_graph_of_many_layers() -> None:
    telemetry = Telemetry.empty(TIERS, 32, device="cuda")
    meters = [hard_meters(64, 32) for _ in range(32)]
    telemetry.record(meters[0], tier="proved", layer=0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for layer, meter in enumerate(meters):
            telemetry.record(meter, tier="proved", layer=layer)
    telemetry.histogram.zero_()
    for _ in range(5):
        graph.replay()
    expected = torch.stack([histogram_reference(m) for m in meters]) * 5
    assert torch.equal(telemetry.histogram[0], expected)
    assert telemetry.state[0] == 161
