"""Readings put where the caller says: the same bits, nothing beside them touched, and what does not fit refused at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from witcert.errors import InputError
from witcert.kernels.decode import BandMeter, DecodeOutput, PagePart, ReadingBuffers, Tuning, decode, launch, merge
from witcert.kernels.decode.launch import Meter
from witcert.kernels.formats import PageTable
from witcert.store import ops

from .build import Case, exact_case
from .common import DEVICE, VARIANTS, make

SMALL = Tuning(16, splits=2)
METERED = [v for v in VARIANTS if v not in ("exact", "exact-bf16")]


def run(case: Case, meter: Meter | None, tuning: Tuning | None = SMALL, **options: Any) -> DecodeOutput:
    return decode(case.q, case.store, case.table, scale=case.scale, meter=meter, tuning=tuning, **options)


def tensors(got: DecodeOutput) -> list[Tensor]:
    readings = [(torch.as_tensor(r.meter.value), r.log_a, r.c_max) for r in got.readings]
    return [got.out, got.lse, *(x for three in readings for x in three)]


def buffers(*shape: int, device: str = DEVICE, offset: int = 0) -> ReadingBuffers:
    """Poisoned, and at an address that is a multiple of 16 bytes only where the offset is one of 4."""
    memory = torch.full((2, offset + torch.Size(shape).numel()), torch.nan, device=device)
    meter, c_max = (x[offset:].view(shape) for x in memory)
    return ReadingBuffers(meter, c_max)


@pytest.mark.parametrize("variant", METERED)
@pytest.mark.parametrize("offset", [0, 5])
def test_the_same_bits(variant: str, offset: int) -> None:
    case, meter = make(variant, [37, 1, 0], 1, 3, 64, 16)
    want = run(case, meter, window=30)
    into = buffers(len(want.readings), 3, 3, offset=offset)
    got = run(case, meter, window=30, into=into)
    for a, b in zip(tensors(got), tensors(want), strict=True):
        assert torch.equal(a, b)
    for reading, other, (value, c_max) in zip(got.readings, want.readings, into.each, strict=True):
        assert reading.meter.value is value
        assert reading.c_max is c_max
        assert type(reading.meter) is type(other.meter)
        assert (reading.meter.theorem, reading.meter.delta) == (other.meter.theorem, other.meter.delta)
    assert torch.equal(into.meter, torch.stack([torch.as_tensor(r.meter.value) for r in want.readings]))
    assert torch.equal(into.c_max, torch.stack([r.c_max for r in want.readings]))


def test_one_layer_of_many_touches_no_other() -> None:
    case, meter = make("dither-tierB", [20, 7], 1, 3, 64, 16)
    memory = torch.full((2, 5, 2, 2, 3), -7.0, device=DEVICE)
    got = run(case, meter, into=ReadingBuffers(memory[0, 2], memory[1, 2]))
    assert torch.equal(memory[0, 2], torch.stack([torch.as_tensor(r.meter.value) for r in got.readings]))
    assert bool((memory[:, [0, 1, 3, 4]] == -7.0).all())
    assert not bool((memory[:, 2] == -7.0).any())


def test_no_sequences() -> None:
    case = exact_case([5], 1, 2, 64, 1, device=DEVICE)
    none = PageTable(case.table.pages[:0], case.table.seq_lens[:0], 1)
    into = buffers(1, 0, 2)
    got = decode(case.q[:0], case.store, none, scale=1.0, meter=BandMeter(), into=into)
    assert got.readings[0].meter.value is into.each[0][0]


def test_what_does_not_fit_is_refused_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "stage1_kernel", None)  # a launch would be a TypeError
    band, one = make("exact-band", [20, 7], 1, 3, 64, 16)
    two_tiers, two = make("dither-tierB", [20, 7], 1, 3, 64, 16)
    refused: list[tuple[str, Case, Meter | None, object]] = [
        ("into holds readings", band, one, buffers(2, 2, 3)),
        ("into holds readings", two_tiers, two, buffers(1, 2, 3)),
        ("into holds readings", band, one, buffers(1, 1, 3)),
        ("into holds readings", band, one, buffers(1, 2, 4)),
        ("into holds readings", band, one, buffers(1, 3, 2)),
        ("no meter", band, None, buffers(1, 2, 3)),
        ("into is Tensor", band, one, torch.zeros(1, 2, 3, device=DEVICE)),
        ("into is tuple", band, one, (torch.zeros(1, 2, 3), torch.zeros(1, 2, 3))),
    ]
    for message, case, meter, into in refused:
        with pytest.raises(InputError, match=message):
            run(case, meter, into=into)
    with pytest.raises(TypeError):
        run(band, one, into=buffers(1, 2, 3))
    there = buffers(1, 2, 3, device="cpu")
    there.check((1, 2, 3), torch.device("cpu"))
    with pytest.raises(InputError, match=r"expected .* on cuda"):
        there.check((1, 2, 3), torch.device("cuda", 0))


def test_buffers_that_are_none() -> None:
    good = torch.zeros(2, 3, 4)
    whole = torch.zeros(40)
    bad: list[tuple[str, object, object]] = [
        ("meter is torch.float64", good.double(), good),
        ("c_max is torch.float16", good, good.half()),
        ("meter is .*3, 4", good[0], good),
        ("c_max is float", good, 0.5),
        ("meter is", torch.zeros(2, 4, 3).transpose(1, 2), good),
        ("must agree", good, torch.zeros(2, 3, 5)),
        ("must agree", good, torch.zeros(2, 3, 4, device="meta")),
        ("overlap", good, good),
        ("overlap", whole[:24].view(2, 3, 4), whole[16:].view(2, 3, 4)),
        ("overlap", whole[16:].view(2, 3, 4), whole[:24].view(2, 3, 4)),
    ]
    for message, meter, c_max in bad:
        with pytest.raises(InputError, match=message):
            ReadingBuffers(meter, c_max)  # type: ignore[arg-type]
    side_by_side = torch.zeros(2, 2, 3, 4)
    assert len(ReadingBuffers(side_by_side[0], side_by_side[1]).each) == 2


@pytest.mark.gpu
@pytest.mark.parametrize("variant", ["exact-band", "dither-tierB"])
def test_replays_write_there(variant: str) -> None:
    """A captured decode goes on writing into the buffers, at addresses of every alignment."""
    case, meter = make(variant, [300, 77], 1, 3, 128, 16)
    for offset in range(4):
        into = buffers(2 if "tierB" in variant else 1, 2, 3, offset=offset)
        run(case, meter, None, into=into)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run(case, meter, None, into=into)
        for _ in range(2):
            case.q.copy_(torch.randn_like(case.q))
            graph.replay()
            want = run(case, meter, None)
            assert torch.equal(into.meter, torch.stack([torch.as_tensor(r.meter.value) for r in want.readings]))
            assert torch.equal(into.c_max, torch.stack([r.c_max for r in want.readings]))


@pytest.mark.gpu
def test_buffers_of_another_device() -> None:
    case, meter = make("exact-band", [20, 7], 1, 3, 64, 16)
    with pytest.raises(InputError, match="on cpu; expected"):
        run(case, meter, into=buffers(1, 2, 3, device="cpu"))


@pytest.mark.parametrize("variant", ["exact-band", "dither-tierB"])
def test_a_merge_puts_its_readings_there(variant: str) -> None:
    """The same bits as without, through the kernel and through float64; a merge of another size is refused."""
    case, meter = make(variant, [37, 5, 20], 1, 3, 64, 16)
    parts = torch.zeros(3, 1, case.table.pages.shape[1], dtype=torch.uint8, device=DEVICE)
    parts[..., 1] = 1
    first, second = (run(case, meter, part=PagePart(parts, i)) for i in (0, 1))
    want = merge(first, second, tokens=64)
    into = buffers(len(want.readings), 3, 3)
    got = merge(first, second, tokens=64, into=into)
    for a, b in zip(tensors(got), tensors(want), strict=True):
        assert torch.equal(a, b)
    for reading, (value, c_max) in zip(got.readings, into.each, strict=True):
        assert reading.meter.value is value
        assert reading.c_max is c_max
    with pytest.raises(InputError, match="into holds readings"):
        merge(first, second, tokens=64, into=buffers(len(want.readings), 2, 3))
    if DEVICE == "cpu":
        pool: Any = SimpleNamespace(kernels=False)
        plain, there = (ops.merge(pool, first, second, tokens=64, into=x) for x in (None, buffers(len(want.readings), 3, 3)))
        for a, b in zip(tensors(there), tensors(plain), strict=True):
            assert torch.equal(a, b)
