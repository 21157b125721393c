"""Faults of the sums over tokens, their merge, the meters read off them, and repair."""

from __future__ import annotations

from contracts.mutants.model import Mutant

__all__ = ["MUTANTS"]

STAGE1 = "witcert/kernels/decode/stage1.py"
STAGE2 = "witcert/kernels/decode/stage2.py"
MERGE = "witcert/kernels/decode/merge.py"
EXTEND = "witcert/kernels/extend/kernel.py"
EXTEND_PARTS = "witcert/kernels/extend/parts.py"
PAGE_IN = "witcert/kernels/page_in/kernel.py"
SIDE = "witcert/kernels/side/kernel.py"

MUTANTS = (
    Mutant(
        "average_under_wrong_weights", "A is averaged with e^-c, as if over the exact weights.", STAGE1,
        "fold_sum(tl.exp2(x + bound), T, GP, WARPS)", "fold_sum(tl.exp2(x - bound), T, GP, WARPS)", ("meter.tier_a",),
    ),
    Mutant(
        "bias_missing", "The Tier B bounds lack the bias and what rounding adds.", STAGE1,
        "extra = tl.fma(bound, bias_share[None, :], slack)", "extra = bound * 0.0", ("meter.one_token", "meter.tier_b"),
    ),
    Mutant(
        "lost_split", "The merge leaves out the second split.", STAGE2,
        "present = s < splits", "present = (s < splits) & (s != 1)",
        ("merge.partition", "merge.splits"),
    ),
    Mutant(
        "c_merged_by_min", "C is the smallest over the splits instead of the largest.", STAGE2,
        "c = tl.max(tops[", "c = tl.min(tops[", ("merge.splits",),
    ),
    Mutant(
        "merged_unweighted", "The masses of the splits are added without the weights that the sums of A get.", STAGE2,
        "mass = tl.sum(masses * weight, axis=0)", "mass = tl.sum(masses, axis=0)", ("merge.splits",),
    ),
    Mutant(
        "envelope_dropped", "A is not inflated by the launch constant.", STAGE2,
        "/ tl.where(mass == 0.0, 1.0, mass) * inflate", "/ tl.where(mass == 0.0, 1.0, mass)", ("meter.envelope",),
    ),
    Mutant(
        "nan_read_as_zero", "A cell with a NaN on the way has the meter 0.", STAGE2,
        "tl.where(known, meter, 1.0)", "tl.where(known, meter, 0.0)", ("meter.no_claim",),
    ),
    Mutant(
        "sink_without_mass", "The sink's weight is missing in the mass.", STAGE2,
        "mass += tl.exp2(sink - top)", "mass += 0.0 * tl.exp2(sink - top)", ("meter.options",),
    ),
    Mutant(
        "cap_not_applied", "The soft cap is not applied to the logits.", STAGE1,
        "logit = capped(logit * 0.6931471805599453, cap_log2, inverse_cap)", "logit = logit * 1.0", ("meter.options",),
    ),
    Mutant(
        "sharp_below_its_form", "The meter uses 1 - 1/A beyond A = 2 too, where it is not proved.", STAGE2,
        "tl.where(ratio <= 2.0, 1.0 - 1.0 / ratio, 1.0 / (1.0 + 4.0 / square))",
        "tl.minimum(1.0 - 1.0 / ratio, 1.0 / (1.0 + 8.0 / square))", ("crosscheck.four_ways", "meter.tier_a"),
    ),
    Mutant(
        "tail_wrong_constant", "The sub-Gaussian radius lacks the factor 2 of its exponent.",
        "witcert/kernels/decode/budget.py", "math.log(delta_loc)) / 6.0)", "math.log(delta_loc)) / 12.0)",
        ("meter.tier_b",),
    ),
    Mutant(
        "outliers_of_head_0", "Decode takes the query channels of head 0 for the outliers of every KV head.", STAGE1,
        "outlier = tl.load(outlier_ptr + kv_head * OUT + column", "outlier = tl.load(outlier_ptr + column",
        ("int8.deterministic_bounds",),
    ),
    Mutant(
        "extend_outliers_of_head_0", "Extend reads the outlier channels of head 0 for every KV head.", EXTEND_PARTS,
        "listed = tl.load(outlier_ptr + head * OUT + column)", "listed = tl.load(outlier_ptr + column)",
        ("int8.deterministic_bounds",),
    ),
    Mutant(
        "odd_values_as_even", "The odd channels of the values are those of the even ones.", STAGE1,
        "odd = half_of_pair(codes, factors, True, INTERPRET)", "odd = half_of_pair(codes, factors, False, INTERPRET)",
        ("output.error_of_output",),
    ),
    Mutant(
        "parts_swap_weights", "Two parts of a cache are merged with each other's weights.", MERGE,
        "excess = (share_a * xa + share_b * xb)", "excess = (share_b * xa + share_a * xb)", ("merge.two_parts",),
    ),
    Mutant(
        "extend_sums_wrong_weights", "Extend averages A with e^-c.", EXTEND_PARTS,
        "tl.sum(tl.exp2(shifted + c), 1)", "tl.sum(tl.exp2(shifted - c), 1)", ("extend.tier_a",),
    ),
    Mutant(
        "extend_window_off_by_one", "Extend's window holds one token of the prefix too many.", EXTEND,
        "(token[None, :] > (prefix + position - window)[:, None])",
        "(token[None, :] >= (prefix + position - window)[:, None])", ("extend.options",),
    ),
    Mutant(
        "extend_free_arithmetic", "The chunk's own keys do not pay for the rounding of their dot product.", EXTEND,
        "+ lost_norm) * own)[None, :] + slack", "+ lost_norm) * (own * 0.0))[None, :] + slack", ("extend.tier_a",),
    ),
    Mutant(
        "extend_chunk_counted_twice", "The second read of two counts the chunk's own keys again.",
        "witcert/kernels/extend/launch.py", "OWN=own,", "OWN=k is not None,", ("extend.two_parts",),
    ),
    Mutant(
        "extend_reads_both_parts", "A read of one part has the prefix's pages of the other part too.", EXTEND,
        "other=PART ^ 1).to(tl.int32) == PART)", "other=PART ^ 1).to(tl.int32) <= 1)", ("extend.two_parts",),
    ),
    Mutant(
        "vanished_weight_forgotten", "A token whose weight underflows takes its bound along.", EXTEND_PARTS,
        "        least = tl.maximum(alpha, 1.1754943508222875e-38)", "        least = alpha", ("extend.vanished",),
    ),
    Mutant(
        "page_in_wrong_row", "Page-in copies the row after the one that was asked for.", PAGE_IN,
        "source = (row * H + head)[:, None]", "source = ((row + 1) % rows * H + head)[:, None]", ("repair.exact",),
    ),
    Mutant(
        "page_in_keeps_witness", "Page-in leaves the witness of the quantized key.", PAGE_IN,
        "tl.store(place, w, mask=marked)", "tl.store(place, w, mask=marked & (BANDS == 0))", ("repair.exact",),
    ),
    Mutant(
        "page_in_without_fold", "Page-in writes the witness 0 although the reader's dot product rounds.", PAGE_IN,
        "if FOLD:\n            key", "if FOLD and CHECK:\n            key", ("repair.exact",),
    ),
    Mutant(
        "grown_row_elsewhere", "A new row of a repaired page is written one row too far.", SIDE,
        "* PAGE + slot % PAGE", "* PAGE + (slot + 1) % PAGE", ("side.grown",),
    ),
    Mutant(
        "grown_without_fold", "A new row of a repaired page gets the witness 0 although the reader's dot product rounds.", SIDE,
        "w = band_witness(", "w = 0 * band_witness(", ("side.grown",),
    ),
    Mutant(
        "split_by_head_0", "Which pages are repaired is looked up for KV head 0 alone.", SIDE,
        "tl.where(known, page, 0) * H + head, mask=known", "tl.where(known, page, 0) * H, mask=known", ("side.grown",),
    ),
    Mutant(
        "prediction_keeps_weights", "What a repair leaves is predicted under the weights of before.",
        "witcert/bounds/accumulators.py", "torch.where(gone, p64 * torch.exp(-c64), p64)", "p64 * 1.0",
        ("repair.prediction",),
    ),
)  # fmt: skip
