"""Extends over a prefix in two stores, and merges, on the float64 path and through the kernels beside it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.store.common import DEVICE, Filled, filled
from tests.store.test_ops import OPTIONS, SCALE, meters_of, options_of, true_tv, value
from witcert import golden
from witcert.errors import InputError
from witcert.golden import mp
from witcert.guarantees import Proved, ProvedNonadaptive
from witcert.kernels.decode import BandMeter, DecodeOutput, PagePart, Reading
from witcert.kernels.decode.launch import Meter
from witcert.kernels.decode.reference import served_keys
from witcert.kernels.extend import ExtendOutput
from witcert.kernels.extend.reference import extend_reference
from witcert.kernels.formats import PageTable
from witcert.store import ops

pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    pytest.mark.skipif(DEVICE == "cuda", reason="the float64 path is for the CPU"),
]

LENS = [5, 3, 4]


def repaired(name: str, share: float) -> tuple[Filled, list[int], PageTable, Tensor, Tensor]:
    """A packed pool some pages of which lie exact in its side pool: also the parts, and the side pages [6, max_pages]."""
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
    return f, seqs, table, parts, side


def two_reads(
    f: Filled, q: Tensor, k: Tensor, v: Tensor, table: PageTable, parts: Tensor, side: Tensor, meter: Meter | None,
    options: dict[str, Any],
) -> tuple[ExtendOutput, ExtendOutput]:  # fmt: skip
    """Codes with the chunk, and exact rows without it, both [batch, C, Hq]."""
    first = ops.extend(
        f.pool, 0, q, k, v, table, LENS, scale=SCALE, meter=meter, part=PagePart(parts, 0), **options
    )
    rows = q.view(3, 5, 2, 2, 64).transpose(1, 2).flatten(0, 1).contiguous()  # [batch * Hkv, C, G, d]
    got = ops.extend(
        f.pool, 0, rows, None, None, PageTable(side, table.seq_lens.repeat_interleave(2), 16),
        torch.tensor(LENS, dtype=torch.int32).repeat_interleave(2), scale=SCALE, own=False, store=f.pool.side[0],
        meter=None if meter is None else BandMeter(), part=PagePart(parts.view(6, 1, -1).contiguous(), 1),
        **options | {"sinks": None},
    )  # fmt: skip

    def back(x: Tensor) -> Tensor:
        return x.unflatten(0, (3, 2)).transpose(1, 2).flatten(2, 3)

    readings = tuple(Reading(r.meter.map(back), back(r.log_a), back(r.c_max)) for r in got.readings)
    return first, ExtendOutput(back(got.out), back(got.lse), readings)


@pytest.mark.parametrize("kernels", [False, True])
@pytest.mark.parametrize("chosen", OPTIONS, ids=str)
@pytest.mark.parametrize(("name", "share"), [("int8", 0.5), ("dither", 0.5), ("dither", 0.0), ("int8", 1.0)])
def test_two_parts_merged(name: str, share: float, chosen: dict[str, Any], kernels: bool) -> None:
    """Output of the mixture of codes and exact rows, the chunk counted once; meter above its true distance, labels kept."""
    f, seqs, table, parts, side = repaired(name, share)
    f.pool.kernels = kernels
    options = options_of(chosen)
    q, k, v = (torch.randn(3, 5, n, 64).half() for n in (4, 2, 2))
    for b, n in enumerate(LENS):
        q[b, n:], k[b, n:], v[b, n:] = torch.nan, torch.nan, torch.nan
    meter = meters_of(f)[-1]
    got = ops.merge(f.pool, *two_reads(f, q, k, v, table, parts, side, meter, options))
    bare = ops.merge(f.pool, *two_reads(f, q, k, v, table, parts, side, None, options))
    assert torch.equal(got.out, bare.out)
    assert torch.equal(got.lse, bare.lse)
    assert [type(r.meter) for r in got.readings] == ([Proved, ProvedNonadaptive] if name == "dither" else [Proved])
    assert all(r.meter.theorem.endswith(" + lse_merge") for r in got.readings)
    window = options.get("window", 10**6)
    for b, seq in enumerate(seqs):
        slots = torch.from_numpy(f.pool.allocator.slots_of(seq))
        none = torch.zeros(0, 2, 64, dtype=torch.float16)
        old_k, old_v = f.exact.get((seq, 0), (none, none))
        served = served_keys(f.pool.stores[0], slots)
        for i in range(LENS[b]):
            start = max(0, len(slots) + i + 1 - window)
            for h in range(4):
                exact, values = (
                    torch.cat((x[:, h // 2], y[b, : i + 1, h // 2])).double()[start:] for x, y in ((old_k, k), (old_v, v))
                )
                swap = parts[b, h // 2].bool().repeat_interleave(16)[: len(slots)]
                mixed = torch.where(swap[:, None], old_k[:, h // 2].double(), served[:, h // 2])
                mixed = torch.cat((mixed, k[b, : i + 1, h // 2].double()))[start:]
                logit = mixed @ q[b, i, h].double() * SCALE
                if "softcap" in options:
                    logit = options["softcap"] * torch.tanh(logit / options["softcap"])
                if options.get("sinks") is not None:
                    logit = torch.cat((logit, options["sinks"][h : h + 1].double()))
                p = torch.softmax(logit, 0)
                assert abs(float(got.lse[b, i, h]) - float(logit.logsumexp(0))) < 2e-3
                assert torch.allclose(got.out[b, i, h].double(), p[: len(exact)] @ values, atol=2e-2)
                truth = true_tv(q[b, i, h], exact, p, options, h)
                for r in got.readings:
                    assert truth <= float(value(r)[b, i, h])
                    assert float(value(r)[b, i, h]) < (2e-3 if share == 1.0 else 0.2)
        assert not bool(got.out[b, LENS[b] :].any())
        assert bool((got.lse[b, LENS[b] :] == -math.inf).all())
        assert all(not bool(x[b, LENS[b] :].any()) for r in got.readings for x in (value(r), r.log_a, r.c_max))


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("name", ["exact", "int8-m2-bf16", "dither"])
def test_one_part_is_the_reference(name: str, own: bool) -> None:
    """By itself each part is the reference's, which leaves the other part out."""
    f, seqs = filled(name, [35, 20, 0])
    table = f.pool.table(seqs)
    parts = (torch.rand(3, 2, table.pages.shape[1]) < 0.5).to(torch.uint8)
    parts[1] = 1
    q, k, v = (torch.randn(3, 5, n, 64).to(f.pool.config.dtype) for n in (4, 2, 2))
    for index in (0, 1):
        for meter in meters_of(f):
            how: dict[str, Any] = {"scale": SCALE, "meter": meter, "window": 30, "part": PagePart(parts, index), "own": own}
            got = ops.extend(f.pool, 0, q, k, v, table, LENS, **how)
            lens = torch.tensor(LENS, dtype=torch.int32)
            for (b, i, h), row in extend_reference(q, k, v, f.pool.stores[0], table, lens, **how).items():
                assert torch.allclose(got.out[b, i, h].double(), row.out, atol=1e-2 if "bf16" in name else 1e-3)
                assert (float(got.lse[b, i, h]) == -math.inf) == (not len(row.p))
                for r, m in zip(got.readings, row.meters, strict=True):
                    assert float(m) <= float(value(r)[b, i, h]) <= float(m) * 1.02 + 1e-4
                    if not len(row.p):
                        assert all(float(x[b, i, h]) == 0 for x in (value(r), r.log_a, r.c_max))


@pytest.mark.parametrize("far", [0.0, 20.0, 60.0, 300.0, 720.0, 900.0])
@pytest.mark.parametrize("size", [0.0, 3.0, 900.0])
def test_a_light_part_with_a_large_accumulator(far: float, size: float) -> None:
    """A part e^-far lighter whose A is e^far: the rounding of its log-sum-exp, and a mass that float64 cannot hold."""
    pool = filled("exact", [1])[0].pool
    shape = (1, 40)
    true = [size + torch.rand(shape, dtype=torch.float64), size - far - torch.rand(shape, dtype=torch.float64)]
    log_a = [torch.full(shape, 1e-3), torch.full(shape, max(far, 1e-3))]

    def output(i: int) -> DecodeOutput:
        reading = Reading(Proved(torch.ones(shape), "meter_sound"), log_a[i], log_a[i] + 1.0)
        return DecodeOutput(torch.zeros(*shape, 64, dtype=torch.float16), true[i].float(), (reading,))

    got = ops.merge(pool, output(0), output(1)).readings[0].log_a.double()
    for t in range(40):
        la, lb = (golden.number(float(x[0, t])) for x in true)
        a, b = (mp.expm1(golden.number(float(x[0, t]))) for x in log_a)
        wanted = mp.log1p((mp.exp(la) * a + mp.exp(lb) * b) / (mp.exp(la) + mp.exp(lb)))
        found = golden.number(float(got[0, t]))
        assert wanted <= found <= wanted * (1 + 2e-3) + 1e-3


def test_refusals() -> None:
    f, (a,) = filled("int8", [20])
    q, k, v = (torch.randn(1, 3, n, 64).half() for n in (4, 2, 2))
    parts = torch.zeros(1, 2, f.pool.table([a]).pages.shape[1], dtype=torch.uint8)
    with pytest.raises(InputError, match="k has shape None"):
        ops.extend(f.pool, 0, q, None, v, f.pool.table([a]), [3], scale=SCALE)
    with pytest.raises(InputError, match="parts is"):
        ops.extend(f.pool, 0, q, k, v, f.pool.table([a]), [3], scale=SCALE, part=PagePart(parts[:, :1].contiguous(), 0))
    chunk = ops.extend(f.pool, 0, q, k, v, f.pool.table([a]), [3], scale=SCALE)
    step = ops.decode(f.pool, 0, q[:, 0], [a], scale=SCALE)
    for first, second in ((chunk, step), (step, chunk)):
        with pytest.raises(InputError, match=r"second is (Decode|Extend)Output"):
            ops.merge(f.pool, first, second)  # type: ignore[call-overload]
