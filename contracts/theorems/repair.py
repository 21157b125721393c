"""Contracts of the lemmas of ``WitCert.Core.Repair``: the proofs that cite a lemma discharge its hypotheses."""

from contracts.model import lemma

# theorem, statement hash, meaning hash, hypotheses, proofs that cite it
CONTRACTS = (
    lemma("pageWeight_pos", "cd3d76bd662c6c05", "466b4d1e2fc9f266", "",
          "page_in_bound pagedIn_nonneg pagedIn_sum_one page_in_exact"),
    lemma("sum_pageWeight", "795b29967932fa1f", "bcde3d02e0482129", "", "acert_pagedIn page_in_bound"),
    lemma("acert_pagedIn", "a9295925c292ae23", "b777475bae102665", "", "page_in_bound page_in_naive_unsound"),
    lemma("shifted_ratio_anti", "e7ab21d0e1ebf4e3", "bcc06a201420f99e", "h_le h_yx h_pos", "page_in_bound"),
    lemma("pagedIn_nonneg", "af2e63997e37668b", "7a0d23d911ec7cd7", "h_nonneg h_sum_one _3", "page_in_sound"),
    lemma("pagedIn_sum_one", "81a1bd77a927cb44", "1c6514b2664b1636", "h_nonneg h_sum_one", "page_in_sound"),
    lemma("page_in_exact", "2d473717ccab802d", "02ff77057ef2eeac", "h_nonneg h_sum_one h_bound h_exact",
          "page_in_sound"),
)
