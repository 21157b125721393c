"""The checks of rounding, witnesses, INT8 codes and dither pass, reduced, and their helpers find faults."""

from fractions import Fraction

import pytest
import torch

from contracts.checks import dither, int8, rounding, witness
from contracts.checks._philox import forward, inverse, known_answers, site_bytes
from contracts.checks._screen import above
from contracts.discharge import CHECKS, Setting, Violation
from witcert.kernels.philox.reference import draw_bytes, pack_counter, philox4x32

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's, on NaN and overflow

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
REDUCED = Setting(DEVICE, interpreted=DEVICE.type == "cpu", full=False)
NAMES = [name for name in sorted(CHECKS) if name.split(".")[0] in ("rounding", "witness", "int8", "dither")]


@pytest.mark.parametrize("name", NAMES)
def test_passes(name: str) -> None:
    outcome = CHECKS[name].function(REDUCED)
    assert outcome.cases >= 300
    assert outcome.unit


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_passes_in_full(name: str) -> None:
    assert CHECKS[name].function(Setting(DEVICE, interpreted=False, full=True)).cases > 1_000_000 or "layout" in name


def test_every_obligation_is_there() -> None:
    modules = {m.__name__.rsplit(".", 1)[-1] for m in (dither, int8, rounding, witness)}
    held = {o for name, check in CHECKS.items() if name.split(".")[0] in modules for o in check.obligations}
    assert {
        "ru16_ge.conclusion", "ru16_lt_next.conclusion", "ru16_overflow.conclusion", "arith_fold.h_w_sq",
        "arith_fold.h_nk_sq", "arith_fold.conclusion", "witness_mono.h_query", "witness_mono.h_witness",
        "witness_mono.conclusion", "band_cauchy_schwarz.h_band", "band_cauchy_schwarz.h_nq_sq",
        "band_cauchy_schwarz.h_nr_sq", "band_cauchy_schwarz.conclusion", "query_cast_term.conclusion",
        "rope_band_unitary.h_layout", "rope_band_unitary.h_band", "rope_band_unitary.conclusion", "half_step.h_step",
        "half_step.conclusion", "scaled_cs.h_zero", "scaled_cs.conclusion", "adaptive_radius_det.h_half",
        "adaptive_radius_det.conclusion", "grid_dither_law.h_round", "grid_dither_law.conclusion",
        "grid_mgf.conclusion", "tierB_adaptive_sound.h_fresh",
    } <= held  # fmt: skip
    for theorem in ("tierB_request_sound", "tierB_adaptive_sound", "tierB_adaptive_det_sound"):
        assert {f"{theorem}.{h}" for h in ("h_round", "h_noclip", "h_scale")} <= held
    laws = ("weighted_sum_mgf", "two_sided_tail", "adaptive_radius")
    for theorem in (*laws, "tierB_request_sound", "tierB_adaptive_sound"):
        assert {f"{theorem}.h_coord", f"{theorem}.h_inj"} <= held


def test_the_model_is_lean_s_definition() -> None:
    """Against ``ru16`` of ``Ru16Defs.lean``, number by number over the naturals."""
    bits = torch.cat((torch.arange(0, 2**31, 9_999_991), torch.arange(0x477FE000 - 3, 0x477FE004), torch.arange(40)))
    for code, got in zip(bits.tolist(), rounding.model(bits).tolist(), strict=True):
        if code >= 0x7F800000:
            assert got == -1
            continue
        x = Fraction(torch.tensor(code, dtype=torch.int32).view(torch.float32).item()) * 2**24
        units = -(-x.numerator // x.denominator)
        drop = max(0, units.bit_length() - 11)
        rounded = -(-units // 2**drop) * 2**drop
        assert got == (rounded if rounded <= 65504 * 2**24 else -1)
    assert rounding.half_value(torch.tensor([0, 1023, 1024, 0x7BFF])).tolist() == [0, 1023, 1024, 65504 << 24]


def test_a_wrong_code_is_found() -> None:
    bits = torch.arange(0x3F800000, 0x3F800010)
    code = torch.full((16,), 0x3C01)
    code[0] = 0x3C00
    rounding._compare("right", code, bits)
    for at, wrong in ((0, 0x3C01), (5, 0x3C00), (5, 0x3C02), (9, 0x7C00)):
        broken = code.clone()
        broken[at] = wrong
        with pytest.raises(Violation, match="1 of 16"):
            rounding._compare("wrong", broken, bits)


def test_philox_is_the_package_s_and_its_inverse() -> None:
    assert known_answers()
    counter = torch.randint(0, 2**32, (500, 4))
    for seed, rounds in ((0, 7), (2**64 - 1, 10), (2**63 + 12345, 7)):
        words = forward(counter, seed, rounds)
        assert torch.equal(words, philox4x32(counter, seed, rounds))
        assert torch.equal(inverse(words, seed, rounds), counter)
    slots, epochs = torch.tensor([5, 2**31 - 1]), torch.tensor([-1, 7])
    packed = pack_counter(layer=9, head=torch.arange(3)[:, None], slot=slots[:, None, None],
                          epoch=(epochs & 0xFFFFFFFF)[:, None, None], block=torch.arange(4), side=1)  # fmt: skip
    expected = draw_bytes(philox4x32(packed, 77, 7)).flatten(-2)
    assert torch.equal(site_bytes(77, 9, 3, slots, epochs, 1, 64, 7), expected)


def test_the_screen_decides_what_is_close_and_refuses_nan() -> None:
    truth = torch.tensor([1.0, 2.0, 0.0], dtype=torch.float64)
    asked: list[tuple[int, ...]] = []

    def holds(cell: tuple[int, ...]) -> bool:
        asked.append(cell)
        return cell == (1,)

    assert above("x", torch.tensor([1.5, 2.0, 0.0]).double(), truth, truth * 1e-12, holds) == 0.0
    assert asked == [(1,)]
    with pytest.raises(Violation, match=r"cell \(0,\)"):
        above("x", torch.tensor([0.9, 3.0, 0.0]).double(), truth, truth * 1e-12, holds)
    with pytest.raises(Violation, match="NaN"):
        above("x", torch.tensor([torch.nan, 3.0, 0.0]).double(), truth, truth * 1e-12, holds)
    with pytest.raises(Violation, match=r"cell \(2,\)"):
        above("x", torch.full((3,), 9.0).double(), torch.tensor([1.0, 1.0, torch.nan]).double(), truth, holds)


def test_a_witness_one_step_too_low_is_found() -> None:
    k = torch.zeros(1, 1, 64, dtype=torch.float64)
    served = k.clone()
    served[0, 0, 3] = 1.0
    band = torch.arange(64) // 4
    w = torch.full((1, 1, 16), 0.0, dtype=torch.float64)
    w[0, 0, 0] = 1.0 + 2.0**-10
    assert witness.covered("x", k, served, w, band, 0.0) > 0
    w[0, 0, 0] = 1.0  # the norm, but not the 2^-20 that the witness promises on top
    with pytest.raises(Violation, match="x: cell"):
        witness.covered("x", k, served, w, band, 0.0)
    served[0, 0, 9] = torch.inf
    w[0, 0, 0] = 2.0
    with pytest.raises(Violation, match="not finite"):
        witness.covered("x", k, served, w, band, 0.0)
