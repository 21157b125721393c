"""Witness writes: never below the real witness, decided over the rationals; NaN and infinity are no claim."""

from fractions import Fraction

import pytest
import torch
from torch import Tensor

from tests.kernels.stores import DEVICE, hard_tokens, some_slots
from witcert.errors import InputError
from witcert.kernels.witness_write import witness_write
from witcert.kernels.witness_write.budget import SQRT, UNIT, write_factors
from witcert.kernels.witness_write.reference import witness_write_reference
from witcert.schemes import get
from witcert.witness import Bands

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's, on NaN and overflow
POISON = -7.0


def squares(k: Tensor, k_hat: Tensor, bands: Bands) -> list[list[Fraction]]:
    """Exact squared norms of one token and head: [B] of (residual, key)."""
    out = [[Fraction(0), Fraction(0)] for _ in range(bands.bands)]
    rows = zip(bands.index.tolist(), k.double().tolist(), k_hat.double().tolist(), strict=True)
    for band, x, y in rows:
        out[band][0] += (Fraction(y) - Fraction(x)) ** 2
        out[band][1] += Fraction(y) ** 2
    return out


def covers(w: float, residual: Fraction, key: Fraction, gamma: float) -> bool:
    """Whether w >= (1 + 2^-20) sqrt(residual) + gamma sqrt(key), over the rationals."""
    if w == float("inf"):
        return True
    a, b = residual * (1 + Fraction(1, 2**20)) ** 2, key * Fraction(gamma) ** 2
    rest = Fraction(w) ** 2 - a - b
    return rest >= 0 and rest**2 >= 4 * a * b


def check(k: Tensor, k_hat: Tensor, bands: Bands, gamma: float, page: int) -> None:
    """Against the rationals from below, and against the float64 witness to one fp16 step from above."""
    tokens, heads, _ = k.shape
    pool = (40, heads, bands.bands) if page == 1 else (4, heads, 16, bands.bands)
    out = torch.full(pool, POISON, dtype=torch.float16, device=DEVICE)
    expected = out.clone()
    slots = some_slots(tokens, 40)
    slots[3] = -1
    witness_write(k, k_hat, slots, out, bands=bands, gamma=gamma)
    witness_write_reference(k, k_hat, slots, expected, bands=bands, gamma=gamma)
    assert torch.equal(out == POISON, expected == POISON)  # nothing else was written
    assert bool((out >= expected).all())
    assert bool((out.view(torch.int16) <= expected.view(torch.int16) + 1)[expected != POISON].all())
    rows = out if page == 1 else out.transpose(1, 2).flatten(0, 1)
    for t in range(tokens):
        for h in range(heads):
            if t == 3 or not bool(k[t, h].isfinite().all() & k_hat[t, h].isfinite().all()):
                continue
            w = rows[slots[t], h].tolist()
            for b, (residual, key) in enumerate(squares(k[t, h], k_hat[t, h], bands)):
                assert covers(w[b], residual, key, gamma), (t, h, b)
                assert w[b] > 0 or residual == 0


BANDS = [
    Bands(64, 16), Bands(64, 8, "adjacent"), Bands(128, 16, rotary_dim=32), Bands(128, 8, "adjacent", 64),
    Bands(64, 16, rotary_dim=0), Bands(256, 16),
]  # fmt: skip


@pytest.mark.parametrize("gamma", [0.0, 2.0**-20, 0.01])
@pytest.mark.parametrize("bands", BANDS, ids=lambda b: f"d{b.head_dim}-B{b.bands}-{b.pairing}-rot{b.rotary}")
def test_above_the_real_witness(bands: Bands, gamma: float) -> None:
    k = torch.randn(18, 2, bands.head_dim, device=DEVICE).half()
    k_hat = (k.float() + 0.01 * torch.randn_like(k.float())).half()
    check(k, k_hat, bands, gamma, page=16 if bands.head_dim == 64 else 1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("gamma", [0.0, 2.0**-12])
def test_hard_values(dtype: torch.dtype, gamma: float) -> None:
    """Massive activations, zeros, subnormals, the largest numbers, NaN and infinity in key or served key."""
    k, k_hat = hard_tokens(18, 2, 64, dtype), hard_tokens(18, 2, 64, dtype)
    k[13], k_hat[14] = torch.nan, -torch.inf
    k[15] = k_hat[15]
    check(k, k_hat, Bands(64, 16), gamma, page=1)


@pytest.mark.parametrize("power", [-149, -133, -126, -75, -74, -64, -63, -40, -25])
def test_squares_that_underflow(power: int) -> None:
    """A residual that is not 0 never gets a witness of 0, however small its square."""
    k = torch.zeros(18, 1, 64, device=DEVICE)
    k_hat = k.clone()
    k_hat[:, 0, 5] = torch.ldexp(torch.tensor(1.0), torch.tensor(power))
    k_hat[1, 0, 5] *= -1
    k_hat[2, 0] = 1.0
    k[2, 0] = 1.0
    k[2, 0, 3] = 1.0 + 2.0**-23
    check(k, k_hat, Bands(64, 16), 0.0, page=1)


def test_just_above_a_half() -> None:
    """Residuals whose norm is a float16 to within a part in 2^23: rounding to nearest, or down, would be caught."""
    code = torch.randint(0x0C00, 0x7000, (18,), dtype=torch.int16)
    k = torch.zeros(18, 1, 64, device=DEVICE)
    k_hat = k.clone()
    k_hat[:, 0, 9] = code.view(torch.float16).float().nextafter(torch.tensor(torch.inf)).to(DEVICE)
    check(k, k_hat, Bands(64, 16), 0.0, page=1)


@pytest.mark.parametrize("scheme", ["fp8_e4m3_raw", "kivi_2bit", "rtn_int4", "dither_int8"])
def test_any_scheme(scheme: str) -> None:
    k = torch.randn(1, 40, 64).half() * 3
    k_hat = get(scheme)(k).x_hat
    check(k.transpose(0, 1).to(DEVICE), k_hat.transpose(0, 1).to(DEVICE), Bands(64, 16), 2.0**-15, page=1)


def test_factors_pay_for_every_rounding() -> None:
    for channels in (4, 8, 16, 32):
        factor, key = write_factors(channels, 0.25)
        lost = (1 - UNIT) ** (channels + 2 + 4) * (1 - SQRT) ** 2  # squared
        assert Fraction(factor) ** 2 * lost >= (1 + Fraction(1, 2**20)) ** 2
        assert Fraction(key) ** 2 * lost >= Fraction(1, 16)
        assert factor < 1 + 2.0**-17
        assert write_factors(channels, 0.0)[1] == 0.0


def test_refusals() -> None:
    k = torch.zeros(4, 2, 64, device=DEVICE, dtype=torch.float16)
    out = torch.zeros(8, 2, 16, device=DEVICE, dtype=torch.float16)
    slots = torch.arange(4, device=DEVICE)
    cases: list[tuple[str, tuple[object, ...], dict[str, object]]] = [
        ("out is", (k, k, slots, out.float()), {}),
        ("out is", (k, k, slots, out[:, :, ::2]), {}),
        ("bands", (k, k, slots, out[:, :, :4].contiguous()), {}),
        ("pages of 2", (k, k, slots, torch.zeros(8, 2, 2, 16, device=DEVICE).half()), {}),
        ("k has shape", (k[..., :48], k, slots, out), {}),
        ("k has shape", (k[:, :1], k, slots, out), {}),
        ("k_hat is", (k, k[:3], slots, out), {}),
        ("k_hat has dtype", (k, k.double(), slots, out), {}),
        ("slots", (k, k, slots[:2], out), {}),
        ("bands is", (k, k, slots, out), {"bands": 16}),
        ("bands splits", (k, k, slots, out), {"bands": Bands(64, 8)}),
        ("gamma", (k, k, slots, out), {"gamma": -1e-9}),
        ("gamma", (k, k, slots, out), {"gamma": float("inf")}),
    ]
    for match, arguments, keywords in cases:
        with pytest.raises(InputError, match=match):
            witness_write(*arguments, **keywords)  # type: ignore[arg-type]


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_real_shape_and_graph(head_dim: int, dtype: torch.dtype) -> None:
    tokens, heads = 20000, 8
    k = hard_tokens(tokens, heads, head_dim, dtype)
    k_hat = (k.float() * (1 + 0.01 * torch.randn(k.shape, device="cuda"))).to(dtype)
    out = torch.full((tokens + 100, heads, 16), POISON, dtype=torch.float16, device="cuda")
    expected = out.clone()
    slots = some_slots(tokens, tokens + 100)
    witness_write_reference(k, k_hat, slots, expected, gamma=2.0**-12)
    witness_write(k, k_hat, slots, out.clone(), gamma=2.0**-12)
    eager = out.clone()
    witness_write(k, k_hat, slots, eager, gamma=2.0**-12)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        witness_write(k, k_hat, slots, out, gamma=2.0**-12)
    graph.replay()
    assert torch.equal(out, eager)
    assert bool((out >= expected).all())
    assert bool((out.view(torch.int16) <= expected.view(torch.int16) + 1)[expected != POISON].all())
