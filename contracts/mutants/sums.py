"""Faults of the sums over tokens, their merge, the meters read off them, and repair."""

from __future__ import annotations

from contracts.mutants.model import Mutant

__all__ = ["MUTANTS"]

STAGE1 = "witcert/kernels/decode/stage1.py"
STAGE2 = "witcert/kernels/decode/stage2.py"

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
        "c = tl.max(tops[i], axis=0)", "c = tl.min(tl.where(present, tops[i], 1e30), axis=0)", ("merge.splits",),
    ),
    Mutant(
        "a_merged_unweighted", "A is the plain average of the splits' values.", STAGE2,
        "total = tl.sum(totals[i] * weight, axis=0)",
        "total = mass / splits * tl.sum(tl.where(present, totals[i] / masses, 0.0), axis=0)", ("merge.splits",),
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
)  # fmt: skip
