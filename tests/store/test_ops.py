"""The float64 path: the numbers of the references, meters that are above the truth and near it, the kernels beside it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.store.common import DEVICE, FORMATS, Filled, filled
from witcert.budget import Budget
from witcert.errors import CorruptionError, InputError
from witcert.guarantees import Proved, ProvedNonadaptive
from witcert.kernels.decode import BandMeter, DecodeOutput, HalfStepMeter, PagePart, Reading, TierBMeter
from witcert.kernels.decode.launch import Meter
from witcert.kernels.decode.reference import decode_reference
from witcert.kernels.extend.reference import extend_reference
from witcert.kernels.formats import PageTable
from witcert.store import ops

pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    pytest.mark.skipif(DEVICE == "cuda", reason="the float64 path is for the CPU"),
]

SCALE = 0.125
OPTIONS: list[dict[str, Any]] = [
    {}, {"window": 9}, {"softcap": 4.0}, {"sinks": True}, {"window": 20, "softcap": 3.0, "sinks": True},
]  # fmt: skip


def meters_of(f: Filled) -> list[Meter]:
    found = [f.pool.meter_for(kind, Budget(2, 4, 2)) for kind in ("band", "half", "tierB")]
    return [m for m in found if m is not None]


def options_of(chosen: dict[str, Any], heads: int = 4) -> dict[str, Any]:
    return {**chosen, "sinks": torch.randn(heads)} if "sinks" in chosen else dict(chosen)


def value(r: Reading) -> Tensor:
    return torch.as_tensor(r.meter.value).double()


def true_tv(q: Tensor, exact: Tensor, p: Tensor, options: dict[str, Any], head: int) -> float:
    """Distance between the served weights p and those of exact keys [T, d], in float64."""
    logit = exact.double() @ q.double() * SCALE
    if options.get("softcap"):
        logit = options["softcap"] * torch.tanh(logit / options["softcap"])
    if options.get("sinks") is not None:
        logit = torch.cat((logit, options["sinks"][head : head + 1].double()))
    return float((torch.softmax(logit, 0) - p).abs().sum() / 2)


@pytest.mark.parametrize("chosen", OPTIONS, ids=str)
@pytest.mark.parametrize("name", FORMATS)
def test_decode(name: str, chosen: dict[str, Any]) -> None:
    """Ragged sequences, one of them empty: outputs, masses and meters of the reference; meters above the truth."""
    f, seqs = filled(name, [35, 1, 0, 48])
    q, options = torch.randn(4, 4, 64).to(f.pool.config.dtype), options_of(chosen)
    bare = ops.decode(f.pool, 1, q, seqs, scale=SCALE, **options)
    for meter in meters_of(f):
        got = ops.decode(f.pool, 1, q, seqs, scale=SCALE, meter=meter, **options)
        assert torch.equal(got.out, bare.out)
        assert torch.equal(got.lse, bare.lse)
        want = decode_reference(q, f.pool.stores[1], f.pool.table(seqs), scale=SCALE, meter=meter, **options)
        for b, seq in enumerate(seqs):
            for h in range(4):
                cell = want[b][h]
                assert torch.allclose(got.out[b, h].double(), cell.out, atol=1e-2 if "bf16" in name else 1e-3)
                assert float((got.lse[b, h].double() - cell.lse).nan_to_num(0.0).abs()) < 1e-5
                for r, m in zip(got.readings, cell.meters, strict=True):
                    # above the reference, which pays for no arithmetic, and by little: float64's share and the outliers'
                    assert float(m) <= float(value(r)[b, h]) <= float(m) * 1.02 + 1e-4
                if len(cell.p):
                    exact = f.exact[seq, 1][0][:, h // 2] if seq in {s for s, _ in f.exact} else torch.zeros(0, 64)
                    exact = exact[-options["window"] :] if options.get("window") else exact
                    truth = true_tv(q[b, h], exact, cell.p, options, h)
                    assert truth <= float(value(got.readings[0])[b, h])
    if not chosen.get("sinks"):
        assert bool((bare.lse[2] == -torch.inf).all())
        assert not bool(bare.out[2].any())


@pytest.mark.parametrize("chosen", OPTIONS, ids=str)
@pytest.mark.parametrize("name", FORMATS)
def test_extend(name: str, chosen: dict[str, Any]) -> None:
    """A chunk over a prefix, ragged, NaN behind each chunk's end: the reference's numbers, and above the truth."""
    f, seqs = filled(name, [35, 0, 7])
    dtype, options, lens = f.pool.config.dtype, options_of(chosen), [5, 3, 0]
    q, k, v = (torch.randn(3, 5, n, 64).to(dtype) for n in (4, 2, 2))
    for b, n in enumerate(lens):
        q[b, n:], k[b, n:], v[b, n:] = torch.nan, torch.nan, torch.nan
    table = f.pool.table(seqs)
    many = torch.tensor(lens, dtype=torch.int32)
    for meter in meters_of(f):
        got = ops.extend(f.pool, 0, q, k, v, table, lens, scale=SCALE, meter=meter, **options)
        want = extend_reference(q, k, v, f.pool.stores[0], table, many, scale=SCALE, meter=meter, **options)
        assert got.out.shape == q.shape
        for (b, i, h), row in want.items():
            assert torch.allclose(got.out[b, i, h].double(), row.out, atol=1e-2 if "bf16" in name else 1e-3)
            assert abs(float(got.lse[b, i, h]) - float(row.lse)) < 1e-5
            for r, m in zip(got.readings, row.meters, strict=True):
                assert float(m) <= float(value(r)[b, i, h]) <= float(m) * 1.02 + 1e-4
            prefix = f.exact[seqs[b], 0][0][:, h // 2] if b != 1 else torch.zeros(0, 64)
            exact = torch.cat((prefix.double(), k[b, : i + 1, h // 2].double()))[row.first :]
            assert true_tv(q[b, i, h], exact, row.p, options, h) <= float(value(got.readings[0])[b, i, h])
        for b, n in enumerate(lens):
            assert not bool(got.out[b, n:].any())
            assert bool((got.lse[b, n:] == -torch.inf).all())
            for r in got.readings:
                assert all(bool((x[b, n:] == 0).all()) for x in (value(r), r.log_a, r.c_max))


def test_blocks_of_queries_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    f, seqs = filled("dither", [35, 20])
    q, k, v = (torch.randn(2, 6, n, 64).half() for n in (4, 2, 2))
    meter = f.pool.meter_for("tierB", Budget(2, 4, 2))
    one = ops.extend(f.pool, 0, q, k, v, f.pool.table(seqs), [6, 4], scale=SCALE, meter=meter, window=8)
    monkeypatch.setattr("witcert.store.float64.BLOCK", 1)
    two = ops.extend(f.pool, 0, q, k, v, f.pool.table(seqs), [6, 4], scale=SCALE, meter=meter, window=8)
    assert torch.allclose(one.out, two.out, atol=1e-3)
    assert torch.allclose(one.lse, two.lse)
    for a, b in zip(one.readings, two.readings, strict=True):
        assert torch.allclose(value(a), value(b), rtol=1e-5)


def test_a_reserved_chunk_is_left_out_of_its_prefix() -> None:
    """With sequences, the chunk was reserved already: extend reads what lies before it."""
    f, (a,) = filled("exact", [20])
    table = f.pool.table([a], into=f.pool._tables.new(1))
    slots = f.pool.reserve([a], [3])
    q, k, v = (torch.randn(1, 3, n, 64).half() for n in (4, 2, 2))
    meter = f.pool.meter_for("band")
    got = ops.extend(f.pool, 0, q, k, v, [a], [3], scale=SCALE, meter=meter)
    f.pool.write(0, k[0], v[0], slots)
    again = ops.extend(f.pool, 0, q, k, v, table, [3], scale=SCALE, meter=meter)
    assert torch.equal(got.out, again.out)
    last = ops.decode(f.pool, 0, q[:, 2], [a], scale=SCALE, meter=meter)
    assert torch.allclose(last.out, got.out[:, 2], atol=1e-3)


@pytest.mark.parametrize("name", ["exact", "scheme", "int8", "dither-m4-kv"])
def test_kernels_are_beside_the_float64_path(name: str) -> None:
    """The same pool read both ways: outputs agree to 16 bits; the kernel's meter is within its own margins."""
    f, seqs = filled(name, [20, 3])
    q = torch.randn(2, 4, 64).half()
    for meter in meters_of(f):
        one = ops.decode(f.pool, 0, q, seqs, scale=SCALE, meter=meter)
        f.pool.kernels = True
        two = ops.decode(f.pool, 0, q, seqs, scale=SCALE, meter=meter)
        f.pool.kernels = False
        assert torch.allclose(one.out.float(), two.out.float(), atol=2e-3)
        assert torch.allclose(one.lse, two.lse, atol=1e-3)
        for a, b in zip(one.readings, two.readings, strict=True):
            assert (type(a.meter), a.meter.theorem, a.meter.delta) == (type(b.meter), b.meter.theorem, b.meter.delta)
            assert a.log_a.dtype == b.log_a.dtype == torch.float32
            assert bool((value(b) <= value(a) * 1.25 + 1e-3).all())
            assert bool((value(a) <= value(b) * 1.25 + 1e-3).all())


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("name", ["int8", "dither"])
def test_two_parts_merged(name: str, share: float) -> None:
    """Some pages from the side pool, exact: output of the mixture, meter above its true distance, labels kept."""
    f, seqs = filled(name, [35, 48, 0], side_pages=20)
    pool, table = f.pool, f.pool.table(seqs)
    parts = (torch.rand(3, 2, table.pages.shape[1]) < share).to(torch.uint8)
    side = torch.full((6, table.pages.shape[1]), 2**30, dtype=torch.int32)  # nobody may look there
    for b, seq in enumerate(seqs):
        for i, page in enumerate(pool.pages(seq)):
            for h in range(2):
                if parts[b, h, i]:
                    side[b * 2 + h, i] = pool.side_reserve(0, 1)[0]
                    pool.page_in(0, [page], [h], [int(side[b * 2 + h, i])])
    q = torch.randn(3, 4, 64).half()
    meter = meters_of(f)[-1]
    first = ops.decode(pool, 0, q, table, scale=SCALE, meter=meter, part=PagePart(parts, 0))
    second = ops.decode(
        pool, 0, q.view(6, 2, 64), PageTable(side, table.seq_lens.repeat_interleave(2), 16), scale=SCALE,
        meter=BandMeter(), part=PagePart(parts.view(6, 1, -1).contiguous(), 1), store=pool.side[0],
    )  # fmt: skip
    shaped = tuple(
        Reading(Proved(value(r).view(3, 4), "meter_sound"), r.log_a.view(3, 4), r.c_max.view(3, 4)) for r in second.readings
    )
    got = ops.merge(pool, first, DecodeOutput(second.out.view(3, 4, 64), second.lse.view(3, 4), shaped))
    assert [type(r.meter) for r in got.readings] == ([Proved, ProvedNonadaptive] if name == "dither" else [Proved])
    assert all(r.meter.theorem.endswith(" + lse_merge") for r in got.readings)
    from witcert.kernels.decode.reference import served_keys

    for b, seq in enumerate(seqs[:2]):
        slots = torch.from_numpy(pool.allocator.slots_of(seq))
        for h in range(4):
            exact = f.exact[seq, 0][0][:, h // 2].double()
            swap = parts[b, h // 2].bool().repeat_interleave(16)[: len(slots)]
            mixed = torch.where(swap[:, None], exact, served_keys(pool.stores[0], slots)[:, h // 2])
            p = torch.softmax(mixed @ q[b, h].double() * SCALE, 0)
            truth = true_tv(q[b, h], exact, p, {}, h)
            for r in got.readings:
                assert truth <= float(value(r)[b, h])
                assert float(value(r)[b, h]) < (1e-3 if share == 1.0 else 0.2)
            out = p @ f.exact[seq, 0][1][:, h // 2].double()
            assert torch.allclose(got.out[b, h].double(), out, atol=2e-2)
    assert bool((got.lse[2] == -torch.inf).all())
    assert all(float(value(r)[2].max()) == 0 for r in got.readings)


@pytest.mark.parametrize("where", ["key", "query", "witness", "scale", "value"])
def test_what_is_not_finite_claims_nothing(where: str) -> None:
    """NaN or infinity in a key, query, witness or scale makes the meter of every cell that sees it 1, and no other."""
    name = "int8" if where == "scale" else "exact"
    f, (a, b) = filled(name, [20, 5])
    q = torch.randn(2, 4, 64).half()
    t, slot = f.pool.tensors, int(f.pool.allocator.slots_of(a)[7])
    if where == "query":
        q[0, 3, 5] = torch.nan
    elif where == "scale":
        assert t.k_scale is not None
        t.k_scale[0, slot // 16, 1, slot % 16, 0] = torch.inf
    else:
        x = {"key": t.k, "witness": t.witness, "value": t.v}[where]
        assert x is not None
        x[0, slot, 1, 3] = torch.nan
    got = ops.decode(f.pool, 0, q, [a, b], scale=SCALE, meter=HalfStepMeter() if name == "int8" else BandMeter())
    ones = value(got.readings[0]) == 1
    hit = {"query": [(0, 3)], "value": []}.get(where, [(0, 2), (0, 3)])
    assert ones.nonzero().tolist() == [list(x) for x in hit]
    assert bool((got.readings[0].log_a[ones] == torch.inf).all())
    assert bool(got.out[1].isfinite().all())
    assert got.out[0, 2:].isnan().any(-1).tolist() == [where != "witness" and where != "query", where != "witness"]


def test_refusals() -> None:
    f, (a, b) = filled("exact", [20, 5])
    q = torch.randn(2, 4, 64).half()
    cases: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
        ("q is", (q[0],), {}), ("q has shape", (q[:1],), {}), ("q has shape", (torch.randn(2, 3, 64),), {}),
        ("scale=0", (q,), {"scale": 0}), ("window=0", (q,), {"window": 0}), ("softcap=-1", (q,), {"softcap": -1}),
        ("HalfStepMeter needs a packed", (q,), {"meter": HalfStepMeter()}), ("sinks is", (q,), {"sinks": torch.zeros(3)}),
        ("TierBMeter needs", (q,), {"meter": TierBMeter(Budget(2, 4, 2), 96)}), ("meter is str", (q,), {"meter": "band"}),
        ("parts is", (q,), {"part": PagePart(torch.zeros(2, 1, 6, dtype=torch.uint8), 0)}),
    ]  # fmt: skip
    for match, arguments, keywords in cases:
        with pytest.raises(InputError, match=match):
            ops.decode(f.pool, 0, *arguments, [a, b], **{"scale": SCALE, **keywords})
    k = torch.randn(2, 3, 2, 64).half()
    with pytest.raises(InputError, match="k has shape"):
        ops.extend(f.pool, 0, torch.randn(2, 3, 4, 64), k[:, :2], k, f.pool.table([a, b]), [3, 3], scale=SCALE)
    with pytest.raises(InputError, match="lens=\\[3, 4\\]"):
        ops.extend(f.pool, 0, torch.randn(2, 3, 4, 64), k, k, f.pool.table([a, b]), [3, 4], scale=SCALE)
    table = f.pool.table([a, b])
    table.pages[0, 1] = 12
    with pytest.raises(CorruptionError, match="row 0 has page 12 at position 16; the pool has 12 pages"):
        ops.decode(f.pool, 0, q, table, scale=SCALE)
