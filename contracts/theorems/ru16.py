"""Contracts of the lemmas of ``WitCert.Core.Ru16``: the proofs that cite a lemma discharge its hypotheses."""

from contracts.model import lemma

# theorem, statement hash, meaning hash, hypotheses, proofs that cite it
CONTRACTS = (
    lemma("le_ceilDiv_mul", "77905fc4eafdc279", "6940a9986bf537d7", "h_pos", "ceilDiv_le_iff le_up11 ru16_ge"),
    lemma("ceilDiv_le_iff", "ea23c31b6014a7e3", "89443998fc8b3f8f", "h_pos", "isHalf_up11 up11_le ru16_le_of_isHalf"),
    lemma("ceilDiv_one", "75fdd065b34a9361", "29dbfd46643cf0df", "", "isHalf_up11"),
    lemma("le_up11", "407dc797bbe8436a", "630eea70154bc4a5", "", "ru16_ge ru16_isHalf"),
    lemma("isHalf_up11", "5741b9460995e81e", "e7937d5bf40539e1", "h_range", "ru16_isHalf"),
    lemma("up11_le", "81a82e691803c48a", "b56ef6b2b2195879", "h_half h_le", "ru16_le_of_isHalf"),
    lemma("IsHalf.le_max", "6b14665c5728a09c", "5c2578e0ee2a8c38", "h_half", "ru16_le_of_isHalf ru16_overflow"),
    lemma("isHalf_max", "63c96bb337880142", "9bf3bf7c246fbdae", "", "ru16_overflow"),
    lemma("isHalf_iff_code", "f3ba42000e38a14a", "c591c94aea1ac901", "", "ru16_pred_lt"),
    lemma("halfValue_lt_succ", "7a751d2956d8aefd", "75df3f1eb6ffe402", "", "halfValue_lt ru16_pred_lt"),
    lemma("ru16_isHalf", "a81a2788ef1356c7", "fb06c3b36b0f2075", "h_finite", "ru16_overflow ru16_mono"),
    lemma("ru16_le_of_isHalf", "19e222d60a99e945", "bee29d3b95c7e71f", "h_pos h_half h_ge",
          "ru16_lt_next ru16_overflow ru16_of_isHalf ru16_mono"),
)
