"""Contracts of the lemmas of ``WitCert.Core.Sum``: the proofs that cite a lemma discharge its hypotheses."""

from contracts.model import lemma

# theorem, statement hash, meaning hash, hypotheses, proofs that cite it
CONTRACTS = (
    lemma("sum_zero", "8b7366a0ca7a1de2", "6414213bb7592589", "",
          "tv_le_tanh_half tv_le_tanh_rival sum_half_split seminorm_output_le sum_append average_le "
          "average_const grid_eq_signs grid_mgf_eq grid_mean grid_variance share_exists_le_mul "
          "adaptive_radius_det fresh_energy_tail"),
    lemma("sum_succ", "89649b54fbbbe23f", "b6e3f9cef2fa0c52", "",
          "sum_congr sum_eq_zero term_le_sum sum_sumIf sum_half_split sum_adjacent seminorm_output_le "
          "sum_append sum_blocks sum_pick exp_sum average_const grid_eq_signs grid_mgf_eq grid_mean "
          "grid_variance share_exists_le_mul adaptive_radius_det fresh_energy_tail"),
    lemma("sum_congr", "66d091f9962879a1", "17043dd648cb9248", "h",
          "sumIf_add_not sumIf_congr sumIf_sub sumIf_mul sum_sumIf sumIf_eq_mask "
          "Reweighted.sum_eq_one sum_abs_mul_le_bands dot_sub query_cast_term arith_fold scaled_cs "
          "rope_band_unitary lse_merge acert_merge lse_merge_exp blockwise_eq_perToken repair_residual_zero "
          "repair_exact pagedIn_sum_one page_in_exact softmax_sum_one softmax_exact acert_softmax output_bound "
          "sum_blocks sum_perm average_congr grid_dither_average grid_eq_signs independent_sum_mgf "
          "adaptive_radius_det dithered_dot_tail servedDot_sub tierB_adaptive_det_sound token_tail tvRat_eq "
          "radius_of_energy adaptive_radius stored_token_tail tierB_adaptive_sound"),
    lemma("sum_add", "4d65ac38d9a81dc4", "13dcb70976010317", "",
          "sum_comm sumIf_add_not tv_le_one sq_mass_le query_cast_term arith_fold "
          "sum_half_split output_bound average_add dithered_dot_tail stored_token_tail"),
    lemma("sum_sub", "a52aff4c14e3e5c6", "71c06fb07c6eadc4", "",
          "sumIf_sub dot_sub query_cast_term output_bound servedDot_sub"),
    lemma("sum_mul", "c6ed0d3cef195fb8", "ac2ecbd4ccb6aec8", "",
          "sumIf_mul sq_mass_le arith_fold half_step lse_merge_exp sum_envelope average_mul independent_sum_mgf "
          "servedDot_sub tierB_adaptive_det_sound token_tail radius_of_energy fresh_energy_tail "
          "tierB_adaptive_sound"),
    lemma("sum_mul_right", "0bc8892d85e14898", "901d965ddc1795f8", "",
          "Reweighted.sum_eq_one tv_le_one_sub_ratio acert_merge pagedIn_sum_one page_in_exact softmax_sum_one "
          "softmax_exact acert_softmax output_bound average_mul_right average_sum average_blocks "
          "weighted_sum_mgf_perm dithered_dot_tail average_comm stored_token_tail"),
    lemma("sum_eq_zero", "b78b2c2f2b6e1d27", "38d8d397a8ce6d95", "h",
          "sum_comm sumIf_eq_zero weighted_pos repair_exact average_eq_zero two_sided_tail_zero_perm"),
    lemma("sum_le", "02659ebb2980098b", "ad8d9e52b70edf7c", "h",
          "sumIf_le tv_le_one Reweighted.one_le_acc Reweighted.acc_neg_le Reweighted.le_acc sq_mass_le "
          "one_le_acert acert_mono tv_le_retention sum_abs_mul_le_bands witness_mono half_step sum_envelope "
          "output_bound average_le witness_covers share_exists_le_mul adaptive_radius_det dithered_dot_tail "
          "stored_token_tail"),
    lemma("sum_nonneg", "c4f65db4960b9d05", "81e52c280484cae8", "h",
          "term_le_sum sumIf_nonneg cauchy tv_nonneg sq_mass_le weighted_pos ratio_envelope "
          "varianceProxy_nonneg share_exists_le adaptive_radius_det radius_of_energy"),
    lemma("term_le_sum", "e9d9b7066578c875", "3cb50cd023e42ec7", "h hi",
          "weighted_pos massOn_mul_avgOn sum_exp_pos weight_eq_zero share_exists_le"),
    lemma("sum_comm", "9036879e640c0e7e", "ae0198bb886f68e8", "", "sum_sumIf sum_perm average_sum average_comm"),
    lemma("sumIf_add_not", "6cd1c6fd0add3fc9", "1c66068484e4509e", "",
          "exists_tv_split weights_split sharp_core tv_le_tanh_half tv_le_one_sub_ratio sum_pageWeight "
          "acert_pagedIn page_in_bound"),
    lemma("sumIf_congr", "ab804b70f4c6367a", "49c026dad2f8943c", "h",
          "sumIf_mul_right exists_tv_split weights_split rope_residual_half_split rope_residual_adjacent "
          "blockwise_eq_perToken sum_pageWeight acert_pagedIn"),
    lemma("sumIf_le", "cb26b3d3dd6307d1", "a4453696627e76f2", "h",
          "weights_split sharp_core tv_le_one_sub_ratio page_in_bound"),
    lemma("sumIf_nonneg", "d4957284d13f0058", "3d4184cc4b0d3476", "h",
          "weights_split sharp_core tv_le_tanh_half bandSq_nonneg"),
    lemma("sumIf_eq_zero", "fca32d05291f59e0", "642c793af60c4851", "h", "massOn_mul_avgOn"),
    lemma("sumIf_sub", "fa26107d63467b66", "4960b1ad3f10d756", "", "exists_tv_split"),
    lemma("sumIf_mul", "6b8f8fa9d27d9bbd", "1fc90327e08da742", "", "sumIf_mul_right"),
    lemma("sumIf_mul_right", "143574d09181a05e", "a965a4b65f22f307", "",
          "weights_split tv_le_tanh_half blockwise_eq_perToken acert_pagedIn"),
    lemma("sum_sumIf", "3faf6f43b9eb71bd", "1e3eab904920ef90", "h_part",
          "sum_abs_mul_le_bands sum_massOn lse_merge blockwise_eq_perToken"),
    lemma("cauchy", "6096439f14d67106", "a6cb8146d20f673d", "",
          "sum_abs_mul_le_bands scaled_cs adaptive_radius_det radius_of_energy"),
)
