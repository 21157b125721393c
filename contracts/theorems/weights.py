"""Contracts of the lemmas of ``WitCert.Core.Weights``: the proofs that cite a lemma discharge its hypotheses."""

from contracts.model import lemma

# theorem, statement hash, meaning hash, hypotheses, proofs that cite it
CONTRACTS = (
    lemma("tv_le_one", "d8c9e841c177db11", "697775aea654004f", "h_nonneg_p h_sum_one_p h_nonneg_q h_sum_one_q",
          "meter_sound_option"),
    lemma("exists_tv_split", "67a1f58a4b4ca67a", "3d547ef3c3a1b39e", "h", "weights_split tv_le_one_sub_ratio"),
    lemma("Reweighted.lower_pos", "d513dcf436515ce9", "ab1437a14c573c43", "H ht",
          "Reweighted.sum_eq_one weights_split"),
    lemma("Reweighted.one_le", "8f8016f5c1fcf45b", "e35e4ae50adbc239", "H ht",
          "Reweighted.one_le_acc sharp_core tv_le_tanh_half"),
    lemma("Reweighted.acc_neg_le", "0f6bd1c9e617104b", "f3dd20b08b906d5d", "H", "tv_le_retention"),
    lemma("Reweighted.le_acc", "234755a3b27d6224", "55bd85a643808eb2", "H", "tv_le_one_sub_ratio tv_le_retention"),
    lemma("sq_mass_le", "282837e609113064", "374619833c5bd30e", "hm hy hv", "sharp_core one_le_acert_mul_acertNeg"),
    lemma("sumIf_eq_mask", "87b86775a556e54a", "3a77e4e15fef7590", "", "sharp_core"),
    lemma("weighted_pos", "b16d88f5786c3d7b", "1469a39c6c2b8509", "h_nonneg h_sum_one h_pos",
          "Reweighted.sum_eq_one weights_split acertNeg_pos znorm_pos page_in_bound pagedIn_nonneg "
          "pagedIn_sum_one page_in_exact"),
    lemma("Reweighted.sum_eq_one", "fbb3be2ceb62a5b0", "d1693408c118d4fe", "H", "weights_split exact_sum_one"),
    lemma("weights_split", "50ebfd6b60b4deaa", "d17af46183a9144a", "H", "sharp_core tv_le_tanh_half"),
)
