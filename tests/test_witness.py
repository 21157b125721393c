"""Witnesses: rounding up, band norms and the per-token bound against exact rational arithmetic, zero tolerance."""

import bisect
import itertools
import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from witcert.errors import InputError
from witcert.witness import Bands, band_norms, query_norms, ru16, token_bound, witness

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]

# The finite nonnegative float16 values by code, in units of 2^-24, from the definition of the format and nothing else.
HALF_UNITS = [m if e == 0 else (1024 + m) << (e - 1) for e in range(31) for m in range(1024)]


def model_ru16(x: float) -> float:
    """Round toward +inf, in whole numbers: x = p/q exactly."""
    p, q = x.as_integer_ratio()
    if p >= 0:
        code = bisect.bisect_left(HALF_UNITS, -((-p << 24) // q))
        return math.inf if code == len(HALF_UNITS) else HALF_UNITS[code] / 2**24
    return -HALF_UNITS[bisect.bisect_right(HALF_UNITS, (-p << 24) // q) - 1] / 2**24


def modelled(x: Tensor) -> Tensor:
    values = [model_ru16(v) for v in x.flatten().double().tolist()]
    return torch.tensor(values, dtype=torch.float64).reshape(x.shape)


def fractions(x: Tensor) -> list[Fraction]:
    return [Fraction(v) for v in x.flatten().double().tolist()]


def sqrt_above(x: Fraction) -> Fraction:
    """A rational at least the square root of x, and above it by less than 2^-400 of the square root."""
    if x == 0:
        return Fraction(0)
    shift = 2 * max(0, 900 - x.numerator.bit_length() + x.denominator.bit_length())
    return Fraction(math.isqrt((x.numerator << shift) // x.denominator) + 1, 1 << (shift // 2))


# --------------------------------------------------------------------------------------------------------------- ru16


def half_neighbourhoods() -> Tensor:
    """Float32 values around every float16: the value, the middle to the next, and their float32 neighbours."""
    low = torch.arange(0x7C00, dtype=torch.int32).to(torch.int16).view(torch.float16).float()
    high = torch.cat((low[1:], torch.tensor([65536.0])))  # where the next one would be
    middle = (low + high) / 2  # exact: one bit more
    up, down = torch.full_like(low, math.inf), torch.full_like(low, -math.inf)
    return torch.stack([
        low, low.nextafter(up), middle.nextafter(down), middle, middle.nextafter(up), high.nextafter(down), high,
    ])  # fmt: skip


def test_ru16_on_every_half_and_its_float32_neighbours() -> None:
    points = half_neighbourhoods()
    expected = modelled(points)
    assert torch.equal(ru16(points).double(), expected)
    assert torch.equal(ru16(points.double()).double(), expected)
    # The same by counting: row 0 is its own code, the five rows inside go to the next code, the last is the next.
    codes = torch.arange(0x7C00)
    assert torch.equal(ru16(points).view(torch.int16).long(), torch.stack([codes] + [codes + 1] * 6))


def test_ru16_of_negative_numbers_goes_toward_zero() -> None:
    points = -half_neighbourhoods()[:, ::7]
    assert torch.equal(ru16(points).double(), modelled(points))


def test_ru16_on_random_bit_patterns() -> None:
    bits = torch.randint(-(2**31), 2**31, (50_000,)).to(torch.int32)
    points = bits.view(torch.float32)
    points = torch.cat((points[points.isfinite()], torch.arange(64, dtype=torch.int32).view(torch.float32)))
    assert torch.equal(ru16(points).double(), modelled(points))


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_ru16_of_any_float64(x: float) -> None:
    assert float(ru16(torch.tensor(x, dtype=torch.float64))) == model_ru16(x)


@pytest.mark.parametrize("code", [0, 1, 2, 1023, 1024, 0x3C00, 0x7BFE, 0x7BFF])
def test_ru16_of_float64_just_above_a_half(code: int) -> None:
    value = HALF_UNITS[code] / 2**24
    above = math.nextafter(value, math.inf)
    assert float(ru16(torch.tensor(value, dtype=torch.float64))) == value
    expected = HALF_UNITS[code + 1] / 2**24 if code + 1 < len(HALF_UNITS) else math.inf
    assert float(ru16(torch.tensor(above, dtype=torch.float64))) == expected


@pytest.mark.parametrize("dtype", DTYPES)
def test_ru16_of_what_is_not_finite(dtype: torch.dtype) -> None:
    x = torch.tensor([math.nan, -math.nan, math.inf, -math.inf], dtype=dtype)
    assert ru16(x).tolist() == [math.inf] * 4
    zeros = ru16(torch.tensor([0.0, -0.0], dtype=dtype))
    assert zeros.tolist() == [0.0, 0.0]


def test_ru16_keeps_every_half_and_is_exact_on_bfloat16() -> None:
    codes = torch.arange(-(2**15), 2**15).to(torch.int16)
    halves = codes.view(torch.float16)
    finite = halves.isfinite()
    assert torch.equal(ru16(halves[finite]), halves[finite])
    brains = codes.view(torch.bfloat16)
    brains = brains[brains.isfinite()][::5]
    assert torch.equal(ru16(brains).double(), modelled(brains))


def test_ru16_refuses_integers() -> None:
    with pytest.raises(InputError, match="int64"):
        ru16(torch.arange(3))
    with pytest.raises(InputError, match="float"):
        ru16(1.0)  # type: ignore[arg-type]


def test_ru16_keeps_shape_and_takes_strides() -> None:
    x = torch.rand(4, 6).T
    assert torch.equal(ru16(x), ru16(x.contiguous()))
    assert ru16(torch.rand(0, 3)).shape == (0, 3)
    assert ru16(torch.tensor(1.5)).shape == ()


# -------------------------------------------------------------------------------------------------------------- bands


def units_of(bands: Bands) -> list[set[int]]:
    """Channels that must not be separated, from the definition of each layout."""
    r = bands.rotary
    if bands.pairing == "half":
        turned = [{i, i + r // 2} for i in range(r // 2)]
    else:
        turned = [{2 * i, 2 * i + 1} for i in range(r // 2)]
    return turned + [set(range(i, min(i + 2, bands.head_dim))) for i in range(r, bands.head_dim, 2)]


@pytest.mark.parametrize("pairing", ["half", "adjacent"])
@pytest.mark.parametrize(
    ("head_dim", "count", "rotary"),
    [
        *[(64, 16, None), (128, 8, None), (80, 16, None), (96, 16, 32), (256, 16, 64), (64, 32, None), (128, 1, None)],
        *[(100, 7, 50), (6, 2, 4), (6, 3, 2), (64, 16, 0), (7, 4, 4), (7, 3, 0), (2, 1, 2), (1, 1, 0)],
    ],
)
def test_bands_are_contiguous_and_split_no_pair(head_dim: int, count: int, rotary: int | None, pairing: str) -> None:
    bands = Bands(head_dim, count, pairing, rotary)  # type: ignore[arg-type]
    index = bands.index.tolist()
    assert len(index) == head_dim
    units = units_of(bands)
    assert sorted(itertools.chain(*units)) == list(range(head_dim))
    of_unit = []
    for unit in units:
        assert len({index[c] for c in unit}) == 1
        of_unit.append(index[min(unit)])
    assert of_unit == sorted(of_unit), "contiguous in the order of frequency"
    sizes = [of_unit.count(b) for b in range(count)]
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= 1


def test_layout_of_the_two_pairings() -> None:
    assert Bands(8, 2).index.tolist() == [0, 0, 1, 1, 0, 0, 1, 1]
    assert Bands(8, 2, "adjacent").index.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert Bands(8, 2, "half", 4).index.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert Bands(8, 4, "half", 4).index.tolist() == [0, 1, 0, 1, 2, 2, 3, 3]


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ((0,), "head_dim"),
        ((100000,), "head_dim"),
        ((7,), "rotary_dim"),
        ((64, 33), "bands"),
        ((64, 0), "bands"),
        ((8,), "bands"),
        ((64, 16, "interleaved"), "pairing"),
        ((64, 16, "half", 63), "rotary_dim"),
        ((64, 16, "half", 66), "rotary_dim"),
        ((64, 16, "half", -2), "rotary_dim"),
    ],
)
def test_bands_refuse(arguments: tuple[object, ...], name: str) -> None:
    with pytest.raises(InputError, match=name):
        Bands(*arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("pairing", ["half", "adjacent"])
@pytest.mark.parametrize("rotary", [None, 32])
def test_rope_keeps_band_norms(pairing: str, rotary: int | None) -> None:
    bands = Bands(64, 8, pairing, rotary)  # type: ignore[arg-type]
    x = torch.randn(5, 64, dtype=torch.float64)
    turned = x.clone()
    for pair, angle in zip(units_of(bands)[: bands.rotary // 2], torch.rand(32).tolist(), strict=False):
        a, b = sorted(pair)
        turned[:, a] = x[:, a] * math.cos(angle) - x[:, b] * math.sin(angle)
        turned[:, b] = x[:, a] * math.sin(angle) + x[:, b] * math.cos(angle)
    assert not torch.allclose(turned, x)
    torch.testing.assert_close(band_norms(turned, bands), band_norms(x, bands), rtol=1e-12, atol=0)


# -------------------------------------------------------------------------------------------------------------- norms


def spread(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Finite values over the whole range of the dtype, with zeros."""
    info = torch.finfo(dtype)
    low, high = math.log2(info.smallest_normal) - 8, math.log2(info.max) - 1e-3
    exponent = low + (high - low) * torch.rand(shape, dtype=torch.float64)
    near = torch.rand((*shape[:-1], 1)) < 0.5  # half of the rows stay within a few binades of each other
    exponent = torch.where(near, exponent[..., :1] * 0.9 - 3 * torch.rand(shape), exponent)
    value = torch.pow(2.0, exponent).clamp(max=info.max) * (2 * torch.randint(0, 2, shape) - 1)
    return torch.where(torch.rand(shape) < 0.1, 0.0, value).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_band_norms_are_upper_bounds_and_tight(dtype: torch.dtype) -> None:
    bands = Bands(20, 3, "half", 12)
    x = spread((300, 20), dtype)
    x[0], x[1] = 0.0, torch.finfo(dtype).smallest_normal / 4
    for row, norms in zip(x, band_norms(x, bands).tolist(), strict=True):
        for band, norm in enumerate(norms):
            exact = sum(v * v for v in fractions(row[bands.index == band]))
            if math.isinf(norm):
                assert dtype == torch.float64
                assert exact > Fraction(2) ** 1022
                continue
            assert Fraction(norm) ** 2 >= exact
            slack = Fraction(2) ** -990 if dtype == torch.float64 else 0
            assert Fraction(norm) ** 2 <= exact * (1 + Fraction(2) ** -38) + slack
            assert (norm == 0) == (exact == 0)


def test_band_norms_keep_nan_and_infinity_in_their_band() -> None:
    x = torch.ones(2, 8)
    x[0, 0], x[1, 3] = math.nan, -math.inf
    norms = band_norms(x, Bands(8, 4))
    assert norms.dtype == torch.float64
    assert norms[0].isnan().tolist() == [True, False, False, False]
    assert norms[1].isinf().tolist() == [False, False, False, True]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("gamma", [0.0, 2.0**-11])
def test_witness_is_at_least_the_true_norm(dtype: torch.dtype, gamma: float) -> None:
    bands = Bands(20, 5)
    k = torch.randn(200, 20).to(dtype) * 4
    k_hat = (k + torch.randn_like(k) * 10.0 ** torch.randint(-6, 3, (200, 1))).to(dtype)
    k[:20], k_hat[:20] = spread((20, 20), dtype), spread((20, 20), dtype)
    k_hat[20:25] = k[20:25]
    w = witness(k, k_hat, bands, gamma)
    assert w.dtype == torch.float16
    for a, b, row in zip(k, k_hat, w.tolist(), strict=True):
        for band in range(5):
            inside = bands.index == band
            served = fractions(b[inside])
            residual = [y - x for x, y in zip(fractions(a[inside]), served, strict=True)]
            need = sqrt_above(sum(r * r for r in residual))
            need += Fraction(gamma) * sqrt_above(sum(s * s for s in served))
            if math.isinf(row[band]):
                assert need * (1 + Fraction(2) ** -19) > 65504
                continue
            assert Fraction(row[band]) >= need
            assert need == 0 or Fraction(row[band]) <= need * Fraction("1.001") + Fraction(2) ** -24


def test_witness_of_an_exact_key_is_zero() -> None:
    k = torch.randn(3, 7, 64)
    assert not witness(k, k, Bands(64)).any()
    assert (witness(k, k, Bands(64), gamma=1e-7) > 0).all()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["k", "k_hat", "both"])
def test_witness_of_what_is_not_finite_claims_nothing(bad: float, where: str) -> None:
    k = torch.randn(4, 64)
    k_hat = k + 0.01
    if where != "k_hat":
        k[2, 5] = bad
    if where != "k":
        k_hat[2, 5] = bad
    w = witness(k, k_hat, Bands(64))
    assert w[2, 2] == math.inf
    assert w.isfinite().sum() == w.numel() - 1


def test_witness_above_the_largest_half_claims_nothing() -> None:
    k, k_hat = torch.zeros(2, 4), torch.zeros(2, 4)
    k_hat[0, 0], k_hat[1, 0] = 65504.0, 65400.0  # 65504 * (1 + 2^-20) does not fit
    assert witness(k, k_hat, Bands(4, 1)).flatten().tolist() == [math.inf, 65408.0]


@pytest.mark.parametrize(
    ("k", "k_hat", "gamma", "name"),
    [
        (torch.zeros(3, 64, dtype=torch.int8), torch.zeros(3, 64), 0.0, "k is"),
        (torch.zeros(3, 64), torch.zeros(3, 64, dtype=torch.int32), 0.0, "k_hat"),
        (torch.zeros(3, 32), torch.zeros(3, 32), 0.0, "shape"),
        (torch.zeros(3, 64), torch.zeros(2, 64), 0.0, "shape"),
        (torch.zeros(3, 64), torch.zeros(3, 64), -1.0, "gamma"),
        (torch.zeros(3, 64), torch.zeros(3, 64), math.nan, "gamma"),
    ],
)
def test_witness_refuses(k: Tensor, k_hat: Tensor, gamma: float, name: str) -> None:
    with pytest.raises(InputError, match=name):
        witness(k, k_hat, Bands(64), gamma)


# -------------------------------------------------------------------------------------------------------- token bound


def adversarial_queries(residual: Tensor) -> Tensor:
    """Queries that make |q . r| large against the bound: aligned, per-band aligned, signs, one-hot, random, tiny."""
    d = residual.shape[-1]
    aligned = residual / residual.norm(dim=-1, keepdim=True).clamp_min(1e-30)
    fixed = (torch.eye(d), torch.randn(8, d), torch.zeros(1, d))
    return torch.cat((aligned * 7, -aligned * 1e-3, residual.sign(), *fixed))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("head_dim", "count", "rotary"), [(16, 4, None), (20, 1, 8), (12, 6, None)])
def test_token_bound_covers_every_query(head_dim: int, count: int, rotary: int | None, dtype: torch.dtype) -> None:
    bands = Bands(head_dim, count, "half", rotary)
    k = (torch.randn(6, head_dim) * 5).to(dtype)
    k_hat = (k + torch.randn(6, head_dim) * torch.tensor([[1e-6], [1e-3], [0.1], [1.0], [30.0], [0.0]])).to(dtype)
    # k_hat - k aligned with one band, so that Cauchy-Schwarz is an equality there
    k_hat[0] = torch.where(bands.index == 0, k_hat[0], k[0])
    q = adversarial_queries((k_hat - k).float()).to(dtype)
    scale = head_dim**-0.5
    c = token_bound(query_norms(q, bands), witness(k, k_hat, bands), scale)
    assert c.dtype == torch.float64
    assert c.shape == (q.shape[0], 6)
    tightest = Fraction(10)
    for i, query in enumerate(q):
        for t in range(6):
            error = sum(
                a * (y - x) for a, x, y in zip(fractions(query), fractions(k[t]), fractions(k_hat[t]), strict=True)
            )
            logit = abs(error) * Fraction(scale)
            bound = Fraction(float(c[i, t]))
            assert bound >= logit
            if logit:
                tightest = min(tightest, bound / logit)
    assert 1 <= tightest < Fraction("1.01"), "aligned queries come within a rounding of the bound"


@given(st.data())
def test_token_bound_on_any_floats(data: st.DataObject) -> None:
    numbers = st.lists(st.floats(-1e4, 1e4, width=32), min_size=6, max_size=6)
    k, k_hat, q = (torch.tensor([data.draw(numbers)], dtype=torch.float32) for _ in range(3))
    bands = Bands(6, data.draw(st.integers(1, 3)))
    scale = data.draw(st.floats(1e-3, 10))
    w = witness(k, k_hat, bands)
    c = float(token_bound(query_norms(q, bands), w, scale))
    exact = abs(sum(a * (y - x) for a, x, y in zip(fractions(q), fractions(k), fractions(k_hat), strict=True)))
    assert math.isinf(c) or Fraction(c) >= exact * Fraction(scale)
    assert not math.isnan(c)


def test_no_claim_times_zero_is_no_claim() -> None:
    w = torch.tensor([[math.inf, 1.0], [1.0, 1.0], [math.nan, 0.0]], dtype=torch.float16)
    q = torch.tensor([[0.0, 2.0], [0.0, 0.0], [1.0, math.inf], [math.nan, 0.0]], dtype=torch.float16)
    c = token_bound(q, w, 0.5)
    assert c.isinf().tolist() == [[True, False, True], [True, False, True], [True] * 3, [True] * 3]
    assert not c.isnan().any()
    assert c[0, 1] == pytest.approx(1.0, rel=1e-5)
    assert c[0, 1] > 1.0
    assert c[1, 1] == 0.0


def test_token_bound_broadcasts_over_heads() -> None:
    q, w = torch.rand(2, 3, 5, 4), torch.rand(2, 1, 7, 4)
    c = token_bound(q, w, 1.0)
    assert c.shape == (2, 3, 5, 7)
    torch.testing.assert_close(c[1, 2], token_bound(q[1, 2], w[1, 0], 1.0))


@pytest.mark.parametrize(
    ("q", "w", "scale", "name"),
    [
        (torch.rand(2, 4), torch.rand(3, 5), 1.0, "bands"),
        (torch.rand(2, 4), -torch.rand(3, 4), 1.0, "w has negative"),
        (-torch.rand(2, 4), torch.rand(3, 4), 1.0, "q_norms has negative"),
        (torch.rand(2, 4), torch.rand(3, 4), 0.0, "scale"),
        (torch.rand(2, 4), torch.rand(3, 4), math.inf, "scale"),
        (torch.rand(4), torch.rand(3, 4), 1.0, "q_norms"),
        (torch.rand(2, 4), torch.ones(3, 4, dtype=torch.int32), 1.0, "w is"),
    ],
)
def test_token_bound_refuses(q: Tensor, w: Tensor, scale: float, name: str) -> None:
    with pytest.raises(InputError, match=name):
        token_bound(q, w, scale)


def test_the_factors_of_the_specification_are_there() -> None:
    """The write factor pays for a float32 kernel's norm, the read factor for its sum: neither may be lost here."""
    k, k_hat = torch.zeros(1, 2), torch.tensor([[1.0 - 2.0**-22, 0.0]])
    assert float(witness(k, k_hat, Bands(2, 1))) == 1.0 + 2.0**-10  # 1 - 2^-22 alone would fit 1.0
    one = torch.ones(1, 1, dtype=torch.float16)
    assert float(token_bound(one, one, 1.0)) == 1.0 + 2.0**-18
