"""Contracts of the lemmas of ``WitCert.Core.Average``: the proofs that cite a lemma discharge its hypotheses."""

from contracts.model import lemma

# theorem, statement hash, meaning hash, hypotheses, proofs that cite it
CONTRACTS = (
    lemma("average_congr", "f7dade5820d4e5e8", "05a1288a1331cc74", "h",
          "average_prod average_prod_draw grid_mgf_eq independent_sum_mgf "
          "weighted_sum_mgf_perm two_sided_tail_perm average_redraw average_prod_fresh_le"),
    lemma("average_le", "8004af027b801797", "5340933e111b2dc3", "h",
          "share_le_average share_mono independent_sum_mgf two_sided_tail_perm share_exists_le "
          "average_prod_fresh_le grid_energy_mgf"),
    lemma("average_add", "76bd7af3eef0fea6", "9c5265853ac6215e", "",
          "two_sided_tail_perm grid_energy_mgf"),
    lemma("average_mul", "676a3f199ea3c245", "331fa4dccc1fb31c", "",
          "average_prod grid_mgf_eq one_sided_tail average_prod_fresh_le grid_energy_mean grid_energy_mgf "
          "fresh_energy_tail"),
    lemma("average_mul_right", "ff7b0c446eab3d2a", "b8ad12a4cb7b474a", "",
          "average_prod grid_mgf_eq average_prod_fresh_le"),
    lemma("average_eq_zero", "bdf7578353a87395", "65fce962cadd5623", "h",
          "share_eq_zero average_blocks independent_sum_mgf average_prod_fresh_le"),
    lemma("average_const", "012627b5b58c36ff", "0f7446f79f17dbe1", "h_pos",
          "average_prod average_prod_draw grid_mgf_eq average_redraw average_prod_fresh_le "
          "grid_energy_mgf"),
    lemma("average_sum", "a08fa718375e2db0", "74b28c2ec64a2a2f", "", "share_exists_le"),
    lemma("share_le_average", "990eda0ae281a5c3", "70cfe6d9df7c3cf9", "h_nonneg h_one",
          "one_sided_tail fresh_energy_tail"),
    lemma("share_mono", "5383d21aef1e0a63", "2975374d5d953211", "h",
          "dithered_dot_tail tierB_request_sound adaptive_radius stored_token_tail tierB_adaptive_sound"),
    lemma("share_eq_zero", "2b66d22de4b9d0a5", "c21860c1d2b01269", "h",
          "two_sided_tail_zero_perm request_union fresh_energy_tail"),
    lemma("draw_lt", "99ae740ac542d7f6", "0b9af0510be96aca", "h_pos",
          "dithered_dot_tail tierB_adaptive_det_sound adaptive_radius stored_token_tail"),
    lemma("draw_add_low", "708bac92de344d52", "893b08e1c38e2c9a", "hc hn", "average_prod draw_redraw_of_ne"),
    lemma("draw_add_top", "c2b2eaeb288d6174", "5d16ebf2a0526202", "hk hj", "average_prod"),
    lemma("average_blocks", "f88eb408e2d870c5", "f4a7a10cc90a56b9", "", "average_prod grid_mgf_eq average_redraw"),
    lemma("average_prod", "0597b563cc6f3bd6", "711699e8fe718ac7", "h_pos", "average_prod_draw"),
    lemma("average_prod_draw", "64ad529d4774f13c", "4a6fe64a3bf279bf", "h_pos h_coord h_inj", "independent_sum_mgf"),
)
