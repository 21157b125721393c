"""Contracts of the lemmas of ``WitCert.Core.Abs``: the proofs that cite a lemma discharge its hypotheses."""

from contracts.model import lemma

# theorem, statement hash, meaning hash, hypotheses, proofs that cite it
CONTRACTS = (
    lemma("abs_le", "05a7c73870713044", "c1a22922e6e50e37", "h1 h2",
          "abs_add_le abs_le_of_mul_self_le tv_le_one tv_le_retention dispersion_bound_unsound "
          "grid_dither_law_slack abs_grid_le two_sided_tail_perm roundHalfEven_close"),
    lemma("le_of_abs_le", "ac24f2862e66fe78", "26ed68872e63b1e8", "h",
          "exp_neg_le_of_abs_le exp_neg_ge_of_abs_le one_le_acert tv_le_one_sub_ratio one_le_acert_mul_acertNeg "
          "tv_le_tanh_rival page_in_bound sum_envelope residual_of_scale_zero grid_dither_law_slack "
          "clip_eq_self adaptive_radius_det grid_energy_le"),
    lemma("le_abs_self", "a5d1807589044582", "13d71008c08874f8", "",
          "abs_add_le exact_sum_one dispersion_counterexample"),
    lemma("neg_le_abs", "1e6a7cbd4e3be893", "b351dd956d3099a7", "", "abs_add_le dispersion_counterexample"),
    lemma("abs_nonneg", "7a6a515d34f96536", "5acb47179e3cea45", "",
          "tv_nonneg dispersion_bound_unsound half_step output_bound dithered_dot_tail stored_token_tail"),
    lemma("abs_of_nonneg", "e84c987572ac9ed7", "ae542dfef3891626", "h",
          "abs_zero abs_mul exists_tv_split tv_le_retention sum_abs_mul_le_bands output_bound residual_le "
          "scale_bound dithered_dot_tail tierB_adaptive_det_sound token_tail stored_token_tail "
          "tierB_adaptive_sound"),
    lemma("abs_of_nonpos", "1739f78a699b0456", "1adfa13dcf245d28", "h", "abs_mul exists_tv_split"),
    lemma("abs_zero", "5c3f2f63cc640990", "8be0add8cb838f61", "",
          "abs_sum_le dispersion_counterexample repair_residual_zero repair_exact page_in_exact "
          "seminorm_output_le two_sided_tail_zero_perm sink_extend entry_law tierB_adaptive_det_sound"),
    lemma("abs_neg", "eeedd459748c8c35", "40585d3aae32a903", "", "output_bound"),
    lemma("abs_add_le", "edd224f3c06a9903", "08c809aa29a87889", "",
          "abs_sum_le query_cast_term arith_fold output_bound_coordinate round_of_computed dithered_dot_tail "
          "logit_error stored_token_tail"),
    lemma("abs_mul", "3613375ce4c7245e", "43fa3111350a2d8a", "",
          "tv_le_retention sum_abs_mul_le_bands half_step output_bound_coordinate residual_le scale_bound "
          "dithered_dot_tail tierB_adaptive_det_sound token_tail stored_token_tail tierB_adaptive_sound"),
    lemma("abs_le_of_mul_self_le", "57fa39dad83b92d4", "416c62fac1021589", "hv h",
          "tierB_adaptive_det_sound stored_token_tail"),
    lemma("abs_sum_le", "765745453af0d9f9", "f55fc88bdda7c39c", "", "abs_dot_le dithered_dot_tail stored_token_tail"),
)
