"""Sums of the kernels, merging, paging in, the output: Ratio, Merge, Repair, Output."""

from contracts.model import ByConstruction, Checked, Contract, Derived, Output
from contracts.theorems._shared import STAGE1, WEIGHT_EXACT, WEIGHT_NONNEG, WEIGHT_SUM

_ENVELOPE = "witcert/kernels/decode/budget.py:envelope"
_TERMS = ByConstruction(STAGE1, "terms are exp2 of something, so not negative; rows past the end have weight 0")

CONTRACTS = (
    Contract(
        "ratio_envelope",
        "5a53b641cab63a632b9aee80d7c3a20356525fd9d6aaa03e961ea9588ab8597d",
        "8c4fb21bc75d8bd8207e14479ce4b206498e5d792fb88e79c284274c997698a7",
        conclusion=Output(
            "log A of decode against the accumulator of exact logits and the kernel's bounds, never below",
            "extend.vanished", "merge.vanished", "meter.envelope",
        ),
        hypotheses={
            "h_delta_one": ByConstruction(_ENVELOPE, "EXP2 and the rounding of the exponent, both positive"),
            "h_delta_two": ByConstruction(
                _ENVELOPE,
                "one unit for each addition on the way of a summand, a positive number",
            ),
            "h_delta": ByConstruction(
                _ENVELOPE,
                "delta is the two and their product, rounded outward",
            ),
            "h_delta_lt": ByConstruction(
                "witcert/kernels/decode/launch.py:MAX_TOKENS",
                "2^24 tokens in tiles of 16 are 2^20 additions: delta is below 1/8"
            ),
            "h_num": _TERMS,
            "h_den": ByConstruction(
                STAGE1,
                "the reference is the largest logit rounded up to an integer, so one weight is above 1/2",
            ),
            "h_num_term": Checked("meter.envelope", how="each summand of A against the exact one"),
            "h_den_term": Checked("meter.envelope", how="each weight against the exact one"),
            "h_num_sum": Checked("meter.envelope", how="the sum of A against the exact sum of its summands"),
            "h_den_sum": Checked("meter.envelope", how="the mass against the exact sum of the weights"),
        },
    ),
    Contract(
        "lse_merge",
        "7cc2779a1509b38435bfcc20306f6c5ea65df576bcab9a23a9096e832e834772",
        "a143d831f40bd9dd7efb534e9969d7f77084fbb8dc951aa1e7c4a369d3656264",
        conclusion=Output(
            "output, log-sum-exp and log A of 1 to 64 splits, in any order, against the unsplit ones",
            "extend.two_parts", "merge.splits", "merge.partition", "merge.blocks", "merge.two_parts", "merge.vanished",
            "side.grown",
        ),
        hypotheses={
            "h_nonneg": _TERMS,
            "h_part": Checked("merge.partition", how="every token is in exactly one split"),
        },
    ),
    Contract(
        "blockwise_eq_perToken",
        "aaaca800539d5c9cb40af56aeb1b12a427e16996efef77e820df2f1f3731c757",
        "9724345f3285a305f2b20d99d68051d5f3a9b0da6ca4ded14ee89b33afd6f277",
        conclusion=Output(
            "sums by block of decode, and A from them when the bound is constant on blocks",
            "merge.blocks",
        ),
        hypotheses={
            "h_block": ByConstruction(
                "witcert/kernels/formats.py:PageTable.max_tokens",
                "position // block size is below the number of blocks",
            ),
            "h_const": Checked("merge.blocks", how="the store is written with one witness for all tokens of a block"),
        },
    ),
    Contract(
        "repair_exact",
        "3ace71ffc15e8686b28e97e8b43f66fe82867793150a12fa6a59bac576bea052",
        "bcc9b899f42ea27b28676d7e3c0315f5fe17eb6d333a2ad7c3a8ba0207cad2ba",
        conclusion=Output(
            "a cell whose tokens are all repaired: the exact output, distance 0, and the meter of the arithmetic alone",
            "extend.tier_a", "repair.exact",
        ),
        hypotheses={
            "h_sum_one": WEIGHT_SUM,
            "h_repaired": Checked(
                "repair.exact", "side.grown",
                how="repaired slots hold the exact keys bit for bit, read back from the store",
            ),
            "h_exact": WEIGHT_EXACT,
        },
    ),
    Contract(
        "page_in_bound",
        "423ea7a94231091e81c6194c6a10958c90c6f0038a8960783580c56c9ed22d39",
        "29e2ca06bb6707727e79e43b80927ed42e427e22bf729fc79eb44bb8b6beb2a5",
        conclusion=Output(
            "the accumulator that is predicted before paging in, never below the one that is recomputed after",
            "repair.prediction",
        ),
        hypotheses={
            "h_nonneg": WEIGHT_NONNEG,
            "h_sum_one": WEIGHT_SUM,
            "h_bound": Checked(
                "repair.prediction",
                how="the bounds that enter the prediction hold for the true logit errors",
            ),
        },
    ),
    Contract(
        "page_in_naive_unsound",
        "473d36642e55772d318215d53f97327c94cd5938d885874c51dba3a94ec915f6",
        "0c252778a4ff34f722a590178be20b4fc97f9c1bfb400961f596561a6963c4e3",
        conclusion=Output(
            "decode before and after paging in one of two tokens: the update with fixed weights is too small",
            "repair.naive",
        ),
        hypotheses={
            "h_pos": ByConstruction("contracts/checks/repair.py:naive", "the store is built with a positive bound u"),
        },
    ),
    Contract(
        "output_bound",
        "94417f651f6abd231ea8e3a70ecf8d4567799e434c15d3589ce9089f9a2c32cb",
        "22f78e11b209324a4bf3f41f9ee80b6b1cb861f108b1ace73663224bfaf4f432",
        conclusion=Output(
            "the output of decode with packed values, against exact attention over exact values",
            "output.error_of_output",
        ),
        hypotheses={
            "h_triangle": ByConstruction(
                "witcert/bounds/output.py:output_bound",
                "the norm is the Euclidean one of R^d",
            ),
            "h_homogeneous": ByConstruction(
                "witcert/bounds/output.py:output_bound",
                "the norm is the Euclidean one of R^d",
            ),
            "h_nonneg": WEIGHT_NONNEG,
            "h_sum_eq": Derived("softmax_sum_one", how="both weights are softmaxes, so both sums are 1"),
            "h_value": Checked(
                "output.error_of_output",
                how="the radius is the largest distance of an exact value from the fixed vector",
            ),
            "h_value_error": Checked(
                "output.error_of_output",
                how="rho is at least the norm of the residual of each stored value",
            ),
        },
    ),
)
