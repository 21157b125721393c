"""What a request is promised: Union, TierB, TierBAdaptive."""

from contracts.model import Assumed, ByConstruction, Checked, Contract, Output
from contracts.theorems._shared import STAGE2

_TOKENS = ByConstruction(STAGE2, "a cell without a token has output 0 and meter 0, and nothing is claimed of it")
_SM = ByConstruction(
    "witcert/kernels/decode/launch.py:_positive",
    "a scale that is not a finite number above 0 is refused",
)
_SLACK = ByConstruction(
    "witcert/schemes/dither_int8.py:EXCESS",
    "2^-16 is not negative, and 2 * 256 * 2^-16 = 2^-7 is below 1",
)
_DRAWS = Assumed("E", "that an outcome is uniform over all, its coordinates independent: Philox instead of coin flips")
_CAP = "witcert/kernels/decode/parts.py:capped"
_MMA = Assumed("O", "how a matrix instruction accumulates cannot be exhausted; integer dot products are exact")

CONTRACTS = (
    Contract(
        "request_union",
        "7a0622179a5e5cc17dfc4f6faa8bc1338d693a6ff8659f993c089fda454c33b1",
        "bf9da96dab52c470839955a8bdfbb26a8d718fe6de45cb5ebbd8cab8246d671a",
        conclusion=Output(
            "failures of whole requests under many seeds against delta_req, with an exact binomial bound",
            "request.failures",
        ),
        hypotheses={
            "h_budget": ByConstruction(
                "witcert/budget.py:Budget.__post_init__",
                "a delta_req outside (0, 1) is refused",
            ),
            "h_token": Checked(
                "request.token_share",
                how="failures of single tokens under many seeds against their share",
            ),
        },
    ),
    Contract(
        "tierB_adaptive_det_sound",
        "07af701ec8fd1a074f54c724baf9882f509d24c259ad9b7c5c8b765a25c39e28",
        "4b9b7bbe3ed74d09429daa2b71470a2a9c679f3f796267f6a52eba888c107c92",
        conclusion=Output(
            "the adaptive meter where kappa^2 = 3 d, under an adversary who sees the dither: no failure at all",
            "request.deterministic",
        ),
        hypotheses={
            "h_tokens": _TOKENS,
            "h_scale": Checked("int8.codes", how="every stored scale is 0, positive or +infinity, which is no claim"),
            "h_round": Checked("int8.codes", how="every code is within 1/2 + 2^-16 of x/s + xi with the stored s"),
            "h_slack": _SLACK,
            "h_noclip": Checked("int8.codes", how="every key is within 126.5 stored scales"),
            "h_cap": (
                ByConstruction(_CAP, "cap tanh(x / cap) is 1-Lipschitz; its rounding is in h_arith"),
                Checked(
                    "meter.options", "meter.one_token",
                    how="decode with a soft cap, its meter against the true distance",
                ),
            ),
            "h_arith": (
                Checked("meter.one_token", how="the computed logit is within its allowance of the exact served one"),
                _MMA,
            ),
            "h_radius": Checked(
                "meter.one_token", "request.deterministic",
                how="the radius is at least sqrt(3 d) times the exact root, 1 + 2 slack included",
            ),
            "h_bound": Checked("meter.one_token", how="the bound is at least radius and arithmetic together"),
            "h_acert": Checked(
                "meter.one_token",
                how="log A is at least that of the exact softmax of the computed logits",
            ),
            "h_max": Checked("meter.one_token", how="C is at least every bound"),
            "_12": ByConstruction(
                "witcert/kernels/decode/launch.py:decode",
                "a cell of the request: the grid has one program for each",
            ),
        },
    ),
    Contract(
        "tierB_request_sound",
        "3fd099d7c6aaa6c0a11665064c39004343545181f3255c25a1a11df50511c124",
        "89c6975aa86a0d7a7d824d6eda011fe68ab628f829383f5d96835648eab66e4c",
        conclusion=Output(
            "requests under many seeds: the share with a cell above its non-adaptive meter, against delta_req",
            "request.failures",
        ),
        hypotheses={
            "h_tokens": _TOKENS,
            "h_sm": _SM,
            "h_scale": Checked("int8.codes", how="every stored scale is 0, positive or +infinity, which is no claim"),
            "h_round": Checked("int8.codes", how="every code is within 1/2 + 2^-16 of x/s + xi with the stored s"),
            "h_slack": _SLACK,
            "h_noclip": Checked("int8.codes", how="every key is within 126.5 stored scales"),
            "h_coord": Checked("dither.streams", how="every channel has a byte of a draw that is made"),
            "h_inj": (
                Checked("dither.counters", how="no two channels of a token share a byte of a draw"),
                _DRAWS,
                Assumed("F", "queries, keys and scales do not depend on the dither: the label says proved-nonadaptive"),
            ),
            "h_cap": (
                ByConstruction(_CAP, "cap tanh(x / cap) is 1-Lipschitz; its rounding is in h_arith"),
                Checked(
                    "extend.options", "meter.options", "meter.one_token",
                    how="decode with a soft cap, its meter against the true distance",
                ),
            ),
            "h_arith": (
                Checked(
                    "extend.packed", "meter.one_token",
                    how="the computed logit is within its allowance of the exact served one",
                ),
                _MMA,
            ),
            "h_budget": ByConstruction(
                "witcert/budget.py:Budget.__post_init__",
                "a delta_req outside (0, 1) is refused",
            ),
            "h_delta": (
                ByConstruction(
                    "witcert/kernels/decode/budget.py:subgaussian_factor",
                    "ell = log(2 S / delta_loc), rounded up",
                ),
                Assumed(
                    "Q",
                    "the request stays within the layers, heads, steps and tokens that its budget was made for",
                ),
            ),
            "h_radius": Checked(
                "extend.packed", "meter.tier_b", "meter.one_token", "request.token_share",
                how="the radius is at least the exact root of 2 varsigma^2 ell",
            ),
            "h_bound": Checked(
                "extend.packed", "extend.no_claim", "meter.tier_b", "meter.no_claim", "meter.one_token",
                how="the bound is at least radius, bias and arithmetic together",
            ),
            "h_acert": Checked(
                "extend.packed", "meter.tier_b",
                how="log A is at least that of the exact softmax of the computed logits",
            ),
            "h_max": Checked("extend.packed", "meter.tier_b", "meter.long_sequences", how="C is at least every bound"),
        },
    ),
    Contract(
        "tierB_adaptive_sound",
        "3f6a4224ca459001a7989c444a41f30db752927f14c699204d4ccce8272462c2",
        "aab6892fb821767437592dd567248c4f376a30bb632cecd4b55d4cfafe9e5d39",
        conclusion=Output(
            "the adaptive meter of every cell under an adversary who sees the dither: no failure",
            "request.adaptive",
        ),
        hypotheses={
            "h_tokens": _TOKENS,
            "h_seen": (
                ByConstruction(
                    "witcert/kernels/decode/launch.py:_check",
                    "a table that allows more tokens than the meter speaks of is refused",
                ),
                Assumed("Q", "a request stores at most that many tokens in all, slots that are used again included"),
            ),
            "h_sm": _SM,
            "h_scale": Checked("int8.codes", how="every stored scale is 0, positive or +infinity, which is no claim"),
            "h_round": Checked("int8.codes", how="every code is within 1/2 + 2^-16 of x/s + xi with the stored s"),
            "h_slack": _SLACK,
            "h_noclip": Checked("int8.codes", how="every key is within 126.5 stored scales"),
            "h_coord": Checked("dither.streams", how="every channel has a byte of a draw that is made"),
            "h_inj": (Checked("dither.counters", how="no two channels of a token share a byte of a draw"), _DRAWS),
            "h_fresh": (
                Checked(
                    "dither.fresh",
                    how="no two stored tokens share a counter: slot, epoch, layer, head and side are packed one to one",
                ),
                Assumed("G", "the allocator counts an epoch up whenever it hands a slot out again"),
            ),
            "h_cap": (
                ByConstruction(_CAP, "cap tanh(x / cap) is 1-Lipschitz; its rounding is in h_arith"),
                Checked(
                    "extend.options", "meter.options", "meter.one_token",
                    how="decode with a soft cap, its meter against the true distance",
                ),
            ),
            "h_arith": (
                Checked(
                    "extend.packed", "meter.one_token",
                    how="the computed logit is within its allowance of the exact served one",
                ),
                _MMA,
            ),
            "h_delta": ByConstruction(
                "witcert/budget.py:Budget.delta_adaptive",
                "delta_req / (L H_kv S), rounded down",
            ),
            "h_kappa": ByConstruction(
                "witcert/kernels/decode/budget.py:kappa",
                "w = sqrt(9 d log(1/delta) / 2), rounded up",
            ),
            "h_radius": Checked(
                "extend.packed", "meter.tier_b", "meter.one_token", "request.adaptive",
                how="the radius is at least kappa times the exact root",
            ),
            "h_bound": Checked(
                "extend.packed", "meter.tier_b", "meter.no_claim", "meter.one_token",
                how="the bound is at least radius, bias and arithmetic together",
            ),
            "h_acert": Checked(
                "extend.packed", "meter.tier_b",
                how="log A is at least that of the exact softmax of the computed logits",
            ),
            "h_max": Checked("extend.packed", "meter.tier_b", how="C is at least every bound"),
        },
    ),
)
