"""Attention of a chunk of new tokens over a cached prefix and over the chunk itself, causal, with meters per query.

One program: M rows (a query position and a query head of one KV head's group) over all tokens that they see. Logits in
units of log 2. The running maximum is an integer, so every rescale is an exact power of two.

* prefix of an exact store: ``l = scale q . k``; its read constant gamma is in the witness (``arith_fold``).
* prefix of a packed store: k_hat = s (n - xi), the stored number in an outlier channel, is computed in float32 and split
  into two halves of the query's type, two dot products; what that rounds is added to c.
* chunk: exact keys, so c is the arithmetic alone (``repair_exact``, ``arith_fold``).

c of a prefix token: METER 1 sum_b |q_b| w_b (``band_cauchy_schwarz``), 2 sum_g |q_g|_1 s_g / 2 (``half_step``), 3 the radius
of the dither's law, adaptive (``adaptive_radius``) and not (``two_sided_tail``), or half a step where that is less. A soft
cap is 1-Lipschitz, so c stays a bound; a sink is one more token, whose logit is exact (``sink_extend``); a window decides
which tokens there are. A and C as in decode, without splits. Error budget: docs/error-budget/extend.md.

PART 0 or 1: of the prefix, only pages of that part of a cache that lies in two stores are there. Not OWN: the chunk's keys
and the sink belong to the other read. A query that then sees nothing has mass 0, A 1 and C 0, which merge to nothing.

The output path is the same operations whatever METER is (the launch forbids contraction).
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

from witcert.kernels.decode.parts import capped, pow2
from witcert.kernels.decode.stage2 import _meter
from witcert.kernels.extend.parts import (
    accumulate,
    band_columns,
    halves,
    narrow,
    operand,
    outlier_columns,
    query_groups,
    served,
    value_operand,
)
from witcert.kernels.philox.device import key_words
from witcert.kernels.rounding import widen
from witcert.kernels.witness_write.kernel import pool_row

__all__ = ["extend_kernel"]


@triton.jit(do_not_specialize=["key_low", "key_high", "layer", "window"])
def extend_kernel(
    q_ptr, k_ptr, v_ptr, lens_ptr, pages_ptr, prefix_ptr, k_pool, v_pool, k_scale, v_scale, witness_ptr, outlier_pool,
    outlier_ptr, epochs_ptr, sink_ptr, part_ptr, out_ptr, lse_ptr, log_a_ptr, c_ptr, meter_ptr,
    chunk, cells, page_stride, window, key_low, key_high, layer,
    factor, cap_log2, inverse_cap, slack, band_factor, half_factor, bias_factor, radius, radius_adaptive,
    arithmetic, tiny, own, lost_norm, lost_outlier, inflate,
    HKV: tl.constexpr, G: tl.constexpr, D: tl.constexpr, M: tl.constexpr, N: tl.constexpr, PAGE: tl.constexpr,
    PACKED: tl.constexpr, K_ROUNDS: tl.constexpr, V_ROUNDS: tl.constexpr, OUT: tl.constexpr, METER: tl.constexpr,
    NB: tl.constexpr, HALF: tl.constexpr, WINDOW: tl.constexpr, CAP: tl.constexpr, SINK: tl.constexpr,
    PART: tl.constexpr, OWN: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1)
    sequence = tl.program_id(2).to(tl.int64)
    length = tl.minimum(tl.load(lens_ptr + sequence), chunk)  # tokens of the chunk
    prefix = tl.load(prefix_ptr + sequence)
    first = tl.program_id(0) * M // G  # position of the first row
    row = tl.program_id(0) * M + tl.arange(0, M)  # [M]
    position, member = row // G, row % G
    seen = position < length
    channel = tl.arange(0, D)
    cell = (sequence * chunk + position) * (HKV * G) + head * G + member  # [M]
    q = tl.load(q_ptr + cell[:, None] * D + channel[None, :], mask=seen[:, None], other=0.0)  # [M, D]
    dtype: tl.constexpr = q_ptr.dtype.element_ty
    wide = widen(q)
    if METER > 0:
        size = (tl.sqrt_rn(tl.sum(wide * wide, 1)) + lost_norm) * factor  # [M], |q| in units of the logits
    if METER == 1:
        columns = band_columns(wide, D, M, NB, HALF)  # [M, 16]
    if METER >= 2:
        size_group, energy, outlying = query_groups(q_ptr, cell, seen, outlier_ptr, head, D, OUT)
        fixed = slack + outlying * (factor * lost_outlier)  # [M]
    if OUT > 0:
        kept, column = outlier_columns(channel, outlier_ptr, head, OUT)  # [D]

    m = tl.full([M], -3.0e38, tl.float32)
    mass = tl.zeros([M], tl.float32)
    total = tl.zeros([M], tl.float32)
    top = tl.zeros([M], tl.float32)
    total1 = tl.zeros([M], tl.float32)
    top1 = tl.zeros([M], tl.float32)
    acc = tl.zeros([M, D], tl.float32)
    k0, k1 = key_words(key_low, key_high)
    number = tl.arange(0, 16)[None, :]
    # A program whose rows all lie past the chunk does nothing.
    alive = first < length
    end = tl.where(alive, prefix, 0)
    begin = 0
    if WINDOW:
        begin = tl.maximum(prefix + first + 1 - window, 0)
    for start in range(begin, end, N):
        token = start + tl.arange(0, N)  # [N]
        there = token < end
        if PART >= 0:
            # Pages of the other part are not there at all: no load, weight 0, bound 0.
            mine = part_ptr + (sequence * HKV + head) * page_stride + token // PAGE
            there = there & (tl.load(mine, mask=there, other=PART ^ 1).to(tl.int32) == PART)
        visible = there[None, :] & seen[:, None]  # [M, N]
        if WINDOW:
            visible = visible & (token[None, :] > (prefix + position - window)[:, None])
        page = tl.load(pages_ptr + sequence * page_stride + token // PAGE, mask=there, other=0)
        slot = page * PAGE + token % PAGE  # [N]
        at = pool_row(slot, head, HKV, PAGE if PACKED else 1).to(tl.int64)  # [N]
        if PACKED:
            epoch = slot
            if K_ROUNDS > 0:
                epoch = tl.load(epochs_ptr + slot, mask=there, other=0)
            k = served(k_pool, k_scale, at, slot, epoch, head, there, k0, k1, layer, N, D, 0, K_ROUNDS, INTERPRET)
            if OUT > 0:
                read = there[:, None] & kept[None, :]
                exact = tl.load(outlier_pool + at[:, None] * OUT + column[None, :], mask=read, other=0.0)
                k = tl.where(kept[None, :], exact.to(tl.float32), k)  # [N, D]
            high, low = halves(k, dtype, INTERPRET)
            x = tl.dot(operand(q, INTERPRET), tl.trans(operand(low, INTERPRET)))  # [M, N]
            x = tl.dot(operand(q, INTERPRET), tl.trans(operand(high, INTERPRET)), x)
            v = served(v_pool, v_scale, at, slot, epoch, head, there, k0, k1, layer, N, D, 1, V_ROUNDS, INTERPRET)
            value = value_operand(v, dtype, INTERPRET)
        else:
            k_half = tl.load(k_pool + at[:, None] * D + channel[None, :], mask=there[:, None], other=0.0)
            x = tl.dot(operand(q, INTERPRET), tl.trans(operand(k_half, INTERPRET)))
            value = tl.load(v_pool + at[:, None] * D + channel[None, :], mask=there[:, None], other=0.0)
        x = x * factor
        known = tl.abs(x) < float("inf")  # [M, N]
        if CAP:
            x = capped(x * 0.6931471805599453, cap_log2, inverse_cap)
        x = tl.where(visible, x, float("-inf"))
        c = x
        tight = x
        if METER > 0:
            if METER == 1:
                if NB == 8:
                    pair = there[:, None] & (number % 2 == 0)
                    w = tl.load(witness_ptr + at[:, None] * 8 + number // 2, mask=pair, other=0.0)
                else:
                    w = tl.load(witness_ptr + at[:, None] * 16 + number, mask=there[:, None], other=0.0)  # [N, 16]
                c = tl.dot(operand(columns, INTERPRET), tl.trans(operand(w, INTERPRET))) * band_factor
                if PACKED:
                    c += size[:, None] * (tl.sqrt_rn(tl.sum(k * k, 1)) * arithmetic + tiny)[None, :]
                # A logit that is not finite is no claim, whatever the witness says (a packed key's norm says so itself).
                c = tl.where(known, c + slack, float("inf"))
            else:
                steps = tl.zeros([M, N], tl.float32)  # sum_c |q_c| s_c
                square = tl.zeros([M, N], tl.float32)  # sum_c q_c^2 s_c^2
                for g in tl.static_range(D // 32):
                    s = tl.load(k_scale + at * (D // 32) + g, mask=there, other=0.0).to(tl.float32)  # [N]
                    steps = tl.fma(size_group[g][:, None], s[None, :], steps)
                    if METER == 3:
                        square = tl.fma(energy[g][:, None], (s * s)[None, :], square)
                extra = size[:, None] * (tl.sqrt_rn(tl.sum(k * k, 1)) * arithmetic + tiny)[None, :] + fixed[:, None]
                c = tl.fma(steps, half_factor, extra)
                if METER == 3:
                    # NaN in both stays; where the squares alone overflowed, half a step is known and holds.
                    root = tl.sqrt(square)
                    drift = tl.fma(steps, bias_factor, extra)
                    tight = tl.where(visible, tl.minimum(tl.fma(root, radius, drift), c), 0.0)
                    c = tl.minimum(tl.fma(root, radius_adaptive, drift), c)
            c = tl.where(visible, c, 0.0)
        m, mass, total, top, total1, top1, acc = accumulate(
            x, c, tight, value, m, mass, total, top, total1, top1, acc, INTERPRET, METER
        )

    if OWN:
        last = tl.where(alive, tl.minimum((tl.program_id(0) * M + M - 1) // G + 1, length), 0)
        begin = 0
        if WINDOW:
            begin = tl.maximum(first + 1 - window, 0)
        for start in range(begin, last, N):
            token = start + tl.arange(0, N)  # [N]
            there = token < last
            at = ((sequence * chunk + token) * HKV + head)[:, None] * D  # [N, 1]
            k_half = tl.load(k_ptr + at + channel[None, :], mask=there[:, None], other=0.0)
            value = tl.load(v_ptr + at + channel[None, :], mask=there[:, None], other=0.0)
            visible = there[None, :] & (token[None, :] <= position[:, None]) & seen[:, None]  # [M, N]
            if WINDOW:
                visible = visible & (token[None, :] > (position - window)[:, None])
            x = tl.dot(operand(q, INTERPRET), tl.trans(operand(k_half, INTERPRET))) * factor
            if CAP:
                x = capped(x * 0.6931471805599453, cap_log2, inverse_cap)
            x = tl.where(visible, x, float("-inf"))
            c = x
            if METER > 0:
                exact = widen(k_half)
                c = size[:, None] * ((tl.sqrt_rn(tl.sum(exact * exact, 1)) + lost_norm) * own)[None, :] + slack
                c = tl.where(visible, c, 0.0)
            m, mass, total, top, total1, top1, acc = accumulate(
                x, c, c, value, m, mass, total, top, total1, top1, acc, INTERPRET, METER
            )

    if SINK:
        sink = tl.load(sink_ptr + head * G + member) * 1.4426950408889634  # [M]
        new = tl.maximum(m, tl.ceil(sink))
        alpha = pow2(m - new)
        mass = mass * alpha + tl.exp2(sink - new)
        acc = acc * alpha[:, None]
        if METER > 0:
            # The rounding of its own logit is the sink's error, twice; at -inf there is no sink.
            error = tl.where(sink == float("-inf"), 0.0, tl.abs(sink) * 2.3841858e-07)
            least = tl.maximum(alpha, 1.1754943508222875e-38)
            weighted = tl.exp2(sink - new + error)
            total = total * least + weighted
            total1 = total1 * least + weighted
            top = tl.maximum(top, error)
            top1 = tl.maximum(top1, error)
        m = new

    written = position < chunk
    safe = tl.where(mass == 0.0, 1.0, mass)
    result = tl.where(((mass == 0.0) | (seen == 0))[:, None], 0.0, acc / safe[:, None])
    tl.store(out_ptr + cell[:, None] * D + channel[None, :], narrow(result, dtype, INTERPRET), mask=written[:, None])
    lse = (m + tl.log2(safe)) * 0.6931471805599453
    tl.store(lse_ptr + cell, tl.where((mass == 0.0) | (seen == 0), float("-inf"), lse), mask=written)
    for i in tl.static_range((METER + 1) // 2):  # 0, 1, 1, 2 readings
        if i == 0:
            log_a, c_max, meter = _meter(total, mass, top, inflate)
        else:
            log_a, c_max, meter = _meter(total1, mass, top1, inflate)
        # With OWN a position sees at least itself: where its mass vanished nothing is claimed. Without, it may see nothing.
        tl.store(log_a_ptr + i * cells + cell, tl.where(seen, log_a, 0.0), mask=written)
        tl.store(c_ptr + i * cells + cell, tl.where(seen, c_max, 0.0), mask=written)
        tl.store(meter_ptr + i * cells + cell, tl.where(seen, meter, 0.0), mask=written)
