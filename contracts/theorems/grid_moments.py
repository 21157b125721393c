"""Contracts of the lemmas of ``WitCert.Core.GridMoments``: the proofs that cite a lemma discharge its hypotheses."""

from contracts.model import lemma

# theorem, statement hash, meaning hash, hypotheses, proofs that cite it
CONTRACTS = (
    lemma("grid_variance", "6fb762be6a6e42b4", "1d7d448990e8288f", "h_pos", "grid_energy_mean"),
)
