"""sign_1bit, kivi_2bit, kvquant_4bit and the round-to-nearest grids: what each does, by hand and by definition."""

import math

import pytest
import torch

from tests.schemes.exact import check_step
from witcert.errors import InputError
from witcert.schemes import Kivi, KVQuant, Site, get
from witcert.schemes.grid import asymmetric


def values(tokens: int) -> Site:
    return Site.contiguous(tokens, side="v")


@pytest.mark.parametrize(("name", "top"), [("rtn_int8", 127), ("rtn_int4", 7), ("rtn_int2", 1)])
def test_rtn_by_hand(name: str, top: int) -> None:
    x = torch.zeros(1, 1, 40)
    x[..., :4] = torch.tensor([top, -top, 0.26 * top, -0.74 * top])
    x[..., 32:34] = torch.tensor([2.0 * top, 0.3 * top])  # a smaller last group with a scale of its own
    served = get(name)(x)
    expected = torch.zeros(40)
    expected[:4] = torch.tensor([top, -top, 0.26 * top, -0.74 * top]).round()
    expected[32:34] = (torch.tensor([2.0 * top, 0.3 * top]) / 2).round() * 2
    assert torch.equal(served.x_hat[0, 0], expected)
    assert served.step is not None
    assert served.step[0, 0, 0] == pytest.approx(1.0, rel=1e-4)
    assert served.step[0, 0, 32] == pytest.approx(2.0, rel=1e-4)


@pytest.mark.parametrize("name", ["rtn_int8", "rtn_int4", "rtn_int2"])
def test_rtn_has_no_code_beyond_its_width(name: str) -> None:
    top = {"rtn_int8": 127, "rtn_int4": 7, "rtn_int2": 1}[name]
    x = torch.randn(4, 500, 32) * torch.pow(10.0, torch.randint(-6, 5, (4, 500, 1)))
    served = get(name)(x)
    assert served.step is not None
    code = served.x_hat / (served.step / (1 + 2.0**-14))
    assert torch.allclose(code, code.round(), rtol=1e-5, atol=1e-5)
    assert code.abs().max().round() == top
    assert check_step(x, served) > 0.99, "the step is not loose"


def test_sign() -> None:
    x = torch.tensor([[[1.0, -3.0, 0.0, 4.0]]])
    assert get("sign_1bit")(x).x_hat.tolist() == [[[2.0, -2.0, 2.0, 2.0]]]
    tall = torch.randn(1, 9, 80)
    mean = torch.stack([part.abs().mean(-1) for part in tall.split(32, -1)], -1)
    assert torch.allclose(get("sign_1bit")(tall).x_hat[..., [0, 32, 79]].abs(), mean, rtol=1e-3)


# ----------------------------------------------------------------------------------------------------------------- kivi


@pytest.mark.parametrize(("tokens", "window"), [(1, 1), (31, 31), (32, 0), (33, 1), (70, 6), (96, 0)])
def test_kivi_key_window_is_what_does_not_fill_a_group(tokens: int, window: int) -> None:
    x = torch.randn(2, tokens, 64)
    served = get("kivi_2bit")(x)
    assert served.step is not None
    exact = (served.step == 0).all(-1).all(0)
    assert exact.tolist() == [False] * (tokens - window) + [True] * window
    assert torch.equal(served.x_hat[:, tokens - window :], x[:, tokens - window :])


@pytest.mark.parametrize(("tokens", "window"), [(1, 1), (32, 32), (33, 32), (70, 32)])
def test_kivi_value_window_is_the_last_tokens(tokens: int, window: int) -> None:
    x = torch.randn(2, tokens, 64)
    served = get("kivi_2bit")(x, values(tokens))
    assert served.step is not None
    exact = (served.step == 0).all(-1).all(0)
    assert exact.tolist() == [False] * (tokens - window) + [True] * window


def test_kivi_keys_are_quantized_per_channel_and_values_per_token() -> None:
    x = torch.randn(1, 64, 64)
    x[..., 7] *= 1000.0  # an outlier channel hurts itself only, on the key side
    served = get("kivi_2bit")(x)
    assert served.step is not None
    assert served.step[..., [6, 8]].max() < 3
    on_values = get("kivi_2bit")(x, values(64))
    assert on_values.step is not None
    assert on_values.step[:, :32, 8].median() > 50
    assert on_values.step[:, :32, 40].max() < 3
    for channel in (0, 7, 63):
        for group in (slice(0, 32), slice(32, 64)):
            assert len(served.x_hat[0, group, channel].unique()) <= 4


def test_kivi_serves_the_four_levels() -> None:
    x = torch.tensor([0.0, 1.0, 2.0, 3.0]).repeat(8)[None, :, None].expand(1, 32, 32).clone()
    served = get("kivi_2bit")(x)
    assert torch.equal(served.x_hat, x)
    x[0, 5] = 1.4
    assert torch.equal(get("kivi_2bit")(x).x_hat[0, 5], torch.ones(32))
    assert torch.equal(get("kivi_2bit")(torch.full((1, 32, 32), -2.5)).x_hat, torch.full((1, 32, 32), -2.5))


def test_kivi_group_is_served_the_same_in_a_longer_sequence() -> None:
    x = torch.randn(2, 100, 64)
    assert torch.equal(get("kivi_2bit")(x).x_hat[:, :96], get("kivi_2bit")(x[:, :96]).x_hat)


@pytest.mark.parametrize("options", [{"bits": 0}, {"bits": 9}, {"group": 0}, {"residual": 48}, {"residual": 0}])
def test_kivi_refuses(options: dict[str, int]) -> None:
    with pytest.raises(InputError):
        Kivi(**options)


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_asymmetric_step_over_widths(bits: int) -> None:
    scheme = get("kivi_2bit").with_options(bits=bits)
    for factor, shift in [(1.0, 0.0), (1e-3, 100.0), (1e3, -3e4), (1e-7, 0.1)]:
        x = torch.randn(2, 64, 64) * factor + shift
        for site in (Site.contiguous(64), values(64)):
            check_step(x, scheme(x, site))


def test_asymmetric_clips_nothing() -> None:
    low = torch.randn(5000, 1) * torch.pow(10.0, torch.randint(-6, 4, (5000, 1)))
    high = low + torch.rand(5000, 1) * torch.pow(10.0, torch.randint(-6, 4, (5000, 1)))
    x = torch.cat((low, high), -1)
    x_hat, step = asymmetric(x, low, high, 4)
    unit = step - x_hat.abs() * 2.0**-22
    assert ((x_hat - x).abs() <= 0.51 * unit + x.abs() * 2.0**-22).all()


# -------------------------------------------------------------------------------------------------------------- kvquant


@pytest.mark.parametrize("side", ["k", "v"])
def test_kvquant_keeps_the_farthest_values(side: str) -> None:
    x = torch.randn(1, 200, 300) * 0.1 + 5.0
    spots = [(3, 10), (150, 10), (150, 299), (199, 0)]
    for token, channel in spots:
        x[0, token, channel] = -80.0
    served = get("kvquant_4bit")(x, Site.contiguous(200, side=side))  # type: ignore[arg-type]
    for token, channel in spots:
        assert served.x_hat[0, token, channel] == -80.0
    assert served.step is not None
    # ceil(1 % of 200) = 2 of each channel, ceil(1 % of 300) = 3 of each token
    kept = (served.step == 0).sum(1 if side == "k" else 2)
    assert (kept >= (2 if side == "k" else 3)).all()
    assert kept.float().mean() < 4
    assert served.step.max() < 0.1, "the range is that of the rest"


def test_kvquant_has_sixteen_levels_per_vector() -> None:
    x = torch.randn(1, 500, 8)
    served = get("kvquant_4bit")(x)
    assert served.step is not None
    for channel in range(8):
        dense = served.x_hat[0, :, channel][served.step[0, :, channel] > 0]
        assert 8 < len(dense.unique()) <= 16


@pytest.mark.parametrize("options", [{"bits": 0}, {"bits": 9}, {"outliers": 1.0}, {"outliers": -0.1}])
def test_kvquant_refuses(options: dict[str, float]) -> None:
    with pytest.raises(InputError):
        KVQuant(**options)  # type: ignore[arg-type]


def test_kvquant_without_outliers_and_with_one_token() -> None:
    x = torch.randn(2, 50, 64)
    plain = get("kvquant_4bit").with_options(outliers=0.0)
    check_step(x, plain(x))
    one = get("kvquant_4bit")(x[:, :1])
    assert torch.equal(one.x_hat, x[:, :1])


def test_kvquant_bytes_follow_its_options() -> None:
    assert math.isclose(get("kvquant_4bit").with_options(bits=3, outliers=0.0).bytes_per_token(128), 48.0)
