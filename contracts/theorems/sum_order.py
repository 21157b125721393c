"""Contracts of the lemmas of ``WitCert.Core.SumOrder``: the proofs that cite a lemma discharge its hypotheses."""

from contracts.model import lemma

# theorem, statement hash, meaning hash, hypotheses, proofs that cite it
CONTRACTS = (
    lemma("sum_append", "51fea32dc2eeb336", "1070eb8a4e9548cb", "", "sum_blocks"),
    lemma("sum_blocks", "f0d6b4df80d3af78", "5dec1304351d66a6", "", "average_blocks"),
    lemma("permutes_id", "073535425506170e", "e98ddf970678003c", "", "weighted_sum_mgf two_sided_tail"),
    lemma("sum_pick", "4831b1ab1913dd06", "b40babf6cbf5dc01", "", "sum_perm"),
    lemma("sum_perm", "47fd4607b7886fcc", "dfd41948c8457cc1", "h_perm",
          "grid_dither_average weighted_sum_mgf_perm fresh_energy_tail"),
    lemma("cyclicShift_lt", "25c9249b5e7225a2", "fb867b708e426813", "h_pos",
          "permutes_cyclicShift grid_dither_law_slack"),
    lemma("cyclicShift_of_le", "06b9a4154ac20069", "2ff226eb3e7a2aa9", "ht h",
          "cyclicShift_cyclicShift grid_dither_law_slack grid_reflect_sq"),
    lemma("cyclicShift_of_lt", "672c27660a9751bb", "febbd0347f70d2bc", "hj h",
          "cyclicShift_cyclicShift grid_dither_law_slack"),
    lemma("cyclicShift_cyclicShift", "9e0863009d38cb28", "8c81db8d451c6f71", "ht hj",
          "permutes_cyclicShift grid_dither_law_slack"),
    lemma("permutes_cyclicShift", "6e0549ed2e22f7ca", "22d6eaaf849ac93f", "ht",
          "grid_dither_average dithered_dot_tail fresh_energy_tail"),
)
