"""Every registered scheme on every kind of tensor: what holds for all of them."""

import math

import pytest
import torch
from torch import Tensor

from tests.schemes.exact import check_step
from witcert.schemes import Served, Site, get, names
from witcert.witness import Bands, witness

BUILT_IN = [
    *["identity", "rtn_int8", "rtn_int4", "rtn_int2", "sign_1bit", "fp8_e4m3_raw", "fp8_e4m3_scaled"],
    *["kivi_2bit", "kvquant_4bit", "dither_int8", "stochastic_int8"],
]
SIDED = ["kivi_2bit", "kvquant_4bit", "dither_int8"]  # those that treat values otherwise than keys
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
SHAPES = [(1, 1, 64), (2, 33, 80), (1, 64, 96), (3, 40, 128), (2, 2, 35, 64), (1, 5, 256), (1, 32, 30)]
HALF_MAX = 65504.0


def no_step(name: str) -> bool:
    return name in ("sign_1bit", "fp8_e4m3_raw")


def gaussian(x: Tensor) -> Tensor:
    return x * 3


def zero_channels(x: Tensor) -> Tensor:
    """Channels that are 0 for every token, a group of 32 of them, and tokens that are 0 in every channel."""
    x = x * 3
    x[..., 5] = 0.0
    x[..., 32:64] = 0.0
    x[..., ::7, :] = 0.0
    return x


def outlier_channels(x: Tensor) -> Tensor:
    x[..., 3] *= 200.0
    x[..., 0, 1] = -3000.0
    return x


def constant(x: Tensor) -> Tensor:
    return torch.full_like(x, -1.0 / 3.0)


def offset(x: Tensor) -> Tensor:
    """Nearly constant: the spread is far below the magnitude."""
    return 100.0 + x * 1e-4


def extreme(x: Tensor) -> Tensor:
    """The largest float16 with both signs, next to ordinary numbers."""
    return torch.where(x > 1, HALF_MAX, torch.where(x < -1, -HALF_MAX, x))


def subnormal(x: Tensor) -> Tensor:
    """Below the normal range of float16, with exact zeros between."""
    return torch.where(x.abs() < 0.3, 0.0, x * 2.0**-22)


def tiny(x: Tensor) -> Tensor:
    """Near the bottom of float32: every scale underflows."""
    return x * 2.0**-146


def one_spike(x: Tensor) -> Tensor:
    x = torch.zeros_like(x)
    x[..., 0, 0] = 17.0
    return x


INPUTS = [gaussian, zero_channels, outlier_channels, constant, offset, extreme, subnormal, tiny, one_spike]


def make(kind, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:  # type: ignore[no-untyped-def]
    made: Tensor = kind(torch.randn(shape, dtype=torch.float64))
    return made.clamp(-65280.0, 65280.0).to(dtype) if dtype == torch.bfloat16 else made.to(dtype)


def test_the_matrix_covers_the_registry() -> None:
    assert [n for n in names() if type(get(n).function).__module__.startswith("witcert.")] == BUILT_IN


@pytest.mark.parametrize("kind", INPUTS, ids=lambda f: f.__name__)
@pytest.mark.parametrize(("name", "side"), [(n, "k") for n in BUILT_IN] + [(n, "v") for n in SIDED])
def test_what_every_scheme_promises(name: str, kind, side: str) -> None:  # type: ignore[no-untyped-def]
    scheme = get(name)
    for dtype in DTYPES:
        for shape in SHAPES if dtype == torch.float32 else SHAPES[:3]:
            x = make(kind, shape, dtype)
            before = x.clone()
            site = Site.contiguous(shape[-2], layer=2, side=side, seed=11)  # type: ignore[arg-type]
            served = scheme(x, site)
            assert torch.equal(x, before)
            assert (served.x_hat.shape, served.x_hat.dtype) == (x.shape, dtype)
            assert served.x_hat.isfinite().all(), (dtype, shape)
            again = scheme(x, site)
            assert torch.equal(served.x_hat, again.x_hat), "a scheme is a function"
            assert (served.step is None) == no_step(name)
            if served.step is not None:
                assert served.step.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
                check_step(x, served)
            check_excess(served)


def check_excess(served: Served) -> None:
    assert (served.excess is None) == (served.dither_levels is None)
    if served.excess is not None:
        assert served.step is not None
        assert bool((served.excess <= served.step).all())


@pytest.mark.parametrize("name", BUILT_IN)
def test_all_zero_is_served_as_zero(name: str) -> None:
    for dtype in DTYPES:
        for side in ("k", "v"):
            served = get(name)(torch.zeros(2, 40, 80, dtype=dtype), Site.contiguous(40, side=side))  # type: ignore[arg-type]
            assert not served.x_hat.any()
            assert served.step is None or not served.step.any()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", BUILT_IN)
def test_what_is_not_finite_is_never_served_as_if_it_were(name: str, bad: float) -> None:
    for dtype in DTYPES:
        for side in ("k", "v"):
            x = torch.randn(2, 64, 64).to(dtype)
            x[1, 3, 40] = bad
            served = get(name)(x, Site.contiguous(64, side=side))  # type: ignore[arg-type]
            spot = served.x_hat[1, 3, 40]
            if name == "fp8_e4m3_raw" and math.isinf(bad):
                assert spot == math.copysign(448.0, bad)
            else:
                assert not spot.isfinite()
            assert served.step is None or served.step[1, 3, 40] == math.inf
            assert served.x_hat[0].isfinite().all(), "the other head is untouched"
            w = witness(x, served.x_hat, Bands(64))
            assert w[1, 3, Bands(64).index[40]] == math.inf
            # A channel that was finite and still is keeps its bound: what shares a scale with the bad one is NaN.
            kept = served.x_hat.isfinite() & x.isfinite()
            assert kept.sum() > x.numel() // 2
            if served.step is not None:
                check_step(x[kept], Served(served.x_hat[kept], served.step[kept]))


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_magnitude_beyond_every_scale_is_served_exactly_in_bounds_or_as_nan(name: str) -> None:
    x = torch.randn(1, 64, 64)
    x[0, 5, 7], x[0, 9, 40] = 3.4e38, -3.4e38
    for side in ("k", "v"):
        served = get(name)(x, Site.contiguous(64, side=side))  # type: ignore[arg-type]
        assert not served.x_hat.isinf().any()
        kept = served.x_hat.isfinite()
        if served.step is not None:
            check_step(x[kept], Served(served.x_hat[kept], served.step[kept]))
            assert (served.step[~kept] == math.inf).all()


@pytest.mark.parametrize("name", BUILT_IN)
def test_heads_and_batch_do_not_mix(name: str) -> None:
    """A head, or a batch row, is served the same alone as among others at the same site."""
    x = torch.randn(2, 3, 64, 64)
    site = Site.contiguous(64, layer=1)
    together = get(name)(x, site)
    assert torch.equal(together.x_hat[1], get(name)(x[1], site).x_hat)
    third = Site(1, "k", site.slots, site.epochs, 0, head0=2)
    assert torch.equal(together.x_hat[:, 2:], get(name)(x[:, 2:], third).x_hat)


@pytest.mark.parametrize("name", [n for n in BUILT_IN if n not in ("kivi_2bit", "kvquant_4bit")])
def test_per_token_schemes_serve_a_token_the_same_in_any_company(name: str) -> None:
    x = torch.randn(2, 40, 80)
    site = Site.contiguous(40)
    order = torch.randperm(40)
    shuffled = get(name)(x[:, order], Site(0, "k", site.slots[order], site.epochs[order], 0))
    assert torch.equal(shuffled.x_hat, get(name)(x, site).x_hat[:, order])


@pytest.mark.parametrize("name", BUILT_IN)
def test_strided_input_and_gradients(name: str) -> None:
    x = torch.randn(64, 2, 64, requires_grad=True).transpose(0, 1)
    served = get(name)(x)
    assert not served.x_hat.requires_grad
    assert torch.equal(served.x_hat, get(name)(x.detach().contiguous()).x_hat)


def test_finer_is_closer() -> None:
    """The order of damage on ordinary keys is the order of bits."""
    x = torch.randn(4, 256, 128) * 4

    def damage(name: str) -> float:
        return float((get(name)(x).x_hat - x).square().mean().sqrt())

    ordered = ["identity", "rtn_int8", "fp8_e4m3_scaled", "kvquant_4bit", "rtn_int4", "kivi_2bit", "rtn_int2"]
    values = [damage(name) for name in ordered]
    assert values == sorted(values)
    assert values[0] == 0.0
    assert damage("dither_int8") < 1.03 * damage("rtn_int8")
