"""Contracts of the lemmas of ``WitCert.Core.GridLaw``: the proofs that cite a lemma discharge its hypotheses."""

from contracts.model import lemma

# theorem, statement hash, meaning hash, hypotheses, proofs that cite it
CONTRACTS = (
    lemma("residual_of_pos", "91ac9008f29221a4", "a4e5c1255af0093f", "h_scale",
          "residual_le grid_dither_law_slack tierB_adaptive_det_sound"),
    lemma("residual_of_scale_zero", "bffc0009021c4e1a", "8e2cbd09e636087d", "h_noclip",
          "entry_law tierB_adaptive_det_sound"),
    lemma("residual_le", "30e1a9f45af11489", "c2d62cda0be9e508", "h_scale h_round", "grid_dither_law"),
    lemma("grid_dither_law_slack", "1e7af30421132dc5", "c64d57d1d71c0494", "h_pos h_scale h_slack h_round",
          "grid_dither_law entry_law"),
    lemma("abs_grid_le", "29cb4403274b0d5b", "8d99345ef6c574b6", "hj", "clip_eq_self grid_energy_le"),
    lemma("clip_eq_self", "a4680692a47e0fad", "8b6521b96d5c8e13", "hj h_scale h_slack h_noclip h_round",
          "entry_law tierB_adaptive_det_sound"),
)
