"""Corollaries that no proof cites, on weights, meters, merging, repair and output, each with a check of its own."""

from contracts.model import ByConstruction, Checked, Contract, Derived, Output, Same
from contracts.theorems._shared import STAGE1, STAGE2, WEIGHT_NONNEG

_EXP = ByConstruction(STAGE1, "weights are exp2 of something, divided by their sum")

CONTRACTS = (
    Contract(
        "tv_nonneg",
        "093823e15af54d3bf3f79774344bcc551e469b03f4ae05185ad758e03876de45",
        "e9f335984bdaac8294028363380807d0caefed49006331f729117b6e27eebfbe",
        conclusion=Output("the meter of decode is not negative", "corollaries.ranges"),
    ),
    Contract(
        "Reweighted.one_le_acc",
        "b681e0f556a2a8bc6812962c70a3b774db85f090d1b1a6c82bd3765ac3a2076d",
        "912446e04e17b44ebaa8c4fc3eee6a2a024fba0b10e1d26a04b3f3fe0a72f14f",
        conclusion=Output("log A of decode is not negative", "corollaries.ranges"),
        hypotheses={
            "H": ByConstruction(
                STAGE1,
                "weights reweighted within exp(-c) and exp(c): what the bound c says of the exact ones",
            ),
        },
    ),
    Contract(
        "acert_mono",
        "e4abc3520c1e5fe5b6774c4cff1b5f690eebd9af5b488926f85618459b628c58",
        "5ca543fc4136c2ee980467e0d60cf50e55c6bede8d9fa932de94a595ff97da17",
        conclusion=Output("log A of decode does not fall when witnesses are larger", "corollaries.monotone"),
        hypotheses={
            "h_nonneg": _EXP,
            "h_le": Checked("corollaries.monotone", how="every witness is rounded up once more"),
        },
    ),
    Contract(
        "sharp_nonneg",
        "90ec3f5148f1afa2f9a1784bfe2f4570fae016be189ac7865073c2f5fadb4395",
        "f78f7f1a07e741b31e9829bfaff888f25262a2a9436f67137e46ea456181f298",
        conclusion=Output("the meter of decode is not negative", "corollaries.ranges"),
        hypotheses={"h_one": Checked("corollaries.ranges", how="log A of decode is not negative")},
    ),
    Contract(
        "sharp_lt_one",
        "cd13336af4bf8a5b8bac9871a58cf9df49e1a484b99bcbe3259669b9750e3bc9",
        "d53e841d288da1d9a96b9faecb23bd71f1e834d2ec55edd64eebdc26b1cb298b",
        conclusion=Output("the meter of decode is below 1 where log A is below 6", "corollaries.ranges"),
        hypotheses={"h_pos": ByConstruction(STAGE2, "A is the quotient of two sums of exponentials")},
    ),
    Contract(
        "sharp_le_eform",
        "7e8d56bdf0a5fd7fefc31108467cc7bd69d592a9d2cd5ffb40893040768ad715",
        "e95db8550558d95c73d8273a5f2ce930d24173d0653548c73505e5f73d5b28a8",
        conclusion=Output(
            "the meter of decode is at most the e-form of its own A, and its own rounding",
            "corollaries.ranges",
        ),
        hypotheses={"h_one": Checked("corollaries.ranges", how="log A of decode is not negative")},
    ),
    Contract(
        "tanhHalf_nonneg",
        "0a259b2b79db07698e4fe4f2836abf4dd182fe30e1f049431b22e7a844fd686b",
        "da79cf935da036236aef7d65ad029d373ab03793adddc094ecc53277dbbc3d31",
        conclusion=Output("the meter of decode is not negative", "corollaries.ranges"),
        hypotheses={"h_nonneg": Checked("corollaries.ranges", how="C of decode is not negative")},
    ),
    Contract(
        "tanhHalf_lt_one",
        "ebdffba433de389dcf6343cea14238dad617d9e5ba3e4ab18f36022412962abc",
        "70d5c9685bf96ac7e1f2dca9e2c119bee1544cc309339926f9a61ad267945db0",
        conclusion=Output("the meter of decode is below 1 where C is below 6", "corollaries.ranges"),
    ),
    Contract(
        "meter_mono",
        "fa07e9c446842eebc6cdfbef8f0c99277be5a178f88eb06572cb647c14f2ac55",
        "f23a8c289b31f7b0af6e23d1da51235c7151fe5194d373e9c4fb3a6d0cb5da5a",
        conclusion=Output("the meter of decode does not fall when log A and C grow", "corollaries.monotone"),
        hypotheses={
            "h_pos": ByConstruction(STAGE2, "A is the quotient of two sums of exponentials"),
            "h_le_A": Checked(
                "corollaries.monotone",
                how="log A after every witness was doubled is at least that before",
            ),
            "h_le_C": Checked(
                "corollaries.monotone",
                how="C after every witness was rounded up once more is at least that before",
            ),
        },
    ),
    Contract(
        "acert_merge",
        "cb1c47c931d40770aae2fb80a0a27de4c0b2a4cc575002da34b5ab28aee6b347",
        "177b63f6869b4b128d780e3a668be2a7c703929989555e78e5639fb1b1978ee2",
        conclusion=Output("log A merged from splits, against the unsplit one", "extend.two_parts", "merge.two_parts"),
        hypotheses={
            "h_nonneg": _EXP,
            "h_part": Same("lse_merge.h_part", how="the same splits"),
            "h_norm": ByConstruction(STAGE2, "weights are divided by their sum over all splits"),
        },
    ),
    Contract(
        "lse_merge_exp",
        "b84b531569418e62b8b4a254d604278e74605bd19376813952eeea6d51615798",
        "f3dcee8b67dc0488243e953d53a8fdc099d667caa5a3aee94a4965d0f1aa2831",
        conclusion=Output(
            "output merged from the log-sum-exp values of splits, against the unsplit one",
            "extend.two_parts", "merge.two_parts",
        ),
        hypotheses={
            "h_nonneg": _EXP,
            "h_part": Same("lse_merge.h_part", how="the same splits"),
            "h_lse": ByConstruction(
                STAGE2,
                "a log-sum-exp is the logarithm of the split's mass; its rounding moves no bound",
            ),
        },
    ),
    Contract(
        "cmax_merge",
        "31f897e182d22baa9a0dab107e81b84d549549cc82e23d38c982d30a442a86ac",
        "e1ee1205460041169066f47e28ce0f068c16f52fa25a4d38ad6263ee538d73d1",
        conclusion=Output("C merged from splits, against the unsplit one", "extend.two_parts", "merge.two_parts"),
        hypotheses={"h_part": Same("lse_merge.h_part", how="the same splits")},
    ),
    Contract(
        "repair_residual_zero",
        "cb9ac7d3d0a3b723646465360980336fd8eb3720664e0ac450dc4bc26d513944",
        "fda90b537c08077b5a418974af90cfdf91704a37431f5316043b0797e6f3670b",
        conclusion=Output("a repaired cell: exact keys, and the meter of the arithmetic alone", "repair.exact", "side.grown"),
        hypotheses={
            "h_exact_key": Same("repair_exact.h_repaired", how="repaired slots hold the exact keys bit for bit"),
        },
    ),
    Contract(
        "page_in_sound",
        "6c8a0874c6b86b8b4f20e424bef6f53ecb5f024f08c0205da7b1f4a4c1a679a5",
        "79ef4837e9dbf86d4c0327f6e86ecd335d4c207928a81158a819cfbbbe6a6e5e",
        conclusion=Output("the meter predicted before paging in, against the true distance after", "repair.prediction"),
        hypotheses={
            "h_nonneg": WEIGHT_NONNEG,
            "h_sum_one": Derived("softmax_sum_one", how="pt is the softmax of the computed logits"),
            "h_bound": Same("page_in_bound.h_bound", how="the same bounds"),
            "h_exact": Derived("softmax_exact", how="p is the softmax of the exact logits"),
        },
    ),
    Contract(
        "output_bound_coordinate",
        "a9247453c3c064307b42f976b1515d54c3b1c6325392bc4dc389d5e723f2b6b6",
        "a87729a46d249a3d75ee5faf46cf13d984840c39e34e6735ec50523b8a3af1c6",
        conclusion=Output("every coordinate of the output of decode with packed values", "corollaries.coordinates"),
        hypotheses={
            "h_nonneg": WEIGHT_NONNEG,
            "h_sum_eq": Derived("softmax_sum_one", how="both weights are softmaxes, so both sums are 1"),
            "h_value": Same("output_bound.h_value", how="with the absolute value of one coordinate for the norm"),
            "h_value_error": Same(
                "output_bound.h_value_error",
                how="with the absolute value of one coordinate for the norm",
            ),
        },
    ),
    Contract(
        "sink_meter_sound",
        "ac18684242044396785ad78db610651bd6aa0f73e87be2163963d41d1b4940d7",
        "3223f97386e7b0b4df190f54962ea3f9f24b45b6728750a0647c658d90aea3f1",
        conclusion=Output("the meter of decode with attention sinks, against the true distance", "meter.options"),
        hypotheses={
            "h_nonneg_max": ByConstruction(STAGE2, "C is the maximum of bounds, all of them at least TINY"),
            "h_bound": Same(
                "meter_sound.h_bound",
                how="for the tokens; the sink's own logit has a bound for its rounding",
            ),
            "h_acert": ByConstruction(
                STAGE2,
                "the sink's weight enters mass and sum with its own rounding, at most |l| 2^-22",
            ),
            "h_max": Same("meter_sound.h_max", how="the sink's rounding is taken into the maximum as well"),
        },
    ),
    Contract(
        "tierA_sound_computed",
        "7eb16404f7c2254cd520ae1f9271bcbbf670b1e883295f217cf078ed09ff3b3d",
        "2ecfcc58547117cc758fcd9eb7c66b175224ae95ffcbe5b9cd23bdfc47318414",
        conclusion=Output(
            "the band meter of decode on an exact store, as the kernel reports it, against the true distance",
            "meter.tier_a",
        ),
        hypotheses={
            "h_tokens": Same("tierB_request_sound.h_tokens", how="a cell without a token reports 0"),
            "h_band": Same("arith_fold.h_band", how="the same bands"),
            "h_gamma": Same("arith_fold.h_gamma", how="the same gamma"),
            "h_scale": Same("tierB_request_sound.h_sm", how="the same softmax scale"),
            "h_lipschitz": Same("tierB_request_sound.h_cap", how="the same soft cap"),
            "h_query": ByConstruction(
                "witcert/kernels/decode/stage1.py:_query_bands",
                "a root times a positive factor, rounded up",
            ),
            "h_query_sq": Same("arith_fold.h_nq_sq", how="the query's norms as the kernel rounds them"),
            "h_residual": Same("arith_fold.h_w_sq", how="the exact norms of the residual"),
            "h_key": Same("arith_fold.h_nk_sq", how="the exact norms of the served key"),
            "h_witness": Same("witness_mono.h_witness", how="the stored witness covers both together"),
            "h_arith": Same("arith_fold.h_arith", how="the computed dot product"),
            "h_token_bound": Same("meter_sound.h_bound", how="the bound that enters the sums"),
            "h_delta_one": Same("ratio_envelope.h_delta_one", how="the launch constant"),
            "h_delta_two": Same("ratio_envelope.h_delta_two", how="the launch constant"),
            "h_delta": Same("ratio_envelope.h_delta", how="the launch constant"),
            "h_delta_lt": Same("ratio_envelope.h_delta_lt", how="the launch constant"),
            "h_num_term": Same("ratio_envelope.h_num_term", how="the summands of A"),
            "h_den_term": Same("ratio_envelope.h_den_term", how="the weights"),
            "h_num_sum": Same("ratio_envelope.h_num_sum", how="their sum"),
            "h_den_sum": Same("ratio_envelope.h_den_sum", how="their sum"),
            "h_reported": ByConstruction(
                "witcert/kernels/decode/stage2.py:_meter",
                "the quotient of the sums, times the launch constant",
            ),
            "h_max": Same("meter_sound.h_max", how="the reported C"),
        },
    ),
    Contract(
        "tvRat_eq",
        "3cacb0d1faf09f5a293cae076eaa4f299e8b93cb5d05dd467dc1dce6b64e819d",
        "4d953021a5416885bfb2bbbf8d75e7e5c948f8c1d4f7ea369e18981711b29254",
        conclusion=Output(
            "the package's total variation, and that at 50 digits, on dyadic distributions",
            "corollaries.rational",
        ),
    ),
    Contract(
        "meterRat_eq",
        "c0b10aad047a302b78db39fef2ac0a4b5cbb8dc9d7ebe24d870813b332af7fa6",
        "2dbdfa3ab820ff68d816d444d6d9eb4d77fd738a6aa3e5d18486bf3de04ba14e",
        conclusion=Output(
            "the package's meter for rational A and exp C: never below, and within 1e-12",
            "corollaries.rational",
        ),
    ),
)
