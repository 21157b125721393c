"""Consequences that no proof cites, on kernel outputs: ranges and monotony of the meter, what the rounding of codes implies.

Each is a theorem of its own in Core that the code relies on: that a meter says something at all (it is below 1), that
rounding up anywhere leaves it a bound, that a scale leaves nothing to clip.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import torch
from torch import Tensor

from contracts.checks._data import Plan, draw, hard_tokens, write
from contracts.checks._device import round_up_half
from contracts.checks._stores import Case, exact_case, generator, normal, packed_case, served, uniform
from contracts.checks._truth import attention
from contracts.discharge import Outcome, Setting, Violation, discharges
from witcert import bounds, golden
from witcert.budget import Budget
from witcert.kernels.decode import BandMeter, HalfStepMeter, Reading, TierBMeter, decode
from witcert.kernels.formats import Dither, ExactStore, PackedStore
from witcert.kernels.witness_write import witness_write
from witcert.schemes.grid import STEP
from witcert.witness import Bands

SEED = 60690


def _first(bad: Tensor) -> tuple[int, ...]:
    return tuple(bad.nonzero()[0].tolist())


def _case(setting: Setting, seed: int) -> Case:
    """Keys served with relative errors from 2^-12 to 1, so that meters range from their floor to 1."""
    g = generator(setting.device, seed)
    n, size, heads, group, d = (4096, 64, 2, 4, 64) if setting.full else (6, 24, 1, 2, 64)
    k = normal(g, n, size, heads, d).half()
    error = normal(g, n, size, heads, d) * torch.exp2(uniform(g, -12, 0, n, 1, heads, 1))
    q = (normal(g, n, heads * group, d) * torch.exp2(uniform(g, -3, 2, n, heads * group, 1))).half()
    lens = torch.full((n,), size, device=setting.device)
    return exact_case(g, q, (k + error).half(), k, normal(g, n, size, heads, d).half(), lens, bands=Bands(d))


def _read(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    """log A, C and meter of the band meter, float64 [N, Hq]."""
    reading: Reading = decode(case.q, case.store, case.table, scale=case.scale, meter=BandMeter()).readings[0]
    return reading.log_a.double(), reading.c_max.double(), torch.as_tensor(reading.meter.value).double()


@discharges(
    "Reweighted.one_le_acc.conclusion", "tv_nonneg.conclusion", "sharp_nonneg.h_one", "sharp_nonneg.conclusion",
    "sharp_lt_one.conclusion", "sharp_le_eform.h_one", "sharp_le_eform.conclusion", "tanhHalf_nonneg.h_nonneg",
    "tanhHalf_nonneg.conclusion", "tanhHalf_lt_one.conclusion",
)  # fmt: skip
def ranges(setting: Setting) -> Outcome:
    """A >= 1, C >= 0, 0 <= meter <= 1; below 1 wherever log A or C is below 6, and at most the e-form plus its own rounding."""
    log_a, c, meter = _read(_case(setting, SEED))
    rounding = 2e-6  # what stage 2 adds to a meter at most
    known = log_a.isfinite()
    says = (log_a < 6) | (c < 6)
    for what, bad in (
        ("log A is negative", ~(log_a >= 0)),
        ("C is negative", ~(c >= 0)),
        ("the meter is outside [0, 1]", ~((meter >= 0) & (meter <= 1))),
        ("the meter is 1 although A or C is small", says & ~(meter < 1)),
        ("the meter is above the e-form of its own A", known & ~(meter <= torch.expm1(2 * log_a) / 2 + rounding)),
        ("the meter is above the half angle of its own C", known & ~(meter <= torch.tanh(c / 2) + rounding)),
    ):
        if bool(bad.any()):
            at = _first(bad)
            raise Violation(f"{what} in cell {at}: log A {log_a[at]}, C {c[at]}, meter {meter[at]}")
    if not (bool((says & (meter > 0.5)).any()) and bool((meter < 0.01).any())):
        raise Violation("the cells do not spread from small meters to large ones, so this has checked little")
    return Outcome(6 * meter.numel(), (SEED,), float((1 - meter[says]).min()), "below 1", cells=meter.numel())


@discharges("acert_mono.h_le", "acert_mono.conclusion", "meter_mono.h_le_A", "meter_mono.h_le_C", "meter_mono.conclusion")
def monotone(setting: Setting) -> Outcome:
    """Witnesses rounded up once more, by one code and by a factor of 2, never make log A, C or the meter smaller."""
    case = _case(setting, SEED + 1)
    assert isinstance(case.store, ExactStore)
    assert case.store.witness is not None
    before = _read(case)
    cases, least = 0, math.inf
    for what, add in (("one code", 1), ("twice", 1024)):
        codes = case.store.witness.view(torch.int16)
        larger = torch.where((codes >= 0) & (codes < 0x7C00 - add), codes + add, codes).view(torch.float16)
        after = _read(replace(case, store=replace(case.store, witness=larger)))
        for name, x, y in zip(("log A", "C", "the meter"), before, after, strict=True):
            # By one code, a bound moves less than the sums may round: there only C, which nothing sums, must not fall.
            if add == 1 and name != "C":
                continue
            bad = ~(y >= x)
            if bool(bad.any()):
                at = _first(bad)
                raise Violation(f"{name} fell from {x[at]} to {y[at]} in cell {at} with every witness up by {what}")
            cases += x.numel()
            least = min(least, float((y - x)[y.isfinite() & x.isfinite()].min()))
    return Outcome(cases, (SEED + 1,), least, "growth")


@discharges(
    "halfValue_lt.h_lt", "halfValue_lt.conclusion", "ru16_of_isHalf.h_half", "ru16_of_isHalf.conclusion",
    "ru16_pred_lt.conclusion", "ru16_mono.h_le", "ru16_mono.conclusion", "ru16_ge_field.conclusion",
)  # fmt: skip
def binary16(setting: Setting) -> Outcome:
    """RU16 keeps all 31744 finite codes, whose values grow; it is monotone, at least its input, and least with that."""
    codes = torch.arange(0x7C00, device=setting.device)
    value = codes.to(torch.int16).view(torch.float16).float()
    if not bool((value[1:] > value[:-1]).all()):
        raise Violation("the values of the codes do not grow")
    kept = round_up_half(value).view(torch.int16).long()
    if bool((kept != codes).any()):
        raise Violation(f"RU16 moves the code {int(codes[kept != codes][0])}, which is a binary16 number already")
    g = generator(setting.device, SEED + 2)
    count = 1 << 26 if setting.full else 1 << 16
    bits = torch.randint(0, 0x477FE001, (count,), generator=g, device=setting.device).sort().values
    x = bits.to(torch.int32).view(torch.float32)
    code = round_up_half(x).view(torch.int16).long()
    up = code.to(torch.int16).view(torch.float16).float()
    below = (code - 1).clamp_min(0).to(torch.int16).view(torch.float16).float()
    for what, bad in (
        ("is not monotone", torch.cat([code[1:] < code[:-1], code[:1] < 0])),
        ("is below its input", up < x),
        ("is not the least, the next code down would do", (code > 0) & (below >= x)),
    ):
        if bool(bad.any()):
            raise Violation(f"RU16 {what} at the float32 with bits {int(bits[bad][0]):#x}")
    return Outcome(2 * len(codes) + 3 * count, (SEED + 2,), 0.0, "comparisons of exact numbers")


@discharges("noclip_of_scale.h_scale", "noclip_of_scale.conclusion", "round_of_computed.h_round",
            "round_of_computed.h_computed", "round_of_computed.conclusion")  # fmt: skip
def codes(setting: Setting) -> Outcome:
    """A stored scale is at least amax/126.5; a code is nearest to the computed x/s + xi, which is within 2^-16 of the exact."""
    rng = draw(setting, SEED + 3)
    tokens, heads, d = (1 << 14, 8, 128) if setting.full else (48, 2, 64)
    k, v = (hard_tokens(rng, tokens, heads, d, torch.float16) for _ in range(2))
    done = write(rng, Plan(d), k, v)
    cases, least = 0, math.inf
    for side, x in ((0, k), (1, v)):
        code, s = done.codes(side)
        xi = done.shift(side)
        group = x.double().abs().reshape(*x.shape[:-1], -1, 32)
        amax = group.amax(-1, keepdim=True).expand_as(group).flatten(-2)
        seen = s.isfinite() & amax.isfinite()
        cases += 3 * int(seen.sum())
        wide = x.double()
        # 11-bit scale times 8-bit divisor, and 11-bit key: exact in float64
        for what, top in (("is below amax / 126.5", amax), ("leaves the key to be clipped", wide.abs())):
            bad = s * 126.5 < top
            if bool((bad & seen).any()):
                at = _first(bad & seen)
                raise Violation(f"side {side}: the scale {s[at]} of {at} {what}: key {wide[at]}, amax {amax[at]}")
        some = seen & (s > 0)
        ratio = x.float()[some] / s.float()[some]
        computed = (ratio + xi.float()[some]).double()
        exact = wide[some] / s[some] + xi[some]
        slack = 2.0**-16 - (computed - exact).abs() - 1e-12  # the quotient of two doubles, at most 127, rounds by 2^-46
        off = 0.5 - (code[some] - computed).abs()
        for what, room in (("computed x/s + xi is too far from the exact one", slack), ("code is not nearest to it", off)):
            if bool((room < 0).any()):
                raise Violation(f"side {side}: {what}: key {wide[some][room < 0][0]}, scale {s[some][room < 0][0]}")
        least = min(least, float(slack.min()))
    return Outcome(cases, (SEED + 3,), least, "of x/s + xi")


@discharges(
    "ditherCode_law.conclusion", "grid_dither_average.h_round", "grid_dither_average.conclusion",
    "grid_eq_signs.h_index", "grid_eq_signs.conclusion", "grid_mean.conclusion",
)  # fmt: skip
def executable(setting: Setting) -> Outcome:
    """Written codes equal Lean's executable rounding, ties to even; over all 256 bytes the residuals are the shifted grid.

    Keys are whole multiples of s/512, so that x/s + xi is exact in float32 and half of the keys meet a tie.
    """
    rng = draw(setting, SEED + 4)
    device = setting.device
    tokens, heads, d = (256, 64, 64) if setting.full else (48, 6, 64)
    unit = torch.randint(-64000, 64001, (heads, 1), generator=rng, device=device).repeat(1, d)  # in s/512, one key a head
    unit[:, ::32] = 64768  # 126.5 * 512: fixes the scale at 1/8
    k = (unit.double() / 512 / 8).float().expand(tokens, heads, d).contiguous()
    done = write(rng, Plan(d, dtype=torch.float32, rounds=10), k, torch.zeros_like(k))
    code, s = done.codes(0)
    if bool((s != 0.125).any()):
        raise Violation(f"a scale is {float(s[s != 0.125][0])}, expected 1/8")
    byte, n = done.bytes(0), code.long()
    grid = 2 * byte - 255  # xi in units of 1/512
    y = unit + grid  # x/s + xi in units of 1/512
    floor = torch.div(y, 512, rounding_mode="floor")
    part = y - 512 * floor
    even = torch.where(part < 256, floor, torch.where(part > 256, floor + 1, floor + floor % 2))
    if bool((n != even).any()):
        at = _first(n != even)
        raise Violation(f"the code of {int(unit[at[1:]])}/512 s with byte {int(byte[at])} is {int(n[at])}, not {int(even[at])}")
    ties = int((part == 256).sum())
    residual = 512 * n - grid - unit  # in units of s/512
    index, order = torch.arange(256, device=device), torch.arange(-255, 256, 2, device=device)
    signs = torch.stack([(2 * (index >> bit & 1) - 1) << bit for bit in range(8)]).sum(0)
    if bool((signs != order).any()) or int(order.sum()):
        raise Violation("the grid is not the signed powers of two of its index, or its mean is not 0")
    bulk = torch.arange(d, device=device) % 32 != 0
    for h in range(heads):
        seen = torch.full((256,), 2**30, dtype=torch.int64, device=device)
        seen[byte[:, h, bulk].flatten()] = residual[:, h, bulk].flatten()
        missing = int((seen == 2**30).sum())
        if missing:
            raise Violation(f"key {h}: {missing} of the 256 bytes never occur in {tokens} tokens")
        theta = int(seen.sum()) // 256
        if abs(theta) > 1 or bool((seen.sort().values != order + theta).any()):
            raise Violation(f"key {h}: the residuals of the 256 bytes are not the grid moved by at most 1/512")
    if not ties:
        raise Violation("no key met a tie")
    return Outcome(n.numel() + 256 * heads, (SEED + 4,), 0.0, "comparisons of integers", note=f"{ties} ties")


@discharges("rope_residual_half_split.conclusion", "rope_residual_adjacent.conclusion")
def rotated_residual(setting: Setting) -> Outcome:
    """Turning exact and served keys alike by a rational angle changes no witness of their difference: equal bits.

    Whole numbers throughout, small enough that residuals and their squares are exact; the unrotated keys are scaled by the
    hypotenuse, which the rotation multiplies lengths by.
    """
    rng = draw(setting, SEED + 7)
    tokens, cases = 1 << 16 if setting.full else 64, 0
    for head_dim, count, pairing in ((64, 16, "half"), (64, 8, "half"), (128, 8, "adjacent"), (64, 16, "adjacent")):
        bands = Bands(head_dim, count, pairing)  # type: ignore[arg-type]
        shape = (tokens, 2, head_dim // 2)
        k = torch.randint(-8, 9, shape, generator=rng, device=setting.device)
        k_hat = k + torch.randint(-12, 13, shape, generator=rng, device=setting.device)
        for a, b, c in ((3, 4, 5), (-12, 5, 13), (0, 1, 1)):
            written = []
            for turned in (False, True):
                rows = []
                for x in (k, k_hat):
                    y = torch.stack((a * x[:, 0] - b * x[:, 1], b * x[:, 0] + a * x[:, 1]), 1) if turned else c * x
                    rows.append((y.flatten(1) if pairing == "half" else y.transpose(1, 2).flatten(1)).half()[:, None])
                w = torch.zeros(tokens, 1, count, dtype=torch.float16, device=setting.device)
                slots = torch.arange(tokens, device=setting.device)
                witness_write(rows[0].contiguous(), rows[1].contiguous(), slots, w, bands=bands)
                written.append(w.view(torch.int16))
            if not torch.equal(written[0], written[1]):
                at = _first(written[0] != written[1])
                raise Violation(f"{pairing}, angle {a}/{c}: the witness of (token, head, band) {at} changes under RoPE")
            cases += written[0].numel()
    return Outcome(cases, (SEED + 7,), 0.0, "bits, compared for equality")


@discharges("output_bound_coordinate.conclusion")
def coordinates(setting: Setting) -> Outcome:
    """Every coordinate of the output: |y_i - y_hat_i| <= 2 meter max|v_i - a| + sum p rho_i, rho from the stored scales."""
    g = generator(setting.device, SEED + 8)
    n, size, heads, group, d = (2048, 24, 2, 8, 64) if setting.full else (3, 9, 1, 2, 64)
    k, v = (normal(g, n, size, heads, d).half() for _ in range(2))
    q = (normal(g, n, heads * group, d) * torch.exp2(uniform(g, -3, 1, n, heads * group, 1))).half()
    lens = torch.full((n,), size, device=setting.device)
    cases, least = 0, math.inf
    for dither in (None, Dither(SEED, 2)):
        case = packed_case(g, q, k, v, lens, dither=dither)
        assert isinstance(case.store, PackedStore)
        slots = case.slots()
        step = case.store.v_scale[slots // case.store.page_size, :, slots % case.store.page_size].double()
        rho = (step.repeat_interleave(32, -1) * (0.5 * STEP * (1 + 2.0**-40))).transpose(1, 2)[:, :, None]  # [N, H, 1, S, d]
        reading = decode(case.q, case.store, case.table, scale=case.scale, meter=HalfStepMeter()).readings[0]
        tv = torch.as_tensor(reading.meter.value).double().view(n, heads, group, 1)
        truth = attention(case)
        p_hat = truth.weight / truth.weight.sum(-1, keepdim=True)  # [N, H, G, S]
        p = p_hat * torch.exp(-truth.eps)
        p = p / p.sum(-1, keepdim=True)
        wide, hat = (x.double().transpose(1, 2) for x in (v, served(case, "v")))  # [N, H, S, d]
        lost = (p @ wide - p_hat @ hat).abs()  # [N, H, G, d]
        # What float64 may be off by: weights within rho of the real ones, and a sum of `size` products.
        error = 8 * truth.rho.amax() + 2 * truth.eps_error.amax() + 1e-12
        slack = error * (wide.abs().amax((-2, -1)) + hat.abs().amax((-2, -1)))[:, :, None, None]
        spread = (p_hat[..., None] * rho).sum(-2)
        for center in (torch.zeros_like(wide[:, :, :1]), wide.mean(2, keepdim=True)):
            radius = (wide - center).abs().amax(2)[:, :, None]  # [N, H, 1, d]
            room = 2 * tv * radius + spread - lost - slack
            if bool((room < 0).any()):
                at = _first(room < 0)
                raise Violation(f"coordinate {at} errs by {float(lost[at])}, the bound is {float((room + lost + slack)[at])}")
            cases, least = cases + room.numel(), min(least, float(room.min()))
    return Outcome(cases, (SEED + 8,), least, "of the output", cells=2 * n * heads * group)


@discharges("two_sided_tail_zero.h_variance", "two_sided_tail_zero.conclusion")
def no_variance(setting: Setting) -> Outcome:
    """A query that meets no scale (0, or 0 outside the outlier channels) has no radius: the dither cannot reach it."""
    g = generator(setting.device, SEED + 5)
    n, size, d = (256, 64, 64) if setting.full else (3, 9, 64)
    k, v = (normal(g, n, size, 1, d).half() for _ in range(2))
    q = torch.zeros(n, 2, d, device=setting.device).half()
    lens = torch.full((n,), size, device=setting.device)
    outliers = torch.tensor([[1, 2, 33, 34]], dtype=torch.int32, device=setting.device)
    meter = TierBMeter(Budget(layers=2, heads=2, kv_heads=1, steps=4), 64)
    least = math.inf
    for kept in (None, outliers):
        if kept is not None:
            q[:, 1, outliers[0].long()] = normal(g, n, 4).half()
        case = packed_case(g, q, k, v, lens, dither=Dither(SEED, 3), outliers=kept)
        # What is left is TINY, and of outlier channels their arithmetic, 2^-14 sum (|q| + 2^-6) |k|.
        limit = torch.full((n, 2), 2.0**-58, device=setting.device, dtype=torch.float64)
        if kept is not None:
            limit += 2.0**-13 * (q.double().abs().sum(-1) + 4 / 64) * float(k.double().abs().max()) * case.scale
        for reading in decode(case.q, case.store, case.table, scale=case.scale, meter=meter).readings:
            room = limit - reading.c_max.double()
            if bool((room < 0).any()):
                at = _first(room < 0)
                raise Violation(f"the bound of {at} is {float(reading.c_max[at])} although no scale meets the query")
            least = min(least, float(room.min()))
    return Outcome(8 * n, (SEED + 5,), least, "of c", cells=8 * n)


@discharges("tvRat_eq.conclusion", "meterRat_eq.conclusion")
def rational(setting: Setting) -> Outcome:
    """The package's total variation and meter against Lean's executable ones, run over the rationals on dyadic numbers."""
    g = torch.Generator().manual_seed(SEED + 6)
    count, cases, least = (4000 if setting.full else 400), 0, math.inf
    for _ in range(count):
        p, q = (torch.bincount(torch.randint(0, 12, (1024,), generator=g), minlength=12).double() / 1024 for _ in range(2))
        exact = sum((abs(Fraction(a) - Fraction(b)) for a, b in zip(p.tolist(), q.tolist(), strict=True)), Fraction(0)) / 2
        if Fraction(float(bounds.total_variation(p, q))) != exact:
            raise Violation(f"total variation {float(bounds.total_variation(p, q))}, exactly {exact}")
        if golden.total_variation(p.tolist(), q.tolist()) != golden.mp.mpf(exact.numerator) / exact.denominator:
            raise Violation(f"total variation at 50 digits is not {exact}")
        a, e = (1 + Fraction(int(x), 64) for x in torch.randint(1, 1024, (2,), generator=g))
        sharp = 1 - 1 / a if a <= 2 else a**2 / (a**2 + 4)
        meter = min(sharp, (e - 1) / (e + 1))
        log_a, c = (golden.mp.log(golden.mp.mpf(x.numerator) / x.denominator) for x in (a, e))
        rounded = [torch.tensor(math.nextafter(float(x), math.inf), dtype=torch.float64) for x in (log_a, c)]
        room = Fraction(float(bounds.meter(rounded[0], rounded[1]))) - meter
        if room < 0 or room > Fraction(1, 10**12):
            raise Violation(f"the meter of A = {a}, exp C = {e} is off by {float(room)} from {meter}")
        cases, least = cases + 3, min(least, float(room))
    return Outcome(cases, (SEED + 6,), least, "of the meter")


@discharges("factorial_growth.conclusion", "sinh_le.h_nonneg", "sinh_le.conclusion")
def statements(setting: Setting) -> Outcome:
    """6^n n! <= (2n+1)! over the integers; sinh x <= x exp(x^2/6) for x >= 0 at 50 digits. No output rests on them."""
    for n in range(400):
        if 6**n * math.factorial(n) > math.factorial(2 * n + 1):
            raise Violation(f"6^n n! exceeds (2n+1)! at n = {n}")
    mp, least = golden.mp, math.inf
    for i in range(2000):
        x = mp.mpf(i) / 64
        room = x * mp.exp(x * x / 6) - mp.sinh(x)
        if room < 0:
            raise Violation(f"sinh x exceeds x exp(x^2/6) at x = {x}")
        least = min(least, float(room))
    return Outcome(2400, (), least, "of sinh x")
