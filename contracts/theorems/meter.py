"""Contracts of the lemmas of ``WitCert.Core.Meter``: the proofs that cite a lemma discharge its hypotheses."""

from contracts.model import lemma

# theorem, statement hash, meaning hash, hypotheses, proofs that cite it
CONTRACTS = (
    lemma("sharp_of_le", "d37bbda1b13e1d19", "916c2ab0ae388d64", "h",
          "sharp_mono sharp_nonneg sharp_lt_one sharp_le_eform tv_le_sharp_acert"),
    lemma("sharp_of_lt", "0a8ccdc348f21b5e", "de956654f2859ef4", "h",
          "sharp_mono sharp_lt_one sharp_le_eform tv_le_sharp_acert"),
    lemma("sharp_mono", "651a64a98824f3ea", "537eab354334fddf", "h_pos h_le",
          "sharp_nonneg meter_mono meter_sound_acert"),
    lemma("tanhHalf_mono", "da9c4f92f68b9600", "8a7b51b46e08296e", "h_le", "meter_mono"),
    lemma("tv_le_sharp_acert", "080f938d5f81fa24", "a2ee5177c00c4605", "h_nonneg h_sum_one h_bound h_exact",
          "meter_sound meter_sound_acert"),
    lemma("meter_sound_acert", "a4a355471503a252", "731b1516b62981ef", "h_nonneg h_sum_one h_bound h_acert h_exact",
          "meter_sound_upper meter_sound_option page_in_sound"),
    lemma("meter_sound_upper", "9572d4142d5b3cc1", "97c946748f2281ff",
          "h_nonneg h_sum_one h_bound h_acert h_max h_exact",
          "meter_sound_option logit_meter_sound"),
    lemma("meter_sound_option", "02cf8638bdafbd8e", "6e23c6418abfb3aa",
          "h_nonneg h_sum_one h_bound h_acert h_max h_exact",
          "cell_sound"),
)
