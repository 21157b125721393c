"""Contracts of the lemmas of ``WitCert.Core.TotalVariation``: the proofs that cite a lemma discharge its hypotheses."""

from contracts.model import lemma

# theorem, statement hash, meaning hash, hypotheses, proofs that cite it
CONTRACTS = (
    lemma("reweighted_of_bound", "c486a1a43c2ed0ab", "2a74d5f037662f0a", "h_nonneg h_sum_one h_bound h_exact",
          "exact_sum_one sharp_core tv_le_tanh_half tv_le_one_sub_ratio tv_le_retention"),
    lemma("one_le_acert", "7470c8674872e0b2", "764dbd97139952a9", "h_nonneg h_sum_one h_bound",
          "tv_le_sharp_small tv_le_eform meter_sound_acert tv_le_one_sub_ratio tv_le_two_sided tv_le_retention"),
    lemma("acertNeg_pos", "99ece62629580dce", "edabf481da805b07", "h_nonneg h_sum_one",
          "tv_le_two_sided tv_le_retention"),
    lemma("znorm_pos", "d77777532d206486", "2d62c64f16fa8e94", "h_nonneg h_sum_one",
          "exact_nonneg tv_le_one_sub_ratio tv_le_retention page_in_exact"),
    lemma("exact_sum_one", "f8522abbb15cfdcc", "b06747d9440ce685", "h_nonneg h_sum_one h_exact",
          "meter_sound_option tv_le_one_sub_ratio"),
    lemma("exact_nonneg", "d4e581ac047ec5ab", "c64b1713620e05d8", "h_nonneg h_sum_one h_exact _4",
          "meter_sound_option"),
    lemma("sharp_core", "54a599c493705694", "aa522242432abc52", "h_nonneg h_sum_one h_bound h_exact",
          "tv_le_sharp_small tv_le_sharp_always"),
    lemma("tv_le_sharp_small", "a7b28db5b489c75d", "c3d40ab5be00508a", "h_nonneg h_sum_one h_bound h_exact h_small",
          "tv_le_sharp tv_le_eform tv_le_sharp_acert"),
    lemma("tv_le_sharp_always", "2cc8ce512ed20ead", "c52898f706399e37", "h_nonneg h_sum_one h_bound h_exact",
          "tv_le_sharp tv_le_eform tv_le_sharp_acert"),
)
