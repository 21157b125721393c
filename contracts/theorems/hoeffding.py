"""Contracts of the lemmas of ``WitCert.Core.Hoeffding``: the proofs that cite a lemma discharge its hypotheses."""

from contracts.model import lemma

# theorem, statement hash, meaning hash, hypotheses, proofs that cite it
CONTRACTS = (
    lemma("exp_chord", "998a09b97910d0b1", "ce9ad9e5266c2aea", "h_nonneg h_le_one", "grid_energy_mgf"),
    lemma("hoeffding_two_point", "7eed2e495a700f50", "277763ac083be9f1", "h_nonneg h_le_one h_arg",
          "hoeffding_chord"),
    lemma("hoeffding_chord", "20a7e05c560ad530", "a47850b0fc2fcb11", "h_pos h_nonneg h_le h_arg", "grid_energy_mgf"),
)
