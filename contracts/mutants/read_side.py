"""Faults of decode and extend: what they read, the dither they subtract, the bound of one token."""

from __future__ import annotations

from contracts.mutants.model import Mutant

__all__ = ["MUTANTS"]

STAGE1 = "witcert/kernels/decode/stage1.py"
LAUNCH = "witcert/kernels/decode/launch.py"
EXTEND = "witcert/kernels/extend/kernel.py"

MUTANTS = (
    Mutant(
        "read_without_epoch", "Decode's counter has no epoch.", STAGE1,
        "epoch = tl.load(epoch_ptr + slot, mask=valid, other=0).to(tl.uint32, bitcast=True)",
        "epoch = (slot * 0).to(tl.uint32)", ("dither.streams",),
    ),
    Mutant(
        "read_next_slot", "Decode subtracts the dither of the next slot.", STAGE1,
        "slot32 = slot.to(tl.uint32)", "slot32 = (slot + 1).to(tl.uint32)", ("dither.streams",),
    ),
    Mutant(
        "read_values_as_keys", "Decode subtracts the dither of the keys from the values.", STAGE1,
        "block = (0x10000 + g * 2", "block = (g * 2", ("dither.streams",),
    ),
    Mutant(
        "counter_without_head", "Decode's counter has no KV head.", STAGE1,
        "(layer.to(tl.uint32) << 16) | kv_head.to(tl.uint32)", "(layer.to(tl.uint32) << 16)", ("dither.streams",),
    ),
    Mutant(
        "extend_values_as_keys", "Extend subtracts the dither of the keys from the values.", EXTEND,
        "layer, N, D, 1, V_ROUNDS", "layer, N, D, 0, V_ROUNDS", ("dither.streams",),
    ),
    Mutant(
        "query_norm_to_nearest", "Decode rounds the norms of the query to the nearest float16.", STAGE1,
        "return ru16(tl.where(some > 0.0, tl.maximum(norm, 5.9604645e-08), norm))",
        "return tl.where(some > 0.0, tl.maximum(norm, 5.9604645e-08), norm).to(tl.float16)", ("witness.query_side",),
    ),
    Mutant(
        "dropped_band", "Decode leaves out the last band of the witness.", STAGE1,
        "seen = valid[:, None] & (band < NB)[None, :]", "seen = valid[:, None] & (band < NB - 1)[None, :]",
        ("witness.query_side",),
    ),
    Mutant(
        "bound_in_natural_units", "The bound from band norms is in natural units, not in those of log 2.", LAUNCH,
        "slack, factor * constants.BAND,", "slack, scale * constants.BAND,", ("witness.bound_of_one_token",),
    ),
    Mutant(
        "bound_without_scale", "The bound from band norms lacks the softmax scale.", LAUNCH,
        "slack, factor * constants.BAND,", "slack, constants.LOG2E * constants.BAND,",
        ("witness.bound_of_one_token",),
    ),
    Mutant(
        "unscaled_softmax", "The logits lack the softmax scale.", LAUNCH,
        "factor = scale * constants.LOG2E", "factor = constants.LOG2E", ("meter.one_token",),
    ),
    Mutant(
        "extend_bound_not_rounded_up", "Extend rounds the norms of the query to the nearest float16.",
        "witcert/kernels/extend/parts.py", "norm = ru16(tl.sqrt_rn(_band_sum(q * q, M, D, NB, HALF)) * 1.0000305)",
        "norm = tl.sqrt_rn(_band_sum(q * q, M, D, NB, HALF)).to(tl.float16)", ("witness.query_side",),
    ),
    Mutant(
        "extend_causal_off_by_one", "A token of the chunk does not see itself.", EXTEND,
        "(token[None, :] <= position[:, None])", "(token[None, :] < position[:, None])", ("dither.streams",),
    ),
    Mutant(
        "stale_page_table", "Every sequence reads the pages of the first one.", STAGE1,
        "page_ptr + row.to(tl.int64) * page_stride + index", "page_ptr + index", ("witness.bound_of_one_token",),
    ),
    Mutant(
        "swapped_heads", "Query heads are counted across KV heads instead of within them.", STAGE1,
        "head_row = (row * HKV + kv_head) * G + member", "head_row = (row * G + member) * HKV + kv_head",
        ("witness.bound_of_one_token",),
    ),
    Mutant(
        "window_off_by_one", "The window leaves out the oldest token that it should hold.", STAGE1,
        "first = tl.maximum(length - window, 0)", "first = tl.maximum(length - window + 1, 0)",
        ("witness.bound_of_one_token",),
    ),
    Mutant(
        "half_step_too_small", "Half a step is 0.499 of one.", STAGE1,
        "half = 0.500035 * norm1 * factor + rest", "half = 0.499 * norm1 * factor", ("int8.deterministic_bounds",),
    ),
    Mutant(
        "radius_wrong_constant", "The adaptive radius divides the energy by 14 instead of 12.",
        "witcert/kernels/decode/budget.py", "math.sqrt(square / 12.0)", "math.sqrt(square / 14.0)",
        ("int8.deterministic_bounds",),
    ),
)  # fmt: skip
