"""Contracts of the lemmas of ``WitCert.Core.Exp``: the proofs that cite a lemma discharge its hypotheses."""

from contracts.model import lemma

# theorem, statement hash, meaning hash, hypotheses, proofs that cite it
CONTRACTS = (
    lemma("exp_zero", "cf1fd654376388fd", "dda979eb2eda347b", "",
          "exp_mul_neg tv_le_one_sub_ratio repair_exact acert_pagedIn page_in_exact exp_sum grid_mgf_eq "
          "grid_mgf hoeffding_two_point"),
    lemma("exp_mul_neg", "13d1344ec2dc5af6", "7253ea485465e565", "",
          "exp_pos reweighted_of_bound tv_le_tanh_half one_le_acert_mul_acertNeg tv_le_retention "
          "exp_tenth_bounds dispersion_counterexample page_in_naive_unsound cosh_sq_sub_sinh_sq cosh_two_mul "
          "sinh_small le_of_forall_le_mul_exp exp_chord hoeffding_two_point"),
    lemma("exp_pos", "4c5bb54f66908204", "5fcd16555c79ddb0", "",
          "exp_mono reweighted_of_bound acertNeg_pos znorm_pos exact_nonneg tanhHalf_mono "
          "tanhHalf_lt_one tv_le_one_sub_ratio tv_le_retention tv_le_tanh_rival exp_tenth_bounds "
          "dispersion_bound_unsound lse_merge_exp pageWeight_pos page_in_naive_unsound sum_exp_pos "
          "softmax_nonneg acert_envelope cosh_pos sinh_small cosh_double le_of_forall_le_mul_exp "
          "cosh_le_exp_half_sq sinh_double_pow sinh_le grid_mgf independent_sum_mgf one_sided_tail "
          "two_sided_tail_radius_perm exp_chord hoeffding_two_point fresh_energy_tail"),
    lemma("exp_mono", "2b036331dff9284f", "5cee9bb1cd77f84d", "h",
          "exp_neg_le_of_abs_le exp_neg_ge_of_abs_le acert_mono tanhHalf_mono tv_le_one_sub_ratio "
          "tv_le_tanh_rival sinh_nonneg cosh_le_exp_half_sq sinh_le weighted_sum_mgf_perm "
          "two_sided_tail_radius_perm hoeffding_two_point fresh_energy_tail"),
    lemma("one_le_exp", "98ba5cd2261b346f", "951eb3b78e5f664d", "h",
          "one_le_acert tanhHalf_nonneg one_le_acert_mul_acertNeg page_in_bound one_sided_tail "
          "hoeffding_two_point grid_energy_mgf fresh_energy_tail"),
    lemma("one_lt_exp", "85e58fb9c6eff30c", "af9c5c9bd0116dfa", "h", "page_in_naive_unsound"),
    lemma("exp_neg_le_of_abs_le", "91b7d005872eb25f", "85173cc52777b8fe", "h", "reweighted_of_bound"),
    lemma("exp_neg_ge_of_abs_le", "23448a29fa62bee9", "8d19dc9c02cd514b", "h", "reweighted_of_bound page_in_bound"),
)
