"""Contracts of the lemmas of ``WitCert.Core.Order``: the proofs that cite a lemma discharge its hypotheses."""

from contracts.model import lemma

# theorem, statement hash, meaning hash, hypotheses, proofs that cite it
CONTRACTS = (
    lemma("mul_self_nonneg", "d8c73fd8ff8a4b2b", "d8c73fd8ff8a4b2b", "",
          "two_le_add cauchy exp_pos sharp_scalar tanh_scalar sq_mass_le tv_le_sharp_always tv_le_eform "
          "sharp_mono sharp_lt_one sharp_le_eform sum_abs_mul_le_bands sinh_small cosh_double "
          "cosh_le_exp_half_sq sinh_le varianceProxy_nonneg weight_eq_zero weighted_sum_mgf_perm "
          "adaptive_radius_det tierB_adaptive_det_sound hoeffding_two_point radius_of_energy grid_energy_mgf"),
    lemma("le_of_mul_self_le", "a7e25f6e18dea0ca", "a7e25f6e18dea0ca", "hv h",
          "two_le_add cauchy abs_le_of_mul_self_le sharp_scalar Reweighted.one_le sum_abs_mul_le_bands"),
    lemma("mul_le_mul'", "46d2c711d0660094", "46d2c711d0660094", "h1 h2 hc hb",
          "mul_self_le tv_le_eform sharp_le_eform tv_le_one_sub_ratio tv_le_retention dispersion_counterexample "
          "sum_abs_mul_le_bands witness_mono page_in_naive_unsound prod_le cosh_small cosh_double "
          "sinh_double_pow grid_mgf hoeffding_two_point"),
    lemma("mul_self_le", "b177f46ebbe9ed13", "b177f46ebbe9ed13", "ha h",
          "tanh_scalar tv_le_eform sharp_mono sharp_le_eform dispersion_counterexample hoeffding_two_point"),
    lemma("le_of_mul_le_mul_right", "56bb9b5e14bc5906", "56bb9b5e14bc5906", "h hc",
          "div_le_of_le_mul le_div_of_mul_le div_le_div_of_cross sharp_scalar_small sharp_scalar tanh_scalar "
          "sq_mass_le tv_le_sharp_small tv_le_eform sharp_le_eform dispersion_counterexample ratio_envelope "
          "hoeffding_two_point fresh_energy_tail"),
    lemma("two_le_add", "43ad8bd5b57fa2cf", "43ad8bd5b57fa2cf", "hu hx h", "tv_le_two_sided tv_le_retention"),
    lemma("mul_inv_self", "0790923615db17a2", "0790923615db17a2", "h",
          "inv_pos inv_anti div_mul_self Reweighted.sum_eq_one tv_le_sharp_small tv_le_eform "
          "sharp_nonneg sharp_le_eform tv_le_one_sub_ratio tv_le_two_sided tv_le_retention repair_exact "
          "pagedIn_sum_one page_in_exact softmax_sum_one softmax_exact average_const average_blocks "
          "le_of_forall_le_mul_exp exists_small grid_dither_law_slack abs_grid_le tierB_adaptive_det_sound "
          "hoeffding_two_point"),
    lemma("inv_pos", "b5c5763626b1c093", "b5c5763626b1c093", "h",
          "inv_anti weights_split sharp_lt_one tv_le_one_sub_ratio tv_le_retention page_in_exact softmax_exact "
          "le_of_forall_le_mul_exp exists_small tierB_adaptive_det_sound"),
    lemma("inv_anti", "fb10c7e2fc3a37a6", "fb10c7e2fc3a37a6", "hx h",
          "sharp_mono tv_le_one_sub_ratio tv_le_retention"),
    lemma("div_mul_self", "ca0c5f915d98ca46", "ca0c5f915d98ca46", "h",
          "div_le_of_le_mul le_div_of_mul_le lt_div_of_mul_lt div_lt_of_lt_mul le_mul_of_div_le "
          "div_le_div_of_cross dispersion_counterexample page_in_exact ratio_envelope average_le "
          "residual_of_pos grid_dither_law_slack abs_grid_le two_sided_tail_perm natCast_mul_div "
          "hoeffding_two_point hoeffding_chord fresh_energy_tail"),
    lemma("div_le_of_le_mul", "dd29edf965cf1e07", "dd29edf965cf1e07", "hb h",
          "div_le_div_of_cross tv_le_eform sharp_le_eform ratio_envelope average_le abs_grid_le clip_eq_self "
          "hoeffding_two_point hoeffding_chord"),
    lemma("le_div_of_mul_le", "d3cec26a73a14cf7", "d3cec26a73a14cf7", "hb h",
          "div_nonneg tv_le_sharp_always tv_le_tanh_half sharp_mono grid_dither_law_slack clip_eq_self "
          "two_sided_tail_radius_perm tierB_request_sound"),
    lemma("lt_div_of_mul_lt", "795b6863e26a5902", "795b6863e26a5902", "hb h",
          "div_pos page_in_naive_unsound clip_eq_self"),
    lemma("div_lt_of_lt_mul", "6ae479664e732d65", "6ae479664e732d65", "hb h", "sharp_lt_one tanhHalf_lt_one"),
    lemma("le_mul_of_div_le", "f5863a6fc75a2274", "f5863a6fc75a2274", "hb h", "noclip_of_scale"),
    lemma("div_le_div_of_cross", "6c11d322cfdeaf6f", "6c11d322cfdeaf6f", "hb hd h",
          "sharp_mono tanhHalf_mono tv_le_tanh_rival shifted_ratio_anti ru16_ge_field"),
    lemma("div_nonneg", "ae2b4d4290f5b885", "ae2b4d4290f5b885", "ha hb",
          "exact_nonneg tanhHalf_nonneg pagedIn_nonneg softmax_nonneg varianceProxy_nonneg two_sided_tail_perm "
          "request_union hoeffding_two_point hoeffding_chord fresh_energy_tail"),
    lemma("div_pos", "ad9882714fe18a99", "ad9882714fe18a99", "ha hb",
          "tv_le_two_sided weighted_sum_mgf_perm entry_law grid_energy_le grid_energy_mean"),
    lemma("le_minimum", "c2fa69e2d1d15374", "3ba94d299b0d8e9d", "hx hy",
          "minimum_mono meter_sound meter_sound_upper tv_le_retention"),
    lemma("minimum_le_left", "90bab6ec09b01c00", "af7c2db51ab2ceb7", "", "minimum_mono"),
    lemma("minimum_le_right", "fe3243dea3de9a15", "a52a7305faca44c3", "", "minimum_mono"),
    lemma("minimum_mono", "6ab734eafe3926a8", "7c840312ef2acf85", "hx hy", "meter_mono"),
    lemma("maximum_le", "6415277de082f9af", "c977659294081364", "hx hy", "maxOver_le"),
    lemma("le_maximum_left", "c5d3a37f51cb3e3e", "e05988adc2bf5bab", "", "tv_le_retention le_maxOver maxOver_nonneg"),
    lemma("le_maximum_right", "227724c2f0fed9ac", "027c54498b04db69", "", "tv_le_retention le_maxOver"),
)
