"""Stage 1 of decode: one program reads the tokens of one split of one (sequence, KV head) for all its query heads.

Per token t and query head h, in units of log 2 (formula, theorem, where):

* logit     l = sm log2(e) q . k_hat                              the dot products below
* bound     c >= |l - exact l|: METER 1 ``band_cauchy_schwarz``, 2 ``half_step``, 3 ``weighted_sum_mgf`` and
            ``adaptive_radius``, each with ``query_cast_term`` and ``arith_fold`` on top
* sums      sum 2^(l - m), sum 2^(l - m + c), max c, sum 2^(l - m) v, merged by stage 2 (``lse_merge``)

m is the running maximum rounded up to an integer, so every rescale is an exact power of two and rounds nothing.

Packed keys never leave int8: each query group of 32 channels is q ~ s_q (256 hi + lo) with int8 hi, lo, and the dot
products with codes and with dither bytes are exact integers. With the bytes XORed by 0x7F, read as int8 and called j',
``n - xi = n + j'/256 + 1/512``. What the split of q rounds is part of c.

The output path is the same operations whatever METER is: nothing is contracted (the launch forbids it), every fused
multiply-add is written out. Error budget: docs/error-budget/decode.md.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def,assignment,misc"
# Triton's tuples know no unpacking, and its compile-time conditions stay apart from those that it traces.
# ruff: noqa: RUF005, SIM102

from __future__ import annotations

import triton
import triton.language as tl

from witcert.kernels.decode.parts import (
    capped,
    dither_operand,
    dithered_to_half,
    fold_max,
    fold_sum,
    half_of_pair,
    join_words,
    pow2,
    value_scales,
)
from witcert.kernels.philox.device import philox4x32_words
from witcert.kernels.rounding import ru16

__all__ = ["stage1_kernel"]

@triton.jit
def _operand(x, INTERPRET: tl.constexpr):
    """x as an operand of a dot product; the interpreter multiplies no bfloat16, and float32 holds the same numbers."""
    if INTERPRET:
        if x.dtype == tl.bfloat16:
            return x.to(tl.float32)
    return x


@triton.jit
def _scale_words(ptr, at, valid, NG: tl.constexpr):
    """The scales of each row as they are stored, in words of two (d = 64) or four float16: a tuple of int [T]."""
    SW: tl.constexpr = 1 if NG <= 4 else NG // 4
    words = ()
    for i in tl.static_range(SW):
        words = words + (tl.load(ptr + at * SW + i, mask=valid, other=0),)
    return words


@triton.jit
def _scale(words, g: tl.constexpr):
    """Scale of group g, float16 [T]."""
    bits = (words[g // 4] >> (16 * (g % 4))).to(tl.int16)
    return bits.to(tl.float16, bitcast=True)


@triton.jit
def _outlier_mask(channel, outlier_ptr, head, OUT: tl.constexpr):
    """Which channels [C] are among the head's OUT outlier channels."""
    listed = tl.load(outlier_ptr + head * OUT + tl.arange(0, OUT))  # [OUT]
    return tl.max((channel[:, None] == listed[None, :]).to(tl.int32), axis=1) > 0  # [C]


@triton.jit
def _query_group(
    q_ptr, head_row, inside, g: tl.constexpr, outlier_ptr, kv_head, factor, D: tl.constexpr, OUT: tl.constexpr
):
    """One group of 32 channels of the queries as integers, with what bounds need of it.

    Returns hi, lo int8 [32, GP]; the multiplier of a code product, the half-step coefficient, the coefficient of cast
    and arithmetic, the energy, the share of the half-step bound that covers what Tier B adds to its radius, each float32
    [GP] in units of log 2 (the energy in units of q); the constant of the dither, int32 [GP].
    """
    channel = g * 32 + tl.arange(0, 32)  # [32]
    q = tl.load(q_ptr + head_row[:, None] * D + channel[None, :], mask=inside[:, None], other=0.0).to(tl.float32)
    if OUT > 0:
        q = tl.where(_outlier_mask(channel, outlier_ptr, kv_head, OUT)[None, :], 0.0, q)  # [GP, 32]
    top = tl.max(tl.abs(q), axis=1)  # [GP]
    norm1 = tl.sum(tl.abs(q), axis=1)  # NaN or infinity here: no claim
    unit = top * (1.0 / 32512.0)
    code = tl.floor(q / tl.where(unit > 0.0, unit, 1.0)[:, None] + 0.5)
    code = tl.minimum(tl.maximum(code, -32512.0), 32512.0).to(tl.int32)
    high = (code + 128) >> 8
    low = code - (high << 8)
    constant = (tl.sum(code, axis=1) >> 1) + 128
    # |q - unit * code| <= 0.51 unit; |n - xi| <= 128.5; twice, for the logit and for the weights that it makes.
    rest = 2.0 * (2100.0 * unit + 1.2254e-4 * (norm1 + 17.0 * unit)) * factor
    half = 0.500035 * norm1 * factor + rest  # steps are scales * (1 + 2^-14)
    bias = 0.00199 * norm1 * factor + rest  # 1/512 off centre, 2^-16 excess
    share = tl.where(half > 0.0, bias / half, 0.0) * 1.000001
    energy = tl.sum(q * q, axis=1)
    return tl.trans(high.to(tl.int8)), tl.trans(low.to(tl.int8)), unit * factor, half, rest, energy, share, constant


@triton.jit
def _query_bands(q_ptr, head_row, inside, D: tl.constexpr, NB: tl.constexpr, ADJACENT: tl.constexpr, GP: tl.constexpr):
    """RU16 of the queries' band norms, float16 [16, GP]; rows past NB are 0."""
    band = tl.arange(0, 16)  # [16]
    channels: tl.constexpr = D // NB
    total = tl.zeros((16, GP), tl.float32)
    some = tl.zeros((16, GP), tl.float32)
    for i in tl.static_range(channels):
        if ADJACENT:
            channel = band * channels + i
        else:
            channel = band * (channels // 2) + (i % (channels // 2)) + (i // (channels // 2)) * (D // 2)
        at = q_ptr + head_row[None, :] * D + channel[:, None]
        x = tl.load(at, mask=inside[None, :] & (band < NB)[:, None], other=0.0).to(tl.float32)
        total += x * x
        some = tl.maximum(some, tl.abs(x))
    # An underflowed square belongs to a channel below 2^-63; the least positive float16 is above all of those.
    norm = tl.sqrt_rn(total) * 1.0000153  # 1 + 2^-16: squares, sums and root
    return ru16(tl.where(some > 0.0, tl.maximum(norm, 5.9604645e-08), norm))


@triton.jit(do_not_specialize=["page_stride", "splits", "window", "key0", "key1", "layer"])
def stage1_kernel(
    q_ptr, k_ptr, ks_ptr, v_ptr, vs_ptr, w_ptr, ko_ptr, outlier_ptr, epoch_ptr, page_ptr, len_ptr, part_ptr, out_ptr,
    stat_ptr, page_stride, splits, window, key0, key1, layer,
    factor, cap_log2, inverse_cap, slack, band_factor, radius, radius_adaptive,
    HKV: tl.constexpr, G: tl.constexpr, GP: tl.constexpr, D: tl.constexpr, T: tl.constexpr, PAGE: tl.constexpr,
    PACKED: tl.constexpr, DITHER_K: tl.constexpr, DITHER_V: tl.constexpr, ROUNDS: tl.constexpr, OUT: tl.constexpr,
    METER: tl.constexpr, NB: tl.constexpr, ADJACENT: tl.constexpr, CAP: tl.constexpr, WARPS: tl.constexpr,
    INTERPRET: tl.constexpr, STAGES: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    NG: tl.constexpr = D // 32
    # Accumulators of the output: one; one for each group; two for each group, of its even and its odd channels.
    NA: tl.constexpr = (NG if DITHER_V else 2 * NG) if PACKED else 1
    kv_head = tl.program_id(0)  # neighbours in time read neighbours in memory
    split = tl.program_id(1)
    row = tl.program_id(2)
    length = tl.load(len_ptr + row)
    first = tl.maximum(length - window, 0)
    share = tl.cdiv(tl.cdiv(length - first, splits), T) * T
    begin = first + split * share
    end = tl.minimum(begin + share, length)

    member = tl.arange(0, GP)  # [GP]
    inside = member < G
    head_row = (row * HKV + kv_head) * G + member  # [GP], row of the query
    if PACKED:
        q_high = ()
        q_low = ()
        q_unit = ()
        q_half = ()
        q_rest = ()
        q_energy = ()
        q_constant = ()
        bias_share = tl.zeros((GP,), tl.float32)
        for g in tl.static_range(NG):
            high, low, unit, half, rest, energy, bias, constant = _query_group(
                q_ptr, head_row, inside, g, outlier_ptr, kv_head, factor, D, OUT
            )
            q_high = q_high + (high,)
            q_low = q_low + (low,)
            q_unit = q_unit + (unit,)
            q_half = q_half + (half,)
            q_rest = q_rest + (rest,)
            q_energy = q_energy + (energy,)
            q_constant = q_constant + (constant,)
            bias_share = tl.maximum(bias_share, bias)
        if OUT > 0:
            OP: tl.constexpr = 16 if OUT < 16 else OUT
            column = tl.arange(0, OP)  # [OP]
            outlier = tl.load(outlier_ptr + kv_head * OUT + column, mask=column < OUT, other=0)
            listed = (column < OUT)[:, None] & inside[None, :]
            q_out = tl.load(q_ptr + head_row[None, :] * D + outlier[:, None], mask=listed, other=0.0)
            q_out = q_out.to(tl.float16)  # [OP, GP]; what bfloat16 loses here is below 2^-25, or infinite
            q_out_abs = ru16(tl.where(listed, tl.abs(q_out.to(tl.float32)) + 0.015625, 0.0))
            # A bfloat16 key below 2^-14 becomes float16 with an error of 2^-25; 2^-24 pays for the roundings of the sum.
            q_out_lost = tl.sum(q_out_abs.to(tl.float32), axis=0) * (factor * 5.9604645e-08)  # [GP]
    else:
        channel = tl.arange(0, D)
        q = tl.load(q_ptr + head_row[None, :] * D + channel[:, None], mask=inside[None, :], other=0.0)  # [D, GP]
    if METER == 1:
        q_band = _query_bands(q_ptr, head_row, inside, D, NB, ADJACENT, GP)  # [16, GP]
    if DITHER_K or DITHER_V:
        key0 = key0.to(tl.uint32, bitcast=True)
        key1 = key1.to(tl.uint32, bitcast=True)
        word2 = (layer.to(tl.uint32) << 16) | kv_head.to(tl.uint32)
        # 0x7F in every byte. A load that never happens: no constant may take its place (see dither_operand).
        nowhere = page_ptr + tl.arange(0, T)[:, None] * 8 + tl.arange(0, 8)[None, :]
        flip = tl.load(nowhere, mask=tl.full((T, 8), 0, tl.int32) > length, other=0x7F7F7F7F)  # [T, 8]

    m = tl.full((GP,), -3.0e38, tl.float32)
    acc = ()
    for _ in tl.static_range(NA):
        acc = acc + (tl.zeros((D // NA, GP), tl.float32),)
    mass = tl.zeros((WARPS * 8, GP), tl.float32)
    a0 = tl.zeros((WARPS * 8, GP), tl.float32)
    a1 = tl.zeros((WARPS * 8, GP), tl.float32)
    c0 = tl.zeros((WARPS * 8, GP), tl.float32)
    c1 = tl.zeros((WARPS * 8, GP), tl.float32)

    for start in tl.range(begin, end, T, num_stages=STAGES):
        position = start + tl.arange(0, T)  # [T]
        valid = position < end
        if PAGE == 16:
            index = position >> 4
            within = position & 15
        else:
            index = position
            within = 0
        if PART >= 0:
            # Pages of the other part are not there at all: no load, weight 0, bound 0.
            mine = part_ptr + (row.to(tl.int64) * HKV + kv_head) * page_stride + index
            valid &= tl.load(mine, mask=valid, other=PART ^ 1).to(tl.int32) == PART
        page = tl.load(page_ptr + row.to(tl.int64) * page_stride + index, mask=valid, other=0).to(tl.int64)  # [T]
        if PACKED:
            at = (page * HKV + kv_head) * PAGE + within  # [T], row of the store
        else:
            at = (page * PAGE + within) * HKV + kv_head
        if DITHER_K or DITHER_V:
            slot = page * PAGE + within
            epoch = tl.load(epoch_ptr + slot, mask=valid, other=0).to(tl.uint32, bitcast=True)
            slot32 = slot.to(tl.uint32)

        # ---- logits and what the scales alone say, [T, GP]
        if PACKED:
            logit = tl.zeros((T, GP), tl.float32)
            scales = _scale_words(ks_ptr, at, valid, NG)
            for g in tl.static_range(NG):
                scale = _scale(scales, g).to(tl.float32)  # [T]
                channel = g * 32 + tl.arange(0, 32)
                code = tl.load(k_ptr + at[:, None] * D + channel[None, :], mask=valid[:, None], other=0)  # [T, 32]
                if DITHER_K:
                    block = (g * 2 + tl.arange(0, 2)).to(tl.uint32)  # [2]
                    w0, w1, w2, w3 = philox4x32_words(
                        key0, key1, slot32[:, None], epoch[:, None], word2, block[None, :], ROUNDS
                    )
                    byte = dither_operand(join_words(w0, w1, w2, w3), flip, T, 32, INTERPRET)  # [T, 32]
                    fine = tl.dot(byte, q_high[g], out_dtype=tl.int32) * 256 + q_constant[g][None, :]
                    fine = tl.dot(byte, q_low[g], fine, out_dtype=tl.int32) >> 8
                    product = tl.dot(code, q_high[g], out_dtype=tl.int32) * 256 + fine
                else:
                    product = tl.dot(code, q_high[g], out_dtype=tl.int32) * 256
                product = tl.dot(code, q_low[g], product, out_dtype=tl.int32)
                if g == 0:
                    # Constants (no product is that large) in the layout of the product: saves a conversion of the sums.
                    step = tl.where(product == -2147483648, 1.0, slack)
                    square = tl.where(product == -2147483648, 1.0, 0.0)
                logit = tl.fma(scale[:, None] * q_unit[g][None, :], product.to(tl.float32), logit)
                if METER == 1:
                    step = tl.fma(scale[:, None], q_rest[g][None, :], step)
                if METER >= 2:
                    step = tl.fma(scale[:, None], q_half[g][None, :], step)
                if METER == 3:
                    square = tl.fma((scale * scale)[:, None], q_energy[g][None, :], square)
            if OUT > 0:
                stored = valid[:, None] & (column < OUT)[None, :]
                k_out = tl.load(ko_ptr + at[:, None] * OUT + column[None, :], mask=stored, other=0.0)  # [T, OP]
                logit = tl.fma(tl.dot(k_out, q_out), factor, logit)
        else:
            k = tl.load(k_ptr + at[:, None] * D + channel[None, :], mask=valid[:, None], other=0.0)  # [T, D]
            logit = tl.dot(_operand(k, INTERPRET), _operand(q, INTERPRET)) * factor
        if CAP:
            logit = capped(logit * 0.6931471805599453, cap_log2, inverse_cap)

        # ---- weights
        logit = tl.where(valid[:, None], logit, float("-inf"))
        m_new = tl.maximum(m, tl.ceil(tl.max(fold_max(logit, T, GP, WARPS), axis=0)))  # [GP]
        alpha = pow2(m - m_new)
        m = m_new
        x = logit - m[None, :]
        p = tl.exp2(x)
        mass = tl.fma(mass, alpha[None, :], fold_sum(p, T, GP, WARPS))

        # ---- bounds and accumulators
        if METER > 0:
            # A rescale below 2^-126 is 0, and may meet a sum that exp(c) made as large as 2^128: never rescale bounds to less.
            keep = tl.maximum(alpha, 1.1754943508222875e-38)
            if METER == 1:
                band = tl.arange(0, 16)
                seen = valid[:, None] & (band < NB)[None, :]
                w = tl.load(w_ptr + at[:, None] * NB + band[None, :], mask=seen, other=0.0)  # [T, 16]
                bound = tl.fma(tl.dot(w, q_band), band_factor, slack)
                if PACKED:
                    bound += step
            else:
                bound = step
            if PACKED:
                if OUT > 0:
                    arithmetic = tl.dot(tl.abs(k_out), q_out_abs) * (factor * 6.1035156e-05) + q_out_lost[None, :]
                    bound += arithmetic
            # Rows past the end have scale and witness 0: their bound is slack, their weight 0.
            if METER == 3:
                extra = tl.fma(bound, bias_share[None, :], slack)
                if OUT > 0:
                    extra += arithmetic
                root = tl.sqrt(square) * factor
                loose = tl.fma(root, radius_adaptive, extra)
                tight = tl.fma(root, radius, extra)
                # NaN in the bound is NaN in both, which a minimum of two NaNs keeps.
                tight = tl.minimum(tight, bound)
                bound = tl.minimum(loose, bound)
                if PART >= 0:
                    tight = tl.where(valid[:, None], tight, 0.0)
                a1 = tl.fma(a1, keep[None, :], fold_sum(tl.exp2(x + tight), T, GP, WARPS))
                c1 = tl.maximum(c1, fold_max(tight, T, GP, WARPS))
            if PART >= 0:
                bound = tl.where(valid[:, None], bound, 0.0)
            a0 = tl.fma(a0, keep[None, :], fold_sum(tl.exp2(x + bound), T, GP, WARPS))
            c0 = tl.maximum(c0, fold_max(bound, T, GP, WARPS))

        # ---- values
        weight = p.to(tl.float16) if PACKED else p.to(k_ptr.dtype.element_ty)  # [T, GP]
        if PACKED:
            new = ()
            loaded = _scale_words(vs_ptr, at, valid, NG)
            scales = (value_scales(loaded[0], 16 * min(NG, 4), INTERPRET),)
            if NG > 4:
                scales = scales + (value_scales(loaded[1], 64, INTERPRET),)
            for g in tl.static_range(NG):
                s = _scale(scales, g)  # [T]
                if DITHER_V:
                    word = g * 8 + tl.arange(0, 8)
                    # [T, 8], four channels each
                    codes = tl.load(v_ptr + at[:, None] * (D // 4) + word[None, :], mask=valid[:, None], other=0)
                    block = (0x10000 + g * 2 + tl.arange(0, 2)).to(tl.uint32)  # [2], side 1
                    w0, w1, w2, w3 = philox4x32_words(
                        key0, key1, slot32[:, None], epoch[:, None], word2, block[None, :], ROUNDS
                    )
                    v = dithered_to_half(codes, join_words(w0, w1, w2, w3), s, T, 32, INTERPRET)  # [T, 32]
                    new = new + (tl.dot(tl.trans(v), weight, acc[g] * alpha[None, :]),)
                else:
                    word = g * 16 + tl.arange(0, 16)
                    # [16, T], two channels each
                    codes = tl.load(v_ptr + at[None, :] * (D // 2) + word[:, None], mask=valid[None, :], other=0)
                    factors = tl.broadcast_to(s[None, :], (16, T))
                    even = half_of_pair(codes, factors, False, INTERPRET)
                    odd = half_of_pair(codes, factors, True, INTERPRET)
                    new = new + (
                        tl.dot(even, weight, acc[2 * g] * alpha[None, :]),
                        tl.dot(odd, weight, acc[2 * g + 1] * alpha[None, :]),
                    )
            acc = new
        else:
            # [D, T]: loaded the way the product wants it, so that it goes from global to shared memory and from there
            # into registers once
            v = tl.load(v_ptr + at[None, :] * D + channel[:, None], mask=valid[None, :], other=0.0)
            acc = (tl.dot(_operand(v, INTERPRET), _operand(weight, INTERPRET), acc[0] * alpha[None, :]),)

    # ---- this split's part: numerators [D] and six numbers for each head
    part = (row * HKV + kv_head) * G + member
    part = part.to(tl.int64) * splits + split  # [GP]
    for i in tl.static_range(NA):
        if NA == 2 * NG:
            to = (i // 2) * 32 + 2 * tl.arange(0, 16) + i % 2
        else:
            to = i * (D // NA) + tl.arange(0, D // NA)
        tl.store(out_ptr + part[None, :] * D + to[:, None], acc[i], mask=inside[None, :])
    tl.store(stat_ptr + part * 8, m, mask=inside)
    tl.store(stat_ptr + part * 8 + 1, tl.sum(mass, axis=0), mask=inside)
    if METER > 0:
        tl.store(stat_ptr + part * 8 + 2, tl.sum(a0, axis=0), mask=inside)
        tl.store(stat_ptr + part * 8 + 3, tl.max(c0, axis=0), mask=inside)
    if METER == 3:
        tl.store(stat_ptr + part * 8 + 4, tl.sum(a1, axis=0), mask=inside)
        tl.store(stat_ptr + part * 8 + 5, tl.max(c1, axis=0), mask=inside)
