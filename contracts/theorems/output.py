"""Contracts of the lemmas of ``WitCert.Core.Output``: the proofs that cite a lemma discharge its hypotheses."""

from contracts.model import lemma

# theorem, statement hash, meaning hash, hypotheses, proofs that cite it
CONTRACTS = (
    lemma("seminorm_output_le", "0b06f62aacaf93ab", "8b04163745c4e883", "h_triangle h_homogeneous", "output_bound"),
)
