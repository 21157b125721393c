"""Faults of rounding, witnesses, INT8 codes and dither, where keys and values are written."""

from __future__ import annotations

from contracts.mutants.model import Mutant

__all__ = ["MUTANTS"]

ROUNDING = "witcert/kernels/rounding.py"
WITNESS = "witcert/kernels/witness_write/kernel.py"
INT8 = "witcert/kernels/dither_int8_write/kernel.py"
PHILOX = "witcert/kernels/philox/device.py"

MUTANTS = (
    Mutant(
        "ru16_to_nearest", "The upward rounding to float16 rounds to nearest.", ROUNDING,
        "+ 0x1FFF) >> 13) - 114688", "+ 0x0FFF) >> 13) - 114688", ("rounding.ru16_exhaustive",),
    ),
    Mutant(
        "ru16_subnormal_to_nearest", "The upward rounding to float16 rounds to nearest below 2^-14.", ROUNDING,
        " + (shifted - 0.5 < size).to(tl.int32)", "", ("rounding.ru16_exhaustive",),
    ),
    Mutant(
        "ru16_overflow_wraps", "A number beyond float16 is not cut before it is rounded, so that its code wraps.",
        ROUNDING, "((tl.minimum(bits, 0x47800000) + 0x1FFF) >> 13)", "((bits + 0x1FFF) >> 13)",
        ("rounding.ru16_exhaustive",),
    ),
    Mutant(
        "package_ru16_truncates", "The package's own upward rounding truncates.", "witcert/witness.py",
        "torch.where(negative, 0, (1 << shift) - 1)", "torch.where(negative, 0, 0 * shift)",
        ("rounding.ru16_exhaustive",),
    ),
    Mutant(
        "witness_to_nearest", "The witness is rounded to the nearest float16.", WITNESS,
        "code = ru16_code(bound, INTERPRET)", "code = bound.to(tl.float16).to(tl.int16, bitcast=True).to(tl.int32)",
        ("witness.written_norms",),
    ),
    Mutant(
        "witness_without_fold", "The witness does not pay for the rounding of the dot product.", WITNESS,
        "bound += tl.sqrt(", "bound += 0.0 * tl.sqrt(", ("witness.written_norms",),
    ),
    Mutant(
        "witness_without_slack", "The witness does not pay for its own float32 roundings.",
        "witcert/kernels/witness_write/budget.py", "slack = (1 + 2 * lost) * (1 + UNDERFLOW)", "slack = Fraction(1)",
        ("witness.written_norms",),
    ),
    Mutant(
        "witness_underflow", "A residual whose square underflows gets the witness 0.",
        "witcert/kernels/witness_write/launch.py", "TINY=not k.dtype == k_hat.dtype == torch.float16", "TINY=False",
        ("witness.written_norms",),
    ),
    Mutant(
        "witness_splits_pairs", "Bands are runs of channels, so that a pair lies in two of them.",
        "witcert/kernels/witness_write/launch.py", "HALF=half, PERMUTED", "HALF=False, PERMUTED",
        ("witness.rotation", "witness.layout"),
    ),
    Mutant(
        "witness_drops_outliers", "The witness of a packed key takes the outlier channels for quantized.", INT8,
        "served = _select(bulk_bits, served, x.to(tl.float16).to(tl.float32), INTERPRET)", "served = x",
        ("witness.written_norms",),
    ),
    Mutant(
        "outlier_loss_forgotten", "The witness does not count what an outlier loses in float16.", INT8,
        "_select(bulk_bits, served, x.to(tl.float16).to(tl.float32), INTERPRET)",
        "_select(bulk_bits, served, x, INTERPRET)", ("witness.written_norms",),
    ),
    Mutant(
        "packed_witness_underflow", "A packed bfloat16 key whose residual's square underflows gets the witness 0.",
        "witcert/kernels/dither_int8_write/launch.py", "TINY=k.dtype != torch.float16", "TINY=False",
        ("witness.written_norms",),
    ),
    Mutant(
        "scale_not_stored", "Codes are made with the float32 scale instead of the stored float16 one.", INT8,
        "s = scale.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)", "s = amax * (1.0 / 126.5)",
        ("int8.codes",),
    ),
    Mutant(
        "payload_clipped", "The scale is amax / 127.5, so that the largest codes leave int8.", INT8,
        "divide(amax, 126.5, 1.0 / 126.5, INTERPRET)", "divide(amax, 127.5, 1.0 / 127.5, INTERPRET)", ("int8.codes",),
    ),
    Mutant(
        "codes_truncated", "Codes are rounded down instead of to nearest.", INT8,
        "biased = ratio + 12582912.0", "biased = tl.floor(ratio) + 12582912.0", ("int8.codes",),
    ),
    Mutant(
        "zero_group_scale", "A group whose scale underflows keeps the scale 0, although it is not zero.", INT8,
        "tl.maximum(scale, (magnitude_bits(amax) > 0).to(tl.int32))", "tl.where(scale > 1, scale, 0)", ("int8.codes",),
    ),
    Mutant(
        "wrong_outlier_channel", "Every KV head keeps the outlier channels of head 0.", INT8,
        "channels_ptr + head * (2 * PAIRS) + column", "channels_ptr + column", ("int8.codes",),
    ),
    Mutant(
        "outliers_in_amax", "Outlier channels count in the maximum of their group.", INT8,
        "bulk = (x.to(tl.int32, bitcast=True) & bulk_bits).to(tl.float32, bitcast=True)", "bulk = x", ("int8.codes",),
    ),
    Mutant(
        "nan_group_scaled", "A NaN in a group does not make its scale infinite.", INT8,
        "tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)", "tl.where(a > b, a, tl.where(b == b, b, a))",
        ("int8.codes",),
    ),
    Mutant(
        "write_without_epoch", "The write side's counter has no epoch: a recycled slot repeats its dither.", INT8,
        "slot[:, None], epoch[:, None], layer", "slot[:, None], 0 * epoch[:, None], layer",
        ("dither.fresh", "dither.streams"),
    ),
    Mutant(
        "write_next_slot", "The write side draws the dither of the next slot.", INT8,
        "dither_words(k0, k1, slot[:, None], ", "dither_words(k0, k1, slot[:, None] + 1, ", ("dither.grid_law",),
    ),
    Mutant(
        "write_values_as_keys", "Values are written with the dither of the keys.", INT8,
        "H, D, PAGE, 1, V_ROUNDS", "H, D, PAGE, 0, V_ROUNDS", ("int8.codes",),
    ),
    Mutant(
        "dither_off_centre", "The dither is off centre by half a cell.", PHILOX,
        "* 128.0 - 128.498046875", "* 128.0 - 128.5", ("int8.codes", "dither.grid_law"),
    ),
    Mutant(
        "philox_other_constant", "One multiplier of Philox is another odd number.", PHILOX,
        "MULTIPLIER_0: tl.constexpr = 0xD2511F53", "MULTIPLIER_0: tl.constexpr = 0xD2511F5B", ("dither.counters",),
    ),
    Mutant(
        "philox_in_float64", "The products of Philox are computed in float64, which loses their low bits.", PHILOX,
        "wide = x.to(tl.uint64) * M", "wide = (x.to(tl.float64) * M).to(tl.uint64)", ("dither.counters",),
    ),
    Mutant(
        "philox_key_not_advanced", "The second key word stays the same in every round.", PHILOX,
        "k1 = tl.add(k1, 0xBB67AE85, sanitize_overflow=False)", "k1 = k1 | 0", ("dither.counters",),
    ),
    Mutant(
        "counter_fields_overlap", "Layer and KV head share bits of the counter.", PHILOX,
        "(tl.full([], layer, tl.uint32) << 16)", "(tl.full([], layer, tl.uint32) << 1)", ("dither.counters",),
    ),
)  # fmt: skip
