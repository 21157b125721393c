"""The step record: every cell counted once, where it belongs, exactly at the edges; kernel and reference agree to the bit."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.kernels.stores import DEVICE
from witcert.errors import InputError
from witcert.kernels.telemetry import COLUMNS, LOST, ONE, OUTSIDE, UNIT, StepRecord, edges
from witcert.kernels.telemetry.step import float32_below, tile_of
from witcert.kernels.telemetry.step_reference import add_reference

TIERS = ("proved", "proved-nonadaptive")
NAN, INF = math.nan, math.inf


def column_of(meter: float, c_max: float) -> int:
    """By search through the edges, one cell at a time."""
    if math.isnan(meter) or not math.isfinite(c_max):
        return LOST
    if not 0.0 <= meter <= 1.0:
        return OUTSIDE
    if meter == 1.0:
        return ONE
    return next(i for i, edge in enumerate(edges()[:-1]) if meter <= edge)


def hard(*shape: int) -> tuple[Tensor, Tensor]:
    """Meters of all sizes: every edge, its neighbours, tau and its neighbours, and what should never be; and their C."""
    sharp = torch.tensor([*edges(), 0.2, float32_below(0.2)], dtype=torch.float32)
    near = [sharp.nextafter(torch.tensor(x)) for x in (-2.0, 2.0)]
    odd = torch.tensor([1.5, INF, NAN, -0.0, 0.0, -1e-9, -INF, 1e-45, 1e-38, 0.0, 0.5, 1.0, 1.0, NAN])
    odd_c = torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0, 1.0, -INF, 1.0, 1.0, NAN, INF, INF, NAN, INF])
    meter = torch.cat((sharp, *near, odd))
    c_max = torch.cat((torch.rand(len(meter) - len(odd)), odd_c))
    cells = math.prod(shape)
    rest = max(0, cells - len(meter))
    meter = torch.cat((meter, torch.rand(rest) ** 8))
    c_max = torch.cat((c_max, torch.rand(rest)))
    order = torch.randperm(len(meter))[:cells] if cells < len(meter) else torch.randperm(cells)
    return meter[order].reshape(shape), c_max[order].reshape(shape)


def stage_of(segments: int, rows: int, heads: int) -> Tensor:
    return torch.stack(hard(segments, rows, heads)).to(DEVICE)


def pair(layers: int, heads: int, **options: object) -> tuple[StepRecord, StepRecord]:
    both = [StepRecord.empty(TIERS, layers, heads, tau=0.2, device=DEVICE, **options) for _ in range(2)]  # type: ignore[arg-type]
    return both[0], both[1]


@pytest.mark.parametrize("rows", [1, 2, 5, 16, 33, 130])
@pytest.mark.parametrize("heads", [1, 9, 32])
@pytest.mark.parametrize("masked", [False, True])
def test_kernel_is_the_reference(rows: int, heads: int, masked: bool) -> None:
    kernel, reference = pair(3, heads, capacity=100)
    for step, places in enumerate(([0, 3, 1, 4, 2, 5], [2, 5], [4])):
        stage = stage_of(len(places), rows, heads)
        index = torch.tensor(places, device=DEVICE)
        stride = max(1, -(-stage[0].numel() // 64)) + step
        kernel.add(stage, index, token=40 + step, stride=stride, masked=masked)
        add_reference(reference, stage, index, token=40 + step, stride=stride, masked=masked)
        for name, part in kernel.view().items():
            assert torch.equal(part, reference.view()[name]), name


def test_tiles() -> None:
    """No more of a tile than there is, but a number for each lane of the warp; the tiles cover all rows."""
    for heads in (1, 2, 9, 28, 32, 33, 1024):
        for rows in (1, 2, 3, 7, 8, 16, 31, 64, 300):
            padded, tile = tile_of(rows, heads)
            assert heads <= padded < 2 * heads
            assert tile & (tile - 1) == 0
            assert 32 <= tile * padded <= 1024
            assert tile < 2 * rows or tile * padded == 32
    assert tile_of(1, 9) == (16, 2)
    assert tile_of(1, 28) == (32, 1)
    assert tile_of(16, 9) == (16, 16)
    assert tile_of(16, 32) == (32, 16)


def test_reference_is_a_direct_count() -> None:
    record, _ = pair(2, 7)
    stage = stage_of(4, 40, 7)
    add_reference(record, stage, torch.arange(4, device=DEVICE), stride=64)
    parts = {name: part.cpu() for name, part in record.view().items()}
    for row in range(4):
        cells = [(float(m), float(c)) for m, c in zip(stage[0, row].flatten(), stage[1, row].flatten(), strict=True)]
        expected = [0] * COLUMNS
        for m, c in cells:
            expected[column_of(m, c)] += 1
        assert parts["histogram"][row].tolist() == expected
        fine = [m for m, c in cells if 0.0 <= m <= 1.0 and math.isfinite(c)]
        bad = [m for m, c in cells if not 0.0 <= m <= 1.0 or (m < 1.0 and not math.isfinite(c))]
        certified, violations, units = parts["count"][row].tolist()
        assert certified == sum(m <= 0.2 for m in fine)
        assert violations == len(bad)
        assert units == sum(math.ceil(m / UNIT) for m in fine) + (len(cells) - len(fine)) * 2**24
        for head in range(7):
            column = zip(stage[0, row, :, head].tolist(), stage[1, row, :, head].tolist(), strict=True)
            worst = max(m if 0.0 <= m <= 1.0 and math.isfinite(c) else 1.0 for m, c in column)
            bits = int(torch.tensor(worst).view(torch.int32))
            assert parts["last"][row, head] == (1 << 32 | bits)
            assert parts["worst"][row, head] == bits + 1


def test_every_edge_and_its_neighbours() -> None:
    """Through the kernel: (edge before, edge] exactly, and 1 apart from what is just below it."""
    for column, edge in enumerate(edges()):
        x = torch.tensor(edge)
        below, above = x.nextafter(torch.tensor(-1.0)), x.nextafter(torch.tensor(2.0))
        record = StepRecord.empty(("proved",), 1, 3, tau=0.2, device=DEVICE)
        meter = torch.stack((below, x, above)).view(1, 1, 3)
        record.add(torch.stack((meter, torch.ones_like(meter))).to(DEVICE), torch.zeros(1, dtype=torch.int64, device=DEVICE))
        counts = record.view()["histogram"][0].tolist()
        if column == ONE - 1:  # the edge is 1, which belongs to the next column
            expected = {column: 1, ONE: 1, OUTSIDE: 1}
        elif column == ONE:
            expected = {ONE - 1: 1, ONE: 1, OUTSIDE: 1}
        else:
            expected = {column: 2, column + 1: 1}
        assert {i: n for i, n in enumerate(counts) if n} == expected, edge


@settings(max_examples=25)
@given(st.lists(st.tuples(st.floats(width=32), st.floats(width=32)), min_size=1, max_size=40), st.integers(1, 8))
def test_any_bits(cells: list[tuple[float, float]], stride: int) -> None:
    """Whatever float32 numbers come in, each is in one column, and the kernel agrees with the search."""
    record = StepRecord.empty(("proved",), 1, len(cells), tau=0.5, device=DEVICE)
    stage = torch.tensor(cells, dtype=torch.float32).T.reshape(2, 1, 1, len(cells)).contiguous().to(DEVICE)
    record.add(stage, torch.zeros(1, dtype=torch.int64, device=DEVICE), stride=stride)
    counts = record.view()["histogram"][0].tolist()
    assert sum(counts) == len(cells)
    for column in range(COLUMNS):
        assert counts[column] == sum(column_of(m, c) == column for m, c in cells)


def test_certified_means_at_most_tau_as_a_real_number() -> None:
    """The float32 nearest to 0.2 is above 0.2; the one below it is certified."""
    near = torch.tensor(0.2)
    assert float(near) > 0.2
    record = StepRecord.empty(("proved",), 1, 2, tau=0.2, device=DEVICE)
    meter = torch.stack((near, near.nextafter(torch.tensor(0.0)))).view(1, 1, 2)
    record.add(torch.stack((meter, meter)).to(DEVICE), torch.zeros(1, dtype=torch.int64, device=DEVICE))
    assert record.view()["count"][0, 0] == 1


def test_every_cell_has_its_turn_in_the_ring() -> None:
    record = StepRecord.empty(TIERS, 1, 6, tau=0.2, capacity=64, device=DEVICE)
    index = torch.tensor([0, 1], device=DEVICE)
    seen: list[tuple[int, int]] = []
    for step in range(7):
        meter = torch.rand(2, 5, 6)
        record.add(torch.stack((meter, meter + 1)).to(DEVICE), index, token=step, stride=7)
        parts = record.view()
        written = int(parts["state"][1])
        for i in range(len(seen), written):
            at, token, row, cell, bits = parts["ring"][i % 64].tolist()
            assert at == token == step
            pairs = torch.tensor([bits >> 32, bits & 0xFFFFFFFF], dtype=torch.int64).to(torch.int32).view(torch.float32)
            assert pairs[0] == meter[row].flatten()[cell]
            assert pairs[1] == (meter[row] + 1).flatten()[cell]
            seen.append((row, cell))
    assert len(seen) == len(set(seen)) == 60


def test_last_follows_the_steps_and_worst_stays() -> None:
    record = StepRecord.empty(("proved",), 1, 2, tau=0.2, device=DEVICE)
    index = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    for value in (0.25, 0.75, 0.5):
        record.add(torch.full((2, 1, 3, 2), value, device=DEVICE), index)
    parts = record.view()
    assert (parts["last"][0] >> 32).tolist() == [3, 3]
    bits = torch.stack((parts["last"][0] & 0xFFFFFFFF, parts["worst"][0] - 1)).to(torch.int32).view(torch.float32)
    assert bits.tolist() == [[0.5, 0.5], [0.75, 0.75]]


def test_refusals() -> None:
    for bad in ({"tiers": ()}, {"tiers": ("a", "a")}, {"layers": 0}, {"heads": 1025}, {"heads": True}, {"capacity": 63},
                {"tau": 0.0}, {"tau": NAN}, {"tau": 1.1}):  # fmt: skip
        with pytest.raises(InputError, match=next(iter(bad))):
            StepRecord.empty(**({"tiers": TIERS, "layers": 2, "heads": 4, "tau": 0.2} | bad))  # type: ignore[arg-type]
    record = StepRecord.empty(TIERS, 2, 4, tau=0.2, device=DEVICE)
    stage, index = torch.zeros(2, 1, 40, 4, device=DEVICE), torch.zeros(1, dtype=torch.int64, device=DEVICE)
    cases = [
        ("stage", stage.double(), index, 4), ("stage", stage[:1], index, 4), ("stage", stage.transpose(2, 3), index, 4),
        ("stage", 0.5, index, 4), ("rows", stage, index.int(), 4), ("rows", stage, index.repeat(2), 4),
        ("stride", stage, index, 2), ("stride", stage, index, 0), ("stride", stage, index, True),
    ]  # fmt: skip
    for match, x, rows, stride in cases:
        with pytest.raises(InputError, match=match):
            record.add(x, rows, stride=stride)  # type: ignore[arg-type]
    assert not record.memory.any()


@pytest.mark.gpu
def test_graph_and_no_synchronization() -> None:
    kernel, reference = pair(30, 9)
    stage, index = stage_of(60, 16, 9), torch.arange(60, device="cuda")
    kernel.add(stage, index, stride=200)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        kernel.add(stage, index, stride=200)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel.add(stage, index, stride=200)
    for _ in range(5):
        graph.replay()
    for _ in range(7):
        add_reference(reference, stage, index, stride=200)
    assert torch.equal(kernel.memory, reference.memory)
