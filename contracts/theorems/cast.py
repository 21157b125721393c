"""Contracts of the lemmas of ``WitCert.Core.Cast``: the proofs that cite a lemma discharge its hypotheses."""

from contracts.model import lemma

# theorem, statement hash, meaning hash, hypotheses, proofs that cite it
CONTRACTS = (
    lemma("natCast_pos", "0a825a4472e9be7d", "0a825a4472e9be7d", "h",
          "average_le average_const average_blocks grid_dither_law_slack abs_grid_le clip_eq_self ru16_ge_field "
          "grid_mean grid_variance natCast_mul_div request_union entry_law tierB_request_sound grid_energy_le "
          "grid_energy_mean fresh_energy_tail"),
    lemma("natCast_two_pow", "116c0114e6acf242", "116c0114e6acf242", "",
          "grid_eq_signs grid_mgf_eq ru16_ge_field hoeffding_two_point"),
    lemma("pow_two_pos", "eeb02f818530c9cb", "eeb02f818530c9cb", "",
          "exists_small sinh_double_pow grid_eq_signs grid_mgf_eq grid_mgf weighted_sum_mgf_perm ru16_ge_field "
          "hoeffding_two_point"),
    lemma("four_pow_eq", "b1a1ea31e4dfeee8", "b1a1ea31e4dfeee8", "",
          "cosh_le_exp_half_sq sinh_double_pow sinh_le grid_mgf weighted_sum_mgf_perm"),
    lemma("natCast_le_two_pow", "cb4ad4d08e6098ee", "cb4ad4d08e6098ee", "", "exists_small"),
)
