"""dither_int8: no clipping, the step and the law over every dither, the stream's keys, and the negative control."""

import math
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from tests.schemes.exact import check_step
from witcert.errors import InputError
from witcert.kernels.philox.reference import draw_bytes, pack_counter, philox4x32
from witcert.schemes import DitherInt8, Site, StochasticInt8, dither, get, xi
from witcert.schemes.grid import stored_scale

ALL_BYTES = torch.arange(256)


def every_dither(monkeypatch: pytest.MonkeyPatch) -> None:
    """Token t gets the byte t mod 256 in every channel, in place of a random one."""

    def enumerated(site: Site, heads: int, head_dim: int, rounds: int = 7) -> Tensor:
        return (site.slots % 256)[:, None].expand(heads, -1, head_dim)

    monkeypatch.setattr("witcert.schemes.dither_int8.dither", enumerated)


def rows_times_dither(rows: Tensor) -> Tensor:
    """rows [N, d] -> [N, 256, d]: each row 256 times, once per byte."""
    return rows[:, None, :].expand(-1, 256, -1)


# ---------------------------------------------------------------------------------------------------------- the stream


def test_the_grid() -> None:
    grid = xi(ALL_BYTES)
    assert grid.dtype == torch.float32
    assert [Fraction(v) for v in grid.tolist()] == [Fraction(2 * j + 1 - 256, 512) for j in range(256)]
    assert torch.equal(grid, -grid.flip(0))


def test_dither_is_the_documented_draw() -> None:
    site = Site(layer=5, side="v", slots=torch.tensor([9, 2**32 - 1]), epochs=torch.tensor([0, 7]), seed=2**63, head0=4)
    drawn = dither(site, heads=2, head_dim=40)
    assert drawn.shape == (2, 2, 40)
    for head in range(2):
        for token in range(2):
            for channel in range(40):
                counter = pack_counter(
                    layer=5,
                    head=4 + head,
                    slot=site.slots[token],
                    epoch=site.epochs[token],
                    block=torch.tensor(channel // 16),
                    side=1,
                )
                expected = draw_bytes(philox4x32(counter, 2**63, 7))[channel % 16]
                assert drawn[head, token, channel] == expected


def test_dither_depends_on_the_slot_and_not_on_the_batch() -> None:
    slots = torch.randperm(1000)[:50]
    epochs = torch.randint(0, 5, (50,))
    whole = dither(Site(0, "k", slots, epochs, 3), 4, 64)
    order = torch.randperm(50)
    assert torch.equal(dither(Site(0, "k", slots[order], epochs[order], 3), 4, 64), whole[:, order])
    assert torch.equal(dither(Site(0, "k", slots[7:9], epochs[7:9], 3), 4, 64), whole[:, 7:9])
    assert torch.equal(dither(Site(0, "k", slots, epochs, 3, head0=1), 2, 64), whole[1:3])
    assert torch.equal(dither(Site(0, "k", slots, epochs, 3), 4, 128)[..., :64], whole)
    rows = Site(0, "k", slots.reshape(2, 25), epochs.reshape(2, 25), 3)
    assert torch.equal(dither(rows, 4, 64), torch.stack((whole[:, :25], whole[:, 25:])))


@pytest.mark.parametrize("change", ["layer", "side", "slot", "epoch", "seed", "head", "rounds"])
def test_whatever_names_the_site_changes_the_stream(change: str) -> None:
    """Another epoch above all: a slot that is used again must not get its old dither back."""
    fields = {"layer": 1, "side": "k", "slot": 0, "epoch": 0, "seed": 1, "head": 0, "rounds": 7}

    def draw(layer: int, side: str, slot: int, epoch: int, seed: int, head: int, rounds: int) -> Tensor:
        slots = torch.arange(64) + 64 * slot
        site = Site(layer, side, slots, torch.full_like(slots, epoch), seed, head0=head)  # type: ignore[arg-type]
        return dither(site, 1, 64, rounds).flatten().double()

    other = {"layer": 2, "side": "v", "slot": 1, "epoch": 1, "seed": 2, "head": 1, "rounds": 10}
    first, second = draw(**fields), draw(**{**fields, change: other[change]})  # type: ignore[arg-type]
    assert (first == second).double().mean() < 0.02  # 1/256 by chance
    correlation = float(torch.corrcoef(torch.stack((first, second)))[0, 1])
    assert abs(correlation) < 5 / math.sqrt(first.numel())


def test_dither_refuses() -> None:
    site = Site.contiguous(2)
    refused = [((1, 64, 8), "rounds"), ((0, 64), "heads"), ((1, 0), "head_dim"), ((2**16 + 1, 64), "head0")]
    for arguments, name in refused:
        with pytest.raises(InputError, match=name):
            dither(site, *arguments)


# --------------------------------------------------------------------------------------------------------- no clipping


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_maximum_is_ever_clipped(dtype: torch.dtype) -> None:
    """For each amax, the extreme channels +-amax with the extreme dithers: |n| <= 127, and 127 is reached."""
    halves = torch.arange(1, 0x7C00, dtype=torch.int16).view(torch.float16).to(dtype)
    powers = torch.pow(2.0, torch.arange(-149, 23, dtype=torch.float64)).to(dtype)
    # Quotients that sit on, just above and just below a stored scale, where rounding to it is tightest.
    edges = (halves.double() * 126.5).to(dtype)
    around = torch.cat((edges.nextafter(edges * 2), edges.nextafter(edges * 0), edges))
    amax = torch.cat((halves, powers, around, torch.rand(20_000, dtype=dtype) * 8e6))
    amax = amax[(amax > 0) & (amax <= 65504 * 126.5)]
    scale = stored_scale(amax, 126.5)
    assert scale.isfinite().all()
    assert (scale > 0).all()
    largest = torch.zeros(())
    for sign in (1.0, -1.0):
        for byte in (0, 1, 127, 128, 254, 255):
            n = (sign * amax / scale + xi(torch.tensor(byte), dtype)).round()
            assert n.abs().max() <= 127
            largest = torch.maximum(largest, n.abs().max().float())
    assert largest == 127


def test_scale_beyond_half_is_read_back_as_nan_and_the_largest_below_it_is_not() -> None:
    fits = torch.zeros(1, 2, 64)
    fits[0, 0, 0], fits[0, 1, 40] = 65504 * 126.5, 8.3e6
    served = get("dither_int8")(fits)
    assert served.x_hat[0, 0].isfinite().all()
    assert served.x_hat[0, 1].isnan().tolist() == [False] * 32 + [True] * 32
    assert served.step is not None
    assert served.step[0, 1].isinf().tolist() == [False] * 32 + [True] * 32


@pytest.mark.parametrize("least", [2.0**-149, 2.0**-140, 2.0**-126, 2.0**-30, 2.0**-24])
def test_scales_that_underflow_become_the_least_half(least: float) -> None:
    x = torch.zeros(1, 1, 64)
    x[..., 3] = least
    code, scale = DitherInt8().encode(x, Site.contiguous(1))
    assert scale.flatten().tolist() == [2.0**-24, 0.0]
    assert not code[..., 32:].any()
    check_step(x, get("dither_int8")(x))


def test_the_stored_half_scale_quantizes() -> None:
    """An fp32 scale would break the step: here amax/126.5 is not an fp16 number."""
    x = torch.randn(2, 50, 64) * 3.1
    code, scale = DitherInt8().encode(x, Site.contiguous(50))
    assert (code.dtype, scale.dtype, scale.shape) == (torch.int8, torch.float16, (2, 50, 2))
    wide = scale.float().repeat_interleave(32, -1)
    drawn = xi(dither(Site.contiguous(50), 2, 64))
    assert torch.equal(code.float(), (x / wide + drawn).round())
    assert torch.equal(DitherInt8().decode(code, scale, Site.contiguous(50)), wide * (code.float() - drawn))
    assert torch.equal(get("dither_int8")(x).x_hat, wide * (code.float() - drawn))
    exact = x.abs().unflatten(-1, (2, 32)).amax(-1).double() / 126.5
    assert (scale.double() >= exact * (1 - 2.0**-24)).all()
    assert (scale.double() <= exact * (1 + 2.0**-10)).all()


# ------------------------------------------------------------------------------------------------------------- the law


def law_inputs() -> Tensor:
    """Rows [N, 32] whose scale is 1 (126.5 present): half-integers, their float neighbours, grid points, random."""
    special = torch.tensor([0.0, 0.5, 1.5, -0.5, 63.5, 100.25, 1 / 512, 3 / 512, 126.0, -126.5, 0.001953126, 1e-30])
    near = torch.cat([special.nextafter(torch.full_like(special, s * 1e3)) for s in (1, -1)])
    # x for which x + xi lies on a rounding boundary for some xi, give or take a float
    ties = (torch.arange(0, 126, 3.0) + 0.5) - (2 * torch.randint(0, 256, (42,)) - 255) / 512
    ties = torch.cat((ties, ties.nextafter(ties + 1), ties.nextafter(ties - 1))).clamp(-126.5, 126.5)
    values = torch.cat((special, near, ties, (torch.rand(400) - 0.5) * 253))
    values = torch.cat((values, torch.zeros(-values.numel() % 31))).reshape(-1, 31)
    return torch.cat((torch.full((values.shape[0], 1), 126.5), values), -1)


@pytest.mark.parametrize("factor", [1.0, 0.3337, 2.0**-24 * 1.5, 500.0])
def test_over_all_dithers_the_residual_is_the_grid_shifted(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """``grid_dither_law`` as computed: the 256 residuals of a channel are s * (grid + theta), theta within 1/512."""
    every_dither(monkeypatch)
    rows = law_inputs() * factor
    x = rows_times_dither(rows)  # [N, 256, 32]; rows play the part of heads
    served = get("dither_int8")(x, Site.contiguous(256))
    check_step(x, served)
    scale = stored_scale(rows.abs().amax(-1), 126.5)
    assert served.excess is not None
    assert torch.equal(served.excess, (scale * 2.0**-16)[:, None, None].expand_as(x))
    assert served.dither_levels == 256
    grid = [Fraction(2 * j + 1 - 256, 512) for j in range(256)]
    for row in range(rows.shape[0]):
        s = Fraction(float(scale[row]))
        for channel in range(0, 32, 5):
            exact = Fraction(float(rows[row, channel]))
            residual = sorted((Fraction(v) - exact) / s for v in served.x_hat[row, :, channel].tolist())
            theta = [r - g for r, g in zip(residual, grid, strict=True)]
            assert max(map(abs, theta)) <= Fraction(1, 512) + Fraction(1, 2**16)


def test_the_variance_is_that_of_the_law_and_three_times_it_without_subtraction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At half-integers of s the non-subtracted rounding has variance s^2/4; the law promises (1 - 1/256^2)/12."""
    every_dither(monkeypatch)
    rows = torch.full((1, 32), 40.5)
    rows[0, 0] = 126.5
    x = rows_times_dither(rows)
    good = (get("dither_int8")(x, Site.contiguous(256)).x_hat - x).double()
    bad = (get("stochastic_int8")(x, Site.contiguous(256)).x_hat - x).double()
    assert float(good[0, :, 5].square().mean()) == pytest.approx((1 - 2.0**-16) / 12 + 2.0**-18, rel=1e-3)
    assert float(bad[0, :, 5].square().mean()) == pytest.approx(0.25, rel=1e-3)
    assert float(bad[0, :, 5].mean()) == pytest.approx(0.0, abs=2.0**-8)


def test_stochastic_rounding_shares_the_codes_and_claims_no_law() -> None:
    x = torch.randn(2, 40, 64)
    site = Site.contiguous(40)
    code, scale = DitherInt8().encode(x, site)
    served = get("stochastic_int8")(x, site)
    assert torch.equal(served.x_hat, code.float() * scale.float().repeat_interleave(32, -1))
    assert (served.dither_levels, served.excess) == (None, None)
    assert check_step(x, served) > 0.9  # the step 2s is needed: residuals reach nearly s
    assert StochasticInt8().bytes_per_token(128) == 136


def test_residuals_of_real_draws_do_not_depend_on_the_keys() -> None:
    """Over slots: mean 0, variance s^2/12, uncorrelated with the key and between channels."""
    x = torch.randn(1, 20_000, 32).sign() * 40.5 / 126.5
    x[..., 0] = 1.0
    served = get("dither_int8")(x, Site.contiguous(20_000, seed=5))
    scale = float(stored_scale(torch.tensor(1.0), 126.5))
    g = ((served.x_hat - x)[0, :, 1:] / scale).double()
    assert abs(float(g.mean())) < 5 * (1 / 12 / g.numel()) ** 0.5
    assert float(g.square().mean()) == pytest.approx(1 / 12, rel=0.01)
    correlation = (g.T @ g / g.shape[0] * 12 - torch.eye(31)).abs().max()
    assert float(correlation) < 5.5 / math.sqrt(g.shape[0])
    with_key = (g * x[0, :, 1:].sign()).mean(0).abs().max() * 12**0.5
    assert float(with_key) < 5 / math.sqrt(g.shape[0])


# ------------------------------------------------------------------------------------------------- half types, outliers


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_pay_for_their_rounding(dtype: torch.dtype) -> None:
    x = (torch.randn(2, 60, 64) * 4).to(dtype)
    served, wide = get("dither_int8")(x), get("dither_int8")(x.float())
    assert torch.equal(served.x_hat, wide.x_hat.to(dtype))
    assert served.excess is not None
    assert wide.excess is not None
    lost = (served.x_hat.double() - wide.x_hat.double()).abs()
    assert (served.excess.double() >= wide.excess.double() + lost).all()
    assert served.step is not None
    assert wide.step is not None
    assert (served.step.double() >= wide.step.double() + 2 * lost).all()
    check_step(x, served)


def test_served_values_do_not_overflow_float16() -> None:
    x = torch.full((1, 100, 32), 65504.0, dtype=torch.float16)
    served = get("dither_int8")(x)
    assert served.x_hat.isfinite().all()
    assert float(served.x_hat.max()) == 65504.0
    check_step(x, served)


def test_outlier_pairs_are_exact_and_out_of_the_maximum() -> None:
    x = torch.randn(2, 30, 64)
    x[..., 3] *= 1000
    x[..., 35] *= 1000  # the half-split partner of channel 3
    plain = get("dither_int8")(x)
    scheme = get("dither_int8").with_options(outlier_pairs=(3,))
    served = scheme(x)
    kept = torch.zeros(64, dtype=torch.bool)
    kept[[3, 35]] = True
    assert torch.equal(served.x_hat[..., kept], x[..., kept])
    assert served.step is not None
    assert served.excess is not None
    assert not served.step[..., kept].any()
    assert not served.excess[..., kept].any()
    check_step(x, served)
    assert plain.step is not None
    improvement = plain.step[..., ~kept].median() / served.step[..., ~kept].median()
    assert improvement > 100
    quiet = x.clone()
    quiet[..., kept] = 0.0
    assert torch.equal(served.x_hat[..., ~kept], get("dither_int8")(quiet).x_hat[..., ~kept])
    assert scheme.bytes_per_token(128) == 140


def test_outlier_pairs_per_head_and_adjacent() -> None:
    mask = DitherInt8(outlier_pairs=((0,), (1, 3))).outliers(8, 2)
    assert mask is not None
    assert mask[:, 0].int().tolist() == [[1, 0, 0, 0, 1, 0, 0, 0], [0, 1, 0, 1, 0, 1, 0, 1]]
    mask = DitherInt8(outlier_pairs=(1,), pairing="adjacent").outliers(8, 2)
    assert mask is not None
    assert mask[:, 0].int().tolist() == [[0, 0, 1, 1, 0, 0, 0, 0]]
    scheme = get("dither_int8").with_options(outlier_pairs=((0,), (1, 3)))
    served = scheme(torch.randn(2, 4, 8))
    assert served.step is not None
    assert (served.step == 0).any(-2).int().tolist() == [[1, 0, 0, 0, 1, 0, 0, 0], [0, 1, 0, 1, 0, 1, 0, 1]]
    assert scheme.bytes_per_token(8) == 8 + 2 + 8


def test_every_channel_an_outlier_and_one_that_is_not_finite() -> None:
    x = torch.randn(1, 3, 8)
    x[0, 1, 2] = math.nan
    served = get("dither_int8").with_options(outlier_pairs=(0, 1, 2, 3))(x)
    assert torch.equal(served.x_hat.nan_to_num(99.0), x.nan_to_num(99.0))
    assert served.step is not None
    assert served.step[0, 1, 2] == math.inf
    assert served.step.isinf().sum() == 1


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"outlier_pairs": (32,)}, "outlier_pairs"),
        ({"outlier_pairs": (-1,)}, "outlier_pairs"),
        ({"outlier_pairs": ((1,), (2,), (3,))}, "one per KV head"),
        ({"outlier_pairs": ((1,), 2)}, "mixes|one per"),
        ({"rounds": 5}, "rounds"),
        ({"group": 0}, "group"),
        ({"pairing": "x"}, "pairing"),
    ],
)
def test_bad_options_are_refused(options: dict[str, object], name: str) -> None:
    with pytest.raises(InputError, match=name):
        get("dither_int8").with_options(**options)(torch.randn(2, 4, 64))


def test_groups_of_another_size() -> None:
    x = torch.randn(2, 9, 80)
    for group in (16, 64, 128):
        scheme = get("dither_int8").with_options(group=group)
        check_step(x, scheme(x))
        assert scheme.bytes_per_token(80) == 80 + 2 * -(-80 // group)
