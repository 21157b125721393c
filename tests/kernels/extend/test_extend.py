"""Extend: the output of float64 attention, and a meter that is above the true total variation and above its reference."""

import pytest
import torch
from torch import Tensor

from tests.kernels.stores import DEVICE
from witcert import bounds
from witcert.errors import InputError
from witcert.guarantees import Proved
from witcert.kernels.decode import BandMeter, HalfStepMeter, TierBMeter
from witcert.kernels.decode.budget import dot_gamma
from witcert.kernels.decode.reference import served_keys
from witcert.kernels.dither_int8_write import dither_int8_write
from witcert.kernels.extend import extend
from witcert.kernels.extend.budget import NORMS, packed_gamma
from witcert.kernels.extend.reference import extend_reference
from witcert.kernels.formats import Dither, ExactStore, PackedStore, PageTable
from witcert.kernels.rtn_write import rtn_write
from witcert.kernels.witness_write import witness_write
from witcert.schemes import get
from witcert.witness import Bands

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's, on NaN and overflow


class Case:
    """Ragged prefixes in shuffled pages of a poisoned store, a ragged chunk, and the exact prefix keys."""

    def __init__(
        self, kind: str, *, d: int = 64, hkv: int = 2, group: int = 2, page: int = 16, chunk: int = 9, bands: int = 16,
        pairing: str = "half", dtype: torch.dtype = torch.float16, prefix: tuple[int, ...] = (35, 0, 16),
        lens: tuple[int, ...] = (9, 5, 0), size: float = 1.0,
    ) -> None:  # fmt: skip
        batch, pages = len(prefix), -(-max(prefix) // page)
        self.scale, self.group = d**-0.5, group
        self.q = (torch.randn(batch, chunk, hkv * group, d, device=DEVICE) * size).to(dtype)
        self.k = torch.randn(batch, chunk, hkv, d, device=DEVICE).to(dtype)
        self.v = torch.randn(batch, chunk, hkv, d, device=DEVICE).to(dtype)
        self.lens = torch.tensor(lens, dtype=torch.int32, device=DEVICE)
        for b, n in enumerate(lens):  # what lies past a chunk must not matter
            self.k[b, n:], self.v[b, n:], self.q[b, n:] = torch.nan, torch.nan, torch.nan
        order = torch.randperm(batch * pages + 3)[: batch * pages].to(torch.int32).reshape(batch, pages).to(DEVICE)
        self.table = PageTable(order, torch.tensor(prefix, dtype=torch.int32, device=DEVICE), page)
        total = (batch * pages + 3) * page
        split = Bands(d, bands, pairing)  # type: ignore[arg-type]
        self.exact = [torch.randn(n, hkv, d, device=DEVICE).to(dtype) for n in prefix]
        values = [torch.randn(n, hkv, d, device=DEVICE).to(dtype) for n in prefix]
        self.store: ExactStore | PackedStore
        if kind == "exact":
            pools = [torch.full((total, hkv, d), torch.nan, dtype=dtype, device=DEVICE) for _ in range(2)]
            w = torch.full((total, hkv, bands), torch.nan, dtype=torch.float16, device=DEVICE)
            self.store = ExactStore(*pools, w)
            for b, x in enumerate(self.exact):
                slots = self.table.slots(b)
                served = get("rtn_int8")(x.transpose(0, 1)).x_hat.transpose(0, 1).contiguous() if len(x) else x
                self.store.k[slots], self.store.v[slots] = served, values[b]
                witness_write(x, served, slots, w, bands=split, gamma=dot_gamma(d))
        else:
            dither = Dither(77, 5, values=kind == "dither") if kind.startswith("dither") else None
            packed = PackedStore.empty(total // page, hkv, d, page, dither=dither, bands=bands, device=DEVICE)
            for name in ("k_scale", "v_scale", "witness"):
                getattr(packed, name).fill_(torch.nan)
            if packed.epochs is not None:
                packed.epochs.copy_(torch.randint(0, 9, packed.epochs.shape))
            for b, x in enumerate(self.exact):
                write = rtn_write if dither is None else dither_int8_write
                write(x, values[b], self.table.slots(b), packed, bands=split)
            self.store = packed

    def arguments(self) -> tuple[Tensor, Tensor, Tensor, ExactStore | PackedStore, PageTable, Tensor]:
        return self.q, self.k, self.v, self.store, self.table, self.lens

    def total_variation(self, b: int, i: int, h: int, p: Tensor) -> float:
        """True distance, in float64, between the weights of the exact keys and the served weights."""
        keys = torch.cat((self.exact[b].double(), self.k[b, : i + 1].double()))[:, h // self.group]
        exact = torch.softmax(keys @ self.q[b, i, h].double() * self.scale, 0)
        return float((exact - p).abs().sum() / 2)


def bound_with_arithmetic(case: Case, b: int, i: int, h: int, c: Tensor) -> Tensor:
    """c of every token and, on top of it, what the logit's own arithmetic may cost, in float64 without any margin."""
    slots, head, q = case.table.slots(b), h // case.group, case.q[b, i, h].double()
    bits = 11 if case.q.dtype == torch.float16 else 8
    d = len(q)
    packed = isinstance(case.store, PackedStore)
    prefix = served_keys(case.store, slots)[:, head].norm(dim=1) * (packed_gamma(d, bits) / NORMS if packed else 0.0)
    own = case.k[b, : i + 1, head].double().norm(dim=1) * dot_gamma(d)
    return c + torch.cat((prefix, own)) * (case.scale * q.norm())


def check(case: Case, meter: BandMeter | HalfStepMeter | None, slack: float) -> None:
    """Output near the reference; meter at least the truth and the reference, and at most ``slack`` above the latter."""
    got = extend(*case.arguments(), scale=case.scale, meter=meter)
    rows = extend_reference(*case.arguments(), scale=case.scale, meter=meter)
    tolerance = 4e-3 if case.q.dtype == torch.float16 else 3e-2
    for (b, i, h), row in rows.items():
        error = float((got.out[b, i, h].double() - row.out).norm() / row.out.norm())
        assert error < tolerance, (b, i, h, error)
        assert abs(float(got.lse[b, i, h]) - float(row.lse)) < 1e-3
        if meter is not None:
            assert got.log_a is not None
            assert got.c_max is not None
            assert isinstance(got.meter, Proved)
            value = float(got.meter.value[b, i, h])
            assert value >= case.total_variation(b, i, h, row.p) - 1e-12
            assert value >= float(row.meter)
            assert value <= float(row.meter) * (1 + slack) + slack, (value, float(row.meter))
            least = bound_with_arithmetic(case, b, i, h, row.c)
            assert float(got.c_max[b, i, h]) >= float(least.max())
            # ... and A is inflated by the launch constant, more than 1 + 4e-5, on top of the larger c.
            assert float(got.log_a[b, i, h]) >= float(bounds.accumulate(row.p, row.c).log_a) + 2e-5
    for b, n in enumerate(case.lens.tolist()):
        assert not bool(got.out[b, n:].any())
        assert bool((got.lse[b, n:] == -torch.inf).all())
    assert len(rows) == int(case.lens.sum()) * case.q.shape[2]


@pytest.mark.parametrize("page", [1, 16])
@pytest.mark.parametrize(("pairing", "bands"), [("half", 16), ("adjacent", 8)])
def test_exact_store(page: int, pairing: str, bands: int) -> None:
    check(Case("exact", page=page, pairing=pairing, bands=bands), BandMeter(pairing), 2e-3)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["rtn", "dither", "dither keys"])
@pytest.mark.parametrize("page", [1, 16])
def test_packed_store_half_step(kind: str, page: int) -> None:
    check(Case(kind, page=page, size=2.0), HalfStepMeter(), 6e-3)


@pytest.mark.parametrize(("kind", "bands", "dtype"), [("rtn", 16, torch.float16), ("dither", 8, torch.bfloat16)])
def test_packed_store_bands(kind: str, bands: int, dtype: torch.dtype) -> None:
    check(Case(kind, bands=bands, dtype=dtype), BandMeter(), 6e-3)


@pytest.mark.parametrize(("d", "hkv", "group"), [(128, 1, 7), (256, 1, 1), (64, 3, 3)])
def test_shapes(d: int, hkv: int, group: int) -> None:
    check(Case("dither", d=d, hkv=hkv, group=group, prefix=(20, 3), lens=(4, 2), chunk=4), HalfStepMeter(), 6e-3)


def test_the_query_side_of_the_bound_is_rounded_up() -> None:
    """Every run of four channels sums to 4 + 2^-10, which fp16 would round to 4."""
    case = Case("rtn", prefix=(20,), lens=(1,), chunk=1)
    case.q[..., :] = 1.0
    case.q[..., 3::4] = 1.0 + 2.0**-10
    check(case, HalfStepMeter(), 6e-3)


def test_meter_off_is_the_same_output_bit_for_bit() -> None:
    case = Case("dither")
    off = extend(*case.arguments(), scale=case.scale)
    for meter in (HalfStepMeter(), BandMeter()):
        on = extend(*case.arguments(), scale=case.scale, meter=meter)
        assert torch.equal(on.out, off.out)
        assert torch.equal(on.lse, off.lse)
    assert off.meter is None


@pytest.mark.parametrize("where", ["query", "key", "scale", "witness"])
def test_what_is_not_finite_makes_the_meter_1(where: str) -> None:
    case = Case("rtn", prefix=(20,), lens=(6,), chunk=6)
    meter: BandMeter | HalfStepMeter = BandMeter() if where == "witness" else HalfStepMeter()
    store = case.store
    assert isinstance(store, PackedStore)
    slot = int(case.table.slots(0)[3])
    if where == "query":
        case.q[0, 2, 1, 7] = torch.nan
    elif where == "key":
        case.k[0, 2, 0, 7] = torch.inf
    elif where == "scale":
        store.k_scale[slot // 16, 0, slot % 16, 1] = torch.inf
    elif store.witness is not None:
        store.witness[slot // 16, 0, slot % 16, 4] = torch.inf
    got = extend(*case.arguments(), scale=case.scale, meter=meter)
    assert isinstance(got.meter, Proved)
    value = got.meter.value[0]
    if where == "query":
        assert float(value[2, 1]) == 1.0
        assert bool((value[[0, 1, 3, 4, 5]] < 1.0).all())
    elif where == "key":
        assert bool((value[2:, :2] == 1.0).all())
        assert bool((value[:2] < 1.0).all())
    else:
        assert bool((value[:, :2] == 1.0).all())
        assert bool((value[:, 2:] < 1.0).all())


def test_refusals() -> None:
    case = Case("rtn", prefix=(20,), lens=(6,), chunk=6)
    q, k, v, store, table, lens = case.arguments()
    outlying = PackedStore.empty(
        8, 2, 64, 16, outlier_channels=torch.zeros(2, 4, dtype=torch.int32, device=DEVICE), device=DEVICE
    )
    bare = ExactStore(*[torch.zeros(32, 2, 64, dtype=torch.float16, device=DEVICE) for _ in range(2)])
    cases: list[tuple[str, tuple[object, ...], dict[str, object]]] = [
        ("q is not", (q.float(), k, v, store, table, lens), {}),
        ("q has shape", (q[:, :, :3].contiguous(), k, v, store, table, lens), {}),
        ("k has shape", (q, k[:, :4].contiguous(), v, store, table, lens), {}),
        ("v is", (q, k, v.bfloat16(), store, table, lens), {}),
        ("lens", (q, k, v, store, table, lens.long()), {}),
        ("outlier", (q, k, v, outlying, table, lens), {}),
        ("scale", (q, k, v, store, table, lens), {"scale": 0.0}),
        ("HalfStepMeter", (q, k, v, bare, table, lens), {"meter": HalfStepMeter()}),
        ("BandMeter", (q, k, v, bare, table, lens), {"meter": BandMeter()}),
        ("supports", (q, k, v, store, table, lens), {"meter": object()}),
        ("supports", (q, k, v, store, table, lens), {"meter": TierBMeter}),
        ("store is", (q, k, v, None, table, lens), {}),
    ]
    for match, arguments, keywords in cases:
        with pytest.raises(InputError, match=match):
            extend(*arguments, **({"scale": 1.0} | keywords))  # type: ignore[arg-type]


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["exact", "rtn", "dither"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_real_shape(kind: str, dtype: torch.dtype) -> None:
    case = Case(kind, d=128, hkv=2, group=4, prefix=(3000, 517), lens=(3, 2), chunk=64, dtype=dtype)
    check(case, BandMeter() if kind == "exact" else HalfStepMeter(), 2e-2)


@pytest.mark.gpu
def test_captured_graph_replays_the_eager_bits() -> None:
    case = Case("dither", d=128, hkv=4, group=7, prefix=(5000, 700), lens=(128, 77), chunk=128)
    eager = extend(*case.arguments(), scale=case.scale, meter=HalfStepMeter())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = extend(*case.arguments(), scale=case.scale, meter=HalfStepMeter())
    graph.replay()
    assert torch.equal(got.out, eager.out)
    assert torch.equal(got.lse, eager.lse)
    assert isinstance(got.meter, Proved)
    assert isinstance(eager.meter, Proved)
    assert torch.equal(got.meter.value, eager.meter.value)
