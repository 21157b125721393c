"""Attention of a chunk of new tokens over a cached prefix and over the chunk itself, causal, with a meter per query.

One program: M rows (a query position and a query head of one KV head's group) over all tokens that they see. Logits in
units of log 2. The running maximum is an integer, so every rescale is an exact power of two.

* prefix of an exact store: ``l = scale q . k``; its read constant gamma is in the witness (``arith_fold``).
* prefix of a packed store: k_hat = s (n - xi) is computed in float32 and split into two halves of the query's type, two
  dot products (section E of docs/error-budget.md); what that rounds is added to c.
* chunk: exact keys, so c is the arithmetic alone (``repair_exact``, ``arith_fold``).

c of a prefix token: METER 1 sum_b |q_b| w_b (``band_cauchy_schwarz``), METER 2 sum_g |q_g|_1 s_g / 2 (``half_step``), as one
dot product of 16 terms, both sides fp16 rounded up (the scale is exact). A and C as in decode, no splits.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

from witcert.kernels.decode.parts import pow2
from witcert.kernels.decode.stage2 import _meter
from witcert.kernels.philox.device import dither_tile, dither_words, key_words
from witcert.kernels.rounding import ru16
from witcert.kernels.witness_write.kernel import _band_sum, pool_row

__all__ = ["extend_kernel"]


@triton.jit
def _operand(x, INTERPRET: tl.constexpr):
    """x as an operand of a dot product; the interpreter multiplies no bfloat16, and float32 holds the same numbers."""
    if INTERPRET:
        return x.to(tl.float32)
    else:
        return x


@triton.jit
def _served(
    code_ptr, scale_ptr, row, slot, epoch, head, mask, k0, k1, layer,
    N: tl.constexpr, D: tl.constexpr, SIDE: tl.constexpr, ROUNDS: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """k_hat or v_hat of N tokens, float32 [N, D]: s (n - xi); NaN or infinite where the scale is +inf."""
    channel = tl.arange(0, D)[None, :]
    n = tl.load(code_ptr + row[:, None] * D + channel, mask=mask[:, None], other=0).to(tl.float32)  # [N, D]
    s = tl.load(scale_ptr + row[:, None] * (D // 32) + channel // 32, mask=mask[:, None], other=0.0)
    if ROUNDS > 0:
        block = tl.arange(0, D // 16)[None, :]
        w0, w1, w2, w3 = dither_words(k0, k1, slot[:, None], epoch[:, None], layer, head, SIDE, block, ROUNDS)
        n = n - dither_tile(w0, w1, w2, w3, N, D, INTERPRET)
    return n * s.to(tl.float32)


@triton.jit
def _bound_columns(
    q, D: tl.constexpr, M: tl.constexpr, METER: tl.constexpr, NB: tl.constexpr, HALF: tl.constexpr
):  # fmt: skip
    """The query's side of the bound, float16 rounded up [M, 16]: band norms (METER 1) or magnitudes of channel runs."""
    if METER == 1:
        norm = ru16(tl.sqrt_rn(_band_sum(q * q, M, D, NB, HALF)) * 1.0000305)  # 1 + 2^-15: squares, sum, root
        if NB == 8:
            norm = tl.reshape(tl.join(norm, tl.zeros_like(norm)), [M, 16])  # band b in column 2 b
        return norm
    else:
        return ru16(tl.sum(tl.reshape(tl.abs(q), [M, 16, D // 16]), 2) * 1.0000305)


@triton.jit
def _step(
    x, c, value, m, mass, total, top, acc, INTERPRET: tl.constexpr, METER: tl.constexpr
):  # fmt: skip
    """One tile into the running sums: x logits in units of log 2 (-inf: not seen), c bounds, value [N, D]."""
    new = tl.maximum(m, tl.ceil(tl.max(x, 1)))  # [M]
    alpha = pow2(m - new)
    shifted = x - new[:, None]
    p = tl.exp2(shifted)  # [M, N]
    mass = mass * alpha + tl.sum(p, 1)
    if METER > 0:
        total = total * alpha + tl.sum(tl.exp2(shifted + c), 1)
        lost = tl.max(tl.where(c < float("inf"), 0, 1), 1) > 0  # infinite or NaN
        top = tl.maximum(top, tl.where(lost, float("inf"), tl.max(tl.where(c < float("inf"), c, 0.0), 1)))
    weight = p.to(value.dtype)
    acc = tl.dot(_operand(weight, INTERPRET), _operand(value, INTERPRET), acc * alpha[:, None])
    return new, mass, total, top, acc


@triton.jit(do_not_specialize=["key_low", "key_high", "layer"])
def extend_kernel(
    q_ptr, k_ptr, v_ptr, lens_ptr, pages_ptr, prefix_ptr, k_pool, v_pool, k_scale, v_scale, witness_ptr, epochs_ptr,
    out_ptr, lse_ptr, log_a_ptr, c_ptr, meter_ptr, chunk, page_stride, key_low, key_high, layer,
    factor, bound_factor, arithmetic, tiny, own, slack, inflate,
    HKV: tl.constexpr, G: tl.constexpr, D: tl.constexpr, M: tl.constexpr, N: tl.constexpr, PAGE: tl.constexpr,
    PACKED: tl.constexpr, K_ROUNDS: tl.constexpr, V_ROUNDS: tl.constexpr, METER: tl.constexpr, NB: tl.constexpr,
    HALF: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1)
    sequence = tl.program_id(2).to(tl.int64)
    length = tl.load(lens_ptr + sequence)  # tokens of the chunk
    prefix = tl.load(prefix_ptr + sequence)
    row = tl.program_id(0) * M + tl.arange(0, M)  # [M]
    position, member = row // G, row % G
    seen = position < tl.minimum(length, chunk)
    channel = tl.arange(0, D)[None, :]
    cell = (sequence * chunk + position) * (HKV * G) + head * G + member  # [M]
    q = tl.load(q_ptr + cell[:, None] * D + channel, mask=seen[:, None], other=0.0)  # [M, D]
    wide = q.to(tl.float32)
    columns = _bound_columns(wide, D, M, 1 if METER == 0 else METER, NB, HALF)  # [M, 16]
    size = tl.sqrt_rn(tl.sum(wide * wide, 1)) * factor  # [M], |q| in units of the logits

    m = tl.full([M], -1.0e30, tl.float32)
    mass = tl.zeros([M], tl.float32)
    total = tl.zeros([M], tl.float32)
    top = tl.zeros([M], tl.float32)
    acc = tl.zeros([M, D], tl.float32)
    k0, k1 = key_words(key_low, key_high)
    number = tl.arange(0, 16)[None, :]
    # A program whose rows all lie past the chunk does nothing.
    end = tl.where(tl.program_id(0) * M // G < tl.minimum(length, chunk), prefix, 0)
    for start in range(0, end, N):
        token = start + tl.arange(0, N)  # [N]
        there = token < end
        page = tl.load(pages_ptr + sequence * page_stride + token // PAGE, mask=there, other=0)
        slot = page * PAGE + token % PAGE  # [N]
        at = pool_row(slot, head, HKV, PAGE if PACKED else 1).to(tl.int64)  # [N]
        if PACKED:
            epoch = slot
            if K_ROUNDS > 0:
                epoch = tl.load(epochs_ptr + slot, mask=there, other=0)
            k = _served(k_pool, k_scale, at, slot, epoch, head, there, k0, k1, layer, N, D, 0, K_ROUNDS, INTERPRET)
            high = k.to(q.dtype)
            low = (k - high.to(tl.float32)).to(q.dtype)
            x = tl.dot(_operand(q, INTERPRET), tl.trans(_operand(low, INTERPRET)))  # [M, N]
            x = tl.dot(_operand(q, INTERPRET), tl.trans(_operand(high, INTERPRET)), x)
            v = _served(v_pool, v_scale, at, slot, epoch, head, there, k0, k1, layer, N, D, 1, V_ROUNDS, INTERPRET)
            value = v.to(q.dtype)
        else:
            k_half = tl.load(k_pool + at[:, None] * D + channel, mask=there[:, None], other=0.0)
            x = tl.dot(_operand(q, INTERPRET), tl.trans(_operand(k_half, INTERPRET)))
            value = tl.load(v_pool + at[:, None] * D + channel, mask=there[:, None], other=0.0)
        x = tl.where(there[None, :] & seen[:, None], x * factor, float("-inf"))
        c = x
        if METER > 0:
            if METER == 2:
                w = tl.load(
                    k_scale + at[:, None] * (D // 32) + number * (D // 16) // 32, mask=there[:, None], other=0.0
                )
            elif NB == 8:
                pair = there[:, None] & (number % 2 == 0)
                w = tl.load(witness_ptr + at[:, None] * 8 + number // 2, mask=pair, other=0.0)
            else:
                w = tl.load(witness_ptr + at[:, None] * 16 + number, mask=there[:, None], other=0.0)  # [N, 16]
            c = tl.dot(_operand(columns, INTERPRET), tl.trans(_operand(w, INTERPRET))) * bound_factor
            if PACKED:
                norm = tl.sqrt_rn(tl.sum(k * k, 1))  # [N]
                c += size[:, None] * (norm * arithmetic + tiny)[None, :]
            c = tl.where(there[None, :] & seen[:, None], c + slack, 0.0)
        m, mass, total, top, acc = _step(x, c, value, m, mass, total, top, acc, INTERPRET, METER)

    last = tl.minimum((tl.program_id(0) * M + M - 1) // G + 1, tl.minimum(length, chunk))
    last = tl.where(tl.program_id(0) * M // G < tl.minimum(length, chunk), last, 0)
    for start in range(0, last, N):
        token = start + tl.arange(0, N)  # [N]
        there = token < last
        at = ((sequence * chunk + token) * HKV + head)[:, None] * D  # [N, 1]
        k_half = tl.load(k_ptr + at + channel, mask=there[:, None], other=0.0)
        value = tl.load(v_ptr + at + channel, mask=there[:, None], other=0.0)
        causal = there[None, :] & (token[None, :] <= position[:, None]) & seen[:, None]  # [M, N]
        x = tl.dot(_operand(q, INTERPRET), tl.trans(_operand(k_half, INTERPRET)))
        x = tl.where(causal, x * factor, float("-inf"))
        c = x
        if METER > 0:
            exact = k_half.to(tl.float32)
            c = size[:, None] * (tl.sqrt_rn(tl.sum(exact * exact, 1)) * own)[None, :] + slack
            c = tl.where(causal, c, 0.0)
        m, mass, total, top, acc = _step(x, c, value, m, mass, total, top, acc, INTERPRET, METER)

    written = position < chunk
    none = (mass == 0.0) | (seen == 0)
    safe = tl.where(none, 1.0, mass)
    result = tl.where(none[:, None], 0.0, acc / safe[:, None])
    tl.store(out_ptr + cell[:, None] * D + channel, result.to(q.dtype), mask=written[:, None])
    lse = tl.where(none, float("-inf"), (m + tl.log2(safe)) * 0.6931471805599453)
    tl.store(lse_ptr + cell, lse, mask=written)
    if METER > 0:
        log_a, c_max, meter = _meter(total, mass, top, inflate)
        tl.store(log_a_ptr + cell, tl.where(none, 0.0, log_a), mask=written)
        tl.store(c_ptr + cell, tl.where(none, 0.0, c_max), mask=written)
        tl.store(meter_ptr + cell, tl.where(none, 0.0, meter), mask=written)
