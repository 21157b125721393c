"""The gate on pools of every format: what is served after it, what it moved, and that no meter is below the truth."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.store.common import DEVICE, Filled, filled
from witcert.budget import Budget
from witcert.errors import CorruptionError, InputError
from witcert.gate import Attended, Gate, GatedPool
from witcert.gate.choose import deciding
from witcert.guarantees import Proved
from witcert.kernels.decode.launch import Meter
from witcert.kernels.decode.reference import served_keys

LENS = [70, 1, 33]
METERS = {"scheme": "band", "int8": "half", "int8-m2-bf16": "band", "dither": "tierB"}


def meter_of(gated: GatedPool, kind: str) -> Meter:
    c = gated.pool.config
    meter = gated.pool.meter_for(kind, Budget(c.layers, c.heads, c.kv_heads))  # type: ignore[arg-type]
    assert meter is not None
    return meter


def gated(name: str, gate: Gate, lens: list[int] = LENS, **changes: Any) -> tuple[GatedPool, Filled, list[int]]:
    got, seqs = filled(name, [0] * len(lens), **{"pages": 16, "side_pages": 40, **changes})
    pool = GatedPool(got.pool, gate)
    append(pool, got, seqs, lens)
    return pool, got, seqs


def append(pool: GatedPool, got: Filled, seqs: list[int], counts: list[int]) -> None:
    """Tokens through the gate's write, kept beside."""
    write = got.pool.write
    got.pool.write = lambda layer, k, v, slots: None  # type: ignore[method-assign]
    try:
        slots = got.append(seqs, counts)
    finally:
        got.pool.write = write  # type: ignore[method-assign]
    for layer in range(got.pool.config.layers):
        k, v = (torch.cat([got.exact[s, layer][i][-n:] for s, n in zip(seqs, counts, strict=True) if n]) for i in (0, 1))
        pool.write(layer, k, v, slots)


def truth(got: Filled, pool: GatedPool, seq: int, layer: int, q: Tensor, scale: float, softcap: float | None = None,
          sink: Tensor | None = None, window: int | None = None) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Total variation of each query head between exact and served attention now, in float64, and the exact output."""
    k, v = (x.double() for x in got.exact[seq, layer])
    slots = torch.as_tensor(got.pool.allocator.slots_of(seq), device=q.device)
    served = served_keys(got.pool.stores[layer], slots)
    if got.pool.config.packed and pool.repairs is not None:
        side = got.pool.side[layer]
        for t, slot in enumerate(slots.tolist()):
            for h in range(k.shape[1]):
                page = int(got.pool.exact_pages[layer, slot // got.pool.config.page_size, h])
                if page >= 0:
                    at = page * got.pool.config.page_size + slot % got.pool.config.page_size
                    served[t, h] = side.k[at, 0].double()
    if window is not None:
        k, v, served = k[-window:], v[-window:], served[-window:]
    out, tv = [], []
    group = q.shape[0] // k.shape[1]
    for h in range(q.shape[0]):
        rows = []
        for keys in (k[:, h // group], served[:, h // group]):
            x = keys @ q[h].double() * scale
            x = x if softcap is None else softcap * torch.tanh(x / softcap)
            rows.append(torch.softmax(x if sink is None else torch.cat((x, sink[h : h + 1].double())), 0))
        tv.append((rows[0] - rows[1]).abs().sum() / 2)
        out.append(rows[0][: len(k)] @ v[:, h // group])
    return torch.stack(tv), torch.stack(out)


def check(got: Filled, pool: GatedPool, seqs: list[int], q: Tensor, layer: int, done: Attended, **how: Any) -> float:
    """Every reading of every cell is at least the truth; the least excess."""
    least = math.inf
    for b, seq in enumerate(seqs):
        tv, _ = truth(got, pool, seq, layer, q[b], **how)
        for r in done.output.readings:
            excess = torch.as_tensor(r.meter.value)[b].double() - tv
            assert (excess >= -1e-15).all(), (b, r.meter.theorem, excess)  # 1e-15: the truth's own float64
            least = min(least, float(excess.min()))
    return least


@pytest.mark.parametrize("mode", ["block", "head"])
@pytest.mark.parametrize("name", list(METERS))
def test_repairs_reach_tau_and_never_understate(name: str, mode: str) -> None:
    """4 formats x 2 modes x 2 layers x 3 sequences x 4 heads, queries of a size at which some cells fire and some do not."""
    pool, got, seqs = gated(name, Gate(tau=0.1, mode=mode))  # type: ignore[arg-type]
    meter = meter_of(pool, METERS[name])
    scale, repaired = 64**-0.5, 0
    for layer in range(2):
        q = (torch.randn(3, 4, 64, device=DEVICE) * (1 if name == "scheme" else 16)).to(got.pool.config.dtype)
        q[:, 2:] *= 2.0**-10  # the second KV head never fires
        done = pool.attend(layer, q, seqs, scale=scale, meter=meter)
        assert done.fired is not None
        assert done.fired[0, 0]
        assert not done.fired[:, 1].any()
        value = torch.as_tensor(deciding(done.output.readings, pool.gate).meter.value)
        assert (value <= 0.1).all()
        before = torch.as_tensor(deciding(done.before, pool.gate).meter.value)
        assert (before[0, :2] > 0.1).any()
        check(got, pool, seqs, q, layer, done, scale=scale)
        assert done.pages > 0
        assert done.bytes > 0
        repaired += done.pages
        again = pool.attend(layer, q, seqs, scale=scale, meter=meter)
        assert again.pages == again.bytes == 0
        assert not again.fired.any()  # type: ignore[union-attr]
        assert torch.equal(again.output.out, done.output.out)
    summary = pool.ledger.summary()
    assert summary["uncertified"] == 0
    assert summary["repaired"] > 0
    assert summary["cells"] == 2 * 2 * 3 * 4
    assert pool.repairs is not None
    assert pool.repairs.pages == repaired
    everything = 2 * sum(-(-n // 16) for n in LENS)  # of the head that fires, in two layers
    assert repaired <= everything
    if mode == "head":
        assert repaired >= 2 * -(-LENS[0] // 16)


def test_blocks_move_less_than_heads() -> None:
    """Tokens of which few matter: one page holds the mass."""
    moved = {}
    for mode in ("block", "head"):
        torch.manual_seed(5)
        pool, got, seqs = gated("scheme", Gate(tau=0.1, mode=mode), [96])  # type: ignore[arg-type]
        key = got.exact[seqs[0], 0][0][40, 0].float()
        q = (key / key.norm() * 12).to(torch.float16).expand(1, 4, 64).contiguous()
        done = pool.attend(0, q, seqs, scale=64**-0.5, meter=meter_of(pool, "band"))
        assert done.fired is not None
        assert done.fired[0, 0]
        moved[mode] = done.bytes
    assert 0 < moved["block"] < moved["head"]


@pytest.mark.parametrize("how", [{"softcap": 6.0}, {"sink": True}, {"window": 20}], ids=str)
@pytest.mark.parametrize("name", ["scheme", "dither"])
def test_caps_sinks_and_windows(name: str, how: dict[str, Any]) -> None:
    pool, got, seqs = gated(name, Gate(tau=0.1))
    q = (torch.randn(3, 4, 64, device=DEVICE) * (1 if name == "scheme" else 16)).to(torch.float16)
    how = {"sink": torch.randn(4, device=DEVICE)} if "sink" in how else how
    options = {"sinks" if k == "sink" else k: v for k, v in how.items()}
    done = pool.attend(1, q, seqs, scale=0.125, meter=meter_of(pool, METERS[name]), **options)
    assert done.fired is not None
    assert done.fired.any()
    assert (torch.as_tensor(deciding(done.output.readings, pool.gate).meter.value) <= 0.1).all()
    check(got, pool, seqs, q, 1, done, scale=0.125, **how)


@pytest.mark.parametrize("name", ["scheme", "dither"])
def test_what_is_written_to_a_repaired_page_is_exact(name: str) -> None:
    pool, got, seqs = gated(name, Gate(tau=0.05, mode="head"), [20])
    meter = meter_of(pool, METERS[name])
    q = (torch.randn(1, 4, 64, device=DEVICE) * (1 if name == "scheme" else 16)).to(torch.float16)
    first = pool.attend(0, q, seqs, scale=0.125, meter=meter)
    assert first.fired is not None
    assert first.fired.all()
    append(pool, got, seqs, [3])  # into the second page, which is repaired
    done = pool.attend(0, q, seqs, scale=0.125, meter=meter)
    assert not done.fired.any()  # type: ignore[union-attr]
    tv, out = truth(got, pool, seqs[0], 0, q[0], 0.125)
    assert (tv == 0).all()
    assert torch.allclose(done.output.out[0].double(), out, atol=2e-3)


def test_a_page_that_is_freed_is_not_exact_any_more() -> None:
    pool, got, seqs = gated("dither", Gate(tau=0.05, mode="head"), [40])
    free = got.pool.side_available(0)
    q = (torch.randn(1, 4, 64, device=DEVICE) * 16).to(torch.float16)
    pool.attend(0, q, seqs, scale=0.125, meter=meter_of(pool, "tierB"))
    assert got.pool.side_available(0) == free - 2 * 3
    child = got.fork(seqs[0])
    got.pool.close(seqs[0])
    assert pool.repairs is not None
    assert pool.repairs.pages == 2 * 2  # the whole pages are the child's now, the tail was written anew
    check(got, pool, [child], q, 0, pool.attend(0, q, [child], scale=0.125, meter=meter_of(pool, "tierB")), scale=0.125)
    got.pool.close(child)
    assert pool.repairs.pages == 0
    assert got.pool.side_available(0) == free
    other = got.pool.open()
    append(pool, got, [other], [90])
    done = pool.attend(0, q, [other], scale=0.125, meter=meter_of(pool, "tierB"))
    assert done.fired is not None
    assert done.fired.any()
    check(got, pool, [other], q, 0, done, scale=0.125)


def test_a_full_side_pool_leaves_cells_uncertified_and_says_so() -> None:
    pool, got, seqs = gated("dither", Gate(tau=0.05, mode="head"), [70], side_pages=2)
    q = (torch.randn(1, 4, 64, device=DEVICE) * 16).to(torch.float16)
    done = pool.attend(0, q, seqs, scale=0.125, meter=meter_of(pool, "tierB"))
    assert done.pages == 2
    assert done.refused > 0
    assert pool.ledger.summary()["uncertified"] > 0
    check(got, pool, seqs, q, 0, done, scale=0.125)
    assert (torch.as_tensor(done.output.readings[0].meter.value) > 0.05).any()


@pytest.mark.parametrize("name", ["scheme", "dither"])
def test_nothing_is_repaired_from_damaged_rows(name: str) -> None:
    pool, got, seqs = gated(name, Gate(tau=0.05), [40])
    assert got.pool.backing is not None
    slot = int(got.pool.allocator.slots_of(seqs[0])[7])
    for i in (0, 1):
        got.pool.backing[0].k.view(torch.int16)[slot, i, 11] ^= 1
    q = (torch.randn(1, 4, 64, device=DEVICE) * 16).to(torch.float16)
    with pytest.raises(CorruptionError, match="nothing was repaired"):
        pool.attend(0, q, seqs, scale=0.125, meter=meter_of(pool, METERS[name]))
    assert pool.repairs is not None
    assert pool.repairs.pages == 0
    assert got.pool.side_available(0) == 40


def test_a_damaged_scale_is_no_claim_and_is_repaired() -> None:
    """A NaN in the store makes the meter 1; the exact page takes its place."""
    pool, got, seqs = gated("dither", Gate(tau=0.1), [40])
    store: Any = got.pool.stores[0]
    slot = int(got.pool.allocator.slots_of(seqs[0])[7])
    store.k_scale[slot // 16, 0, slot % 16, 1] = math.nan
    q = (torch.randn(1, 4, 64, device=DEVICE) * 0.01).to(torch.float16)
    done = pool.attend(0, q, seqs, scale=0.125, meter=meter_of(pool, "tierB"))
    assert (torch.as_tensor(done.before[0].meter.value)[0, :2] == 1).all()
    assert (torch.as_tensor(done.output.readings[0].meter.value) <= 0.1).all()
    assert done.output.out.isfinite().all()


def test_gate_off_and_without_a_meter() -> None:
    pool, _, seqs = gated("scheme", Gate(mode="off"))
    q = torch.randn(3, 4, 64, device=DEVICE).to(torch.float16)
    done = pool.attend(0, q, seqs, scale=0.125, meter=meter_of(pool, "band"))
    assert done.fired is None
    assert done.output.readings == done.before
    on, _, seqs = gated("scheme", Gate())
    done = on.attend(0, q, seqs, scale=0.125)
    assert done.output.readings == ()


def test_the_weaker_guarantee_decides_only_when_asked() -> None:
    pool, _, seqs = gated("dither", Gate(tau=0.1, guarantee="proved-nonadaptive"))
    q = (torch.randn(3, 4, 64, device=DEVICE) * 4).to(torch.float16)
    done = pool.attend(0, q, seqs, scale=0.125, meter=meter_of(pool, "tierB"))
    meter = deciding(done.before, pool.gate).meter
    assert not isinstance(meter, Proved)
    assert isinstance(deciding(done.before, Gate()).meter, Proved)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("scheme", {"backing": False, "side_pages": 0}, "backing=True"),
        ("dither", {"side_pages": 0}, "side_pages=0"),
        ("dither", {"bands": None}, "bands=16 or 8"),
    ],
)
def test_pools_that_cannot_be_repaired_are_refused(name: str, changes: dict[str, Any], message: str) -> None:
    got, _ = filled(name, [3], **changes)
    with pytest.raises(InputError, match=message):
        GatedPool(got.pool, Gate())


@pytest.mark.skipif(DEVICE == "cuda", reason="on a GPU every test of this file runs the kernels")
@pytest.mark.parametrize("name", ["scheme", "dither"])
def test_through_the_kernels(name: str) -> None:
    """The same through Triton's interpreter: reads of two parts, merge, page-in."""
    pool, got, seqs = gated(name, Gate(tau=0.1), [40, 5], kernels=True)
    q = (torch.randn(2, 4, 64) * (1 if name == "scheme" else 16)).to(torch.float16)
    done = pool.attend(0, q, seqs, scale=0.125, meter=meter_of(pool, METERS[name]))
    assert done.fired is not None
    assert done.fired.any()
    assert (torch.as_tensor(deciding(done.output.readings, pool.gate).meter.value) <= 0.1).all()
    check(got, pool, seqs, q, 0, done, scale=0.125)
    tv, out = truth(got, pool, seqs[0], 0, q[0], 0.125)
    assert (tv < 0.1).all()
    assert out.isfinite().all()
