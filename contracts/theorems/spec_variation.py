"""Total variation from the bounds of the tokens: Defs, TotalVariation, Meter, TwoSided, Dispersion."""

from contracts.model import Assumed, Checked, Contract, Discharge, Output
from contracts.theorems._shared import TOKEN_BOUND, TOKEN_MAX, WEIGHT_EXACT, WEIGHT_NONNEG, WEIGHT_SUM

_SOFTMAX: dict[str, Discharge | tuple[Discharge, ...]] = {
    "h_nonneg": WEIGHT_NONNEG,
    "h_sum_one": WEIGHT_SUM,
    "h_bound": TOKEN_BOUND,
    "h_exact": WEIGHT_EXACT,
}
_WITH_MAX: dict[str, Discharge | tuple[Discharge, ...]] = {**_SOFTMAX, "h_max": TOKEN_MAX}

CONTRACTS = (
    Contract(
        "tv_le_sharp",
        "9ac1b4565d35696e1a50975067347dcb27947a144339c22c05e106505e7e61a9",
        "442ceaa3545f3d8dd1f09860e4476d9d61f2a30daba9f1eecf0ebb2b7f618a6d",
        conclusion=Output(
            "log A of decode: 1 - 1/A up to A = 2, A^2/(A^2 + 4) beyond, against the true distance",
            "crosscheck.four_ways", "meter.tier_a",
        ),
        hypotheses=_SOFTMAX,
    ),
    Contract(
        "tv_le_eform",
        "c26cef6a1fd878de91665563825e2cc168a0e858b93e22d5e7dce757068382c9",
        "d9f1369ba8c8caded137a88e9fe64c8230eb91e22bda3eca3456095a51c47282",
        conclusion=Output("log A of decode: (A^2 - 1)/2 against the true distance", "meter.tier_a"),
        hypotheses=_SOFTMAX,
    ),
    Contract(
        "tv_le_tanh_half",
        "675586ba5c4c25976b1b5dc0ef105fd76479798168730a240946c2f8e30df0ca",
        "5d53c44dbfbdbf38b2f46510b61eb6babd11b4268d4925da3f1dcbb3759718c3",
        conclusion=Output("C of decode: tanh(C/2) against the true distance", "crosscheck.four_ways", "meter.tier_a"),
        hypotheses=_WITH_MAX,
    ),
    Contract(
        "meter_sound",
        "1390283cd256f0add33fd0389976338ae2f1b1e32d7a6259f99c265df18eadf6",
        "a40b9367a593ca485113b2b7bb988ba8e63ec632e9445ca6ccb37318567f6baf",
        conclusion=Output(
            "the meter of every cell of decode and extend, as the kernel reports it, against the true distance",
            "crosscheck.four_ways", "extend.tier_a", "extend.packed", "extend.options", "extend.two_parts",
            "extend.vanished", "merge.splits", "merge.two_parts", "merge.vanished", "side.grown", "meter.tier_a",
            "meter.half_step", "meter.tier_b", "meter.options", "meter.long_sequences", "repair.prediction",
        ),
        hypotheses={
            "h_nonneg": WEIGHT_NONNEG,
            "h_sum_one": WEIGHT_SUM,
            "h_bound": Checked(
                "extend.tier_a", "extend.packed", "extend.no_claim", "meter.tier_a", "meter.half_step",
                "meter.options", "meter.no_claim",
                how="the true logit error of every token is at most the bound that enters the sums",
            ),
            "h_max": Checked(
                "crosscheck.four_ways", "extend.tier_a", "meter.tier_a", "meter.half_step",
                "meter.long_sequences",
                how="the reported C is at least every token's bound",
            ),
            "h_exact": (
                WEIGHT_EXACT,
                Checked(
                    "extend.tier_a", "meter.tier_a", "meter.half_step",
                    how="the referee's exact weights are the softmax of exact logits",
                ),
                Assumed(
                    "A",
                    "exact attention is the softmax of real numbers over the keys as the cache would have stored them",
                ),
                Assumed("C", "the weights that the kernel averages values with are rounded ones of pt"),
            ),
        },
    ),
    Contract(
        "tv_le_one_sub_ratio",
        "ee704916ae2f0c36b51ee33dee60a995792f87e1df451760a23989ae43017a44",
        "4b34dd3e623e0f9d6962f7ceef520eb237bbd2b54201bd15f6c30f9b41ad515d",
        conclusion=Output("the accumulators of kernel outputs: 1 - A-/A against the true distance", "meter.tier_a"),
        hypotheses=_SOFTMAX,
    ),
    Contract(
        "tv_le_two_sided",
        "6140217f72ebbe98bba04642d6d3c7ea376b9378cbafb0a28dc5fc9cdf8bbf40",
        "3d8291ca984842a426922f9de5b1cd77e9bda43a10c536298849bceadabf2c57",
        conclusion=Output(
            "the accumulators of kernel outputs: (A/A- - A-/A)/2 against the true distance",
            "meter.tier_a",
        ),
        hypotheses=_SOFTMAX,
    ),
    Contract(
        "tv_le_retention",
        "e2bee2dad47051636b6c919201ab3c6d79062dc16fb3e76e8fad6544b541185f",
        "20cf8c99dc4c875177f2572fad463b9dd60199a49a909e73fc53f52a735a40e7",
        conclusion=Output(
            "served weights and token bounds of kernel outputs: the per-token form against the true distance",
            "meter.tier_a",
        ),
        hypotheses=_SOFTMAX,
    ),
    Contract(
        "tv_le_tanh_rival",
        "f00e3806e47c56f16f2884668e2df70f82061683c783d333a0c3a885e8adb057",
        "7032f163c9a066d5efc2e0f0638d07f8a54ea5dab85970a4c0e1fd41f127cf97",
        conclusion=Output("C of decode: tanh(C), the published rival, against the true distance", "meter.tier_a"),
        hypotheses=_WITH_MAX,
    ),
    Contract(
        "dispersion_bound_unsound",
        "86eb2f3a224c5cb977e03c817a6925f16b06393ffe81b30b95311d44cc32b34c",
        "ac79104e0dae7fc84819f39e790c315edfcb5dea67b5ac58d47226546ce8f1dc",
        conclusion=Output(
            "decode on a store built to the counterexample: the dispersion formula is below the true distance",
            "meter.dispersion",
        ),
    ),
)
