"""Contracts of the lemmas of ``WitCert.Core.GridMgf``: the proofs that cite a lemma discharge its hypotheses."""

from contracts.model import lemma

# theorem, statement hash, meaning hash, hypotheses, proofs that cite it
CONTRACTS = (
    lemma("grid_mgf_eq", "159d35bf5ed6fddf", "8e60da1415412133", "", "grid_mgf"),
)
