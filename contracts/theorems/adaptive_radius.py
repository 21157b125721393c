"""Contracts of the lemmas of ``WitCert.Core.AdaptiveRadius``: the proofs that cite a lemma discharge its hypotheses."""

from contracts.model import lemma

# theorem, statement hash, meaning hash, hypotheses, proofs that cite it
CONTRACTS = (
    lemma("grid_energy_le", "1652859bc2c206fd", "49f7b8c6c5d71889", "hj", "grid_energy_mgf"),
    lemma("grid_reflect_sq", "39a77a92d08a99c8", "99c777edab7fa558", "hj", "adaptive_radius"),
    lemma("grid_energy_mean", "ecd3218c875bedec", "8cba547759b66f5c", "h_pos", "grid_energy_mgf"),
    lemma("radius_of_energy", "6346281d32841dff", "e6e70d0f40fbf94f", "h_energy",
          "adaptive_radius stored_token_tail"),
    lemma("grid_energy_mgf", "29a5c36697c5a80d", "76f35d8e00785f2c", "h_pos h_nonneg", "fresh_energy_tail"),
    lemma("fresh_energy_tail", "dd4073c89b73c228", "f80b637f4c8a456e", "h_pos h_coord h_inj h_shift h_fresh h_radius",
          "adaptive_radius stored_token_tail"),
)
