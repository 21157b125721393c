"""Contracts of the lemmas of ``WitCert.Core.Ratio``: the proofs that cite a lemma discharge its hypotheses."""

from contracts.model import lemma

# theorem, statement hash, meaning hash, hypotheses, proofs that cite it
CONTRACTS = (
    lemma("sum_envelope", "e52160aad7ac8a82", "bce43fcccc74531d", "h_delta_two h_term h_sum", "ratio_envelope"),
    lemma("sum_exp_pos", "c6cc795874d2d20c", "77437c3d879fae94", "h_tokens",
          "softmax_nonneg softmax_sum_one softmax_exact acert_envelope"),
    lemma("softmax_nonneg", "72393cb178ae542d", "84b218942ee3670e", "h_tokens", "logit_meter_sound cell_sound"),
    lemma("softmax_sum_one", "e429ad748da0abbf", "a56e42531f06c91d", "h_tokens", "logit_meter_sound cell_sound"),
    lemma("softmax_exact", "95d410e0499143fa", "298bbcdb5135973c", "h_tokens", "logit_meter_sound cell_sound"),
    lemma("acert_softmax", "90fc374bc8ef5886", "bcf41e108ed6da3b", "", "acert_envelope"),
    lemma("acert_envelope", "f9c6e617801ddb61", "3469f3b0a7014bd3",
          "h_tokens h_delta_one h_delta_two h_delta h_delta_lt h_num_term h_den_term h_num_sum h_den_sum",
          "tierA_sound_computed"),
)
