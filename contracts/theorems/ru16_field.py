"""Contracts of the lemmas of ``WitCert.Core.Ru16Field``: the proofs that cite a lemma discharge its hypotheses."""

from contracts.model import lemma

# theorem, statement hash, meaning hash, hypotheses, proofs that cite it
CONTRACTS = (
    lemma("natCast_le", "d243178588b18422", "d243178588b18422", "h_le", "ru16_ge_field"),
)
