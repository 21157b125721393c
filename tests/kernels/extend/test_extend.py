"""Every variant of extend against the float64 reference: output, mass, meters; and what may not change anything."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.decode.build import exact_case
from tests.kernels.decode.common import VARIANTS
from witcert.kernels.decode import BandMeter
from witcert.kernels.dither_int8_write import dither_int8_write
from witcert.kernels.formats import Dither
from witcert.kernels.rtn_write import rtn_write

from .build import Chunk, chunk_case, same_bits

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's, on NaN and overflow

OPTIONS = ["window", "softcap", "sinks", "window-softcap-sinks"]


def check(case: Chunk, factor: float = 1.1, constant: float = 3e-4) -> None:
    """Output near the reference and untouched by the meter; meters at least the reference's and little above them."""
    got, bare = case.run(), case.run(meter=None)
    assert torch.equal(got.out, bare.out)
    assert torch.equal(got.lse, bare.lse)
    assert bare.readings == ()
    rows = case.reference()
    assert len(rows) == int(case.lens.sum()) * case.q.shape[2]
    # weights, values and output rounded to 16 bits, and values that cancel
    tolerance = 1.5e-2 if case.q.dtype == torch.bfloat16 else 2e-3
    for (b, i, h), row in rows.items():
        error = float((got.out[b, i, h].double() - row.out).norm() / row.out.norm().clamp_min(0.05))
        assert error < tolerance, (b, i, h, error)
        assert abs(float(got.lse[b, i, h]) - float(row.lse)) < 2e-3
        for reading, wanted in zip(got.readings, row.meters, strict=True):
            value = float(torch.as_tensor(reading.meter.value)[b, i, h])
            assert float(wanted) <= value <= 1.0, (b, i, h, value - float(wanted))
            assert value <= float(wanted) * factor + constant, (b, i, h, value, float(wanted))
    for b, n in enumerate(case.lens.tolist()):
        assert not bool(got.out[b, n:].any())
        assert bool((got.lse[b, n:] == -torch.inf).all())
        for reading in got.readings:
            for x in (torch.as_tensor(reading.meter.value), reading.log_a, reading.c_max):
                assert bool((x[b, n:] == 0).all())


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("page", [1, 16])
def test_matches_reference(variant: str, page: int) -> None:
    check(chunk_case(variant, [35, 1, 0, 16], [5, 3, 4, 0], chunk=6, hkv=2, page=page))


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("variant", ["exact-band", "int8-m4-half", "dither-m2-tierB", "dither-m16-bf16-tierB"])
def test_options(variant: str, options: str) -> None:
    """A window of 11 cuts into the prefix of some queries and ends inside the chunk for others."""
    check(chunk_case(variant, [40, 0, 7], [4, 16, 14], options=options))


@pytest.mark.parametrize("window", [1, 2, 64, 10**12])
def test_windows(window: int) -> None:
    """From the query's own token alone to more than there is."""
    check(chunk_case("int8-half", [21, 3], [5, 8], options="window", window=window))


@pytest.mark.parametrize(("d", "group"), [(128, 7), (256, 1), (64, 16), (128, 9), (256, 3)])
@pytest.mark.parametrize("variant", ["exact-band", "dither-m8-tierB"])
def test_head_dims_and_groups(variant: str, d: int, group: int) -> None:
    check(chunk_case(variant, [21], [3], group=group, d=d))


@pytest.mark.parametrize("variant", ["exact-band8-bf16", "dither-values-tierB"])
@pytest.mark.parametrize(("prefix", "chunk"), [(17, 1), (0, 1), (0, 70), (33, 65)])
def test_lengths_of_chunks(variant: str, prefix: int, chunk: int) -> None:
    """One query as in decode, pure prefill, more than one program per head."""
    check(chunk_case(variant, [prefix], [chunk], page=1, group=1))


@pytest.mark.parametrize("kind", ["massive", "tiny", "flat", "zero", "huge"])
@pytest.mark.parametrize("variant", ["exact-band", "int8-half"])
def test_kinds_of_keys(variant: str, kind: str) -> None:
    """Massive keys make logits of thousands, for which half steps claim nothing; bounds and output stay in range."""
    case = chunk_case(variant, [33], [4], kind=kind, page=1)
    got = case.run()
    assert bool(got.out[0].isfinite().all())
    for (b, i, h), row in case.reference().items():
        assert float(torch.as_tensor(got.readings[0].meter.value)[b, i, h]) >= float(row.meters[0])


@pytest.mark.parametrize("bands", [8, 16])
def test_adjacent_pairs(bands: int) -> None:
    """A witness of adjacent pairs is read with the query's norms of adjacent pairs."""
    case = chunk_case("exact-band", [20, 9], [3, 2])
    stored = exact_case([20, 9], 1, 2, 64, 16, bands=bands, noise=0.1, pairing="adjacent", device=str(case.q.device))
    case.store, case.table, case.exact, case.meter = stored.store, stored.table, stored.k, BandMeter("adjacent")
    check(case, factor=1.02)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dithered", [False, True])
def test_reads_what_the_write_kernels_write(dithered: bool, dtype: torch.dtype) -> None:
    """Codes, scales, epochs and outliers of the write path, read back by slots in any order."""
    from tests.kernels.stores import poisoned_store
    from witcert.kernels.decode import HalfStepMeter, TierBMeter

    from ..decode.common import BUDGET

    case = chunk_case("int8-half", [30, 5], [4, 6], hkv=2)
    store = poisoned_store(
        2, 64, 16, case.store.slots // 16, dither=Dither(9, 1, rounds=10, values=False) if dithered else None, pairs=4
    )
    k = torch.randn(35, 2, 64, device=case.q.device).to(dtype)
    k[:, :, 7] *= 40
    slots = torch.cat([case.table.slots(0), case.table.slots(1)])
    (dither_int8_write if dithered else rtn_write)(k, k.flip(0).contiguous(), slots, store)
    case.store, case.meter = store, TierBMeter(BUDGET, 4096) if dithered else HalfStepMeter()
    case.q, case.k, case.v = (x.to(dtype) for x in (case.q, case.k, case.v))
    check(case)


@pytest.mark.parametrize("tile", [(128, 32, 8), (64, 64, 4), (16, 16, 4)])
@pytest.mark.parametrize("variant", ["exact-band", "dither-m4-tierB"])
def test_every_cut_of_the_work(variant: str, tile: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows and tokens of a program are a matter of speed."""
    monkeypatch.setattr("witcert.kernels.extend.launch._tile", lambda *_: tile)
    check(chunk_case(variant, [35, 0], [23, 50], group=3, page=1, options="window-softcap-sinks", window=40))


def test_tiles() -> None:
    """Small chunks get small tiles, and many packed ones the largest."""
    from witcert.kernels.extend.launch import _tile

    assert _tile(128, 7, True, 4)[0] == 16
    assert _tile(128, 4096, True, 4)[0] == 128
    assert _tile(128, 512, True, 4)[0] == _tile(128, 4096, False, 64)[0] == 64


@pytest.mark.parametrize("variant", ["exact-band", "int8-m4-half", "dither-m2-tierB"])
def test_same_bits_every_time_and_for_every_meter(variant: str) -> None:
    """Deterministic; and the same output whichever meter is read."""
    from witcert.kernels.decode import HalfStepMeter

    case = chunk_case(variant, [50, 20], [9, 2], group=3, options="window-softcap-sinks")
    first, second = case.run(), case.run()
    assert same_bits(first, second)
    if not variant.startswith("exact"):
        other = case.run(meter=HalfStepMeter())
        assert torch.equal(other.out, first.out)
        assert torch.equal(other.lse, first.lse)


def test_a_query_does_not_depend_on_the_chunk_around_it() -> None:
    """One chunk of 40, or two of 20 with the first already exact in the store: the same attention up to rounding."""
    case = chunk_case("exact-band", [24], [40], page=1, options="window-softcap-sinks", window=30)
    whole = case.run()
    late = Chunk(
        case.q[:, 20:].contiguous(), case.k[:, 20:].contiguous(), case.v[:, 20:].contiguous(), case.lens - 20, case.store,
        case.table, case.exact, case.scale, case.meter, case.options,
    )  # fmt: skip
    stored = exact_case([44], 1, 2, 64, 1, device=str(case.q.device))
    slots, before = stored.table.slots(0), case.table.slots(0)
    assert case.store.witness is not None
    for name, own in (("k", case.k), ("v", case.v), ("witness", None)):
        rows = getattr(case.store, name)[before]
        new = torch.zeros_like(rows[:20]) if own is None else own[0, :20]
        getattr(stored.store, name)[slots] = torch.cat((rows, new))
    late.store, late.table = stored.store, stored.table
    part = late.run()
    assert torch.allclose(part.out.float(), whole.out[:, 20:].float(), atol=2e-3)
    assert torch.allclose(part.lse, whole.lse[:, 20:], atol=1e-4)
