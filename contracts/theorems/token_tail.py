"""Contracts of the lemmas of ``WitCert.Core.TokenTail``: the proofs that cite a lemma discharge its hypotheses."""

from contracts.model import lemma

# theorem, statement hash, meaning hash, hypotheses, proofs that cite it
CONTRACTS = (
    lemma("dithered_dot_tail", "2eb673e46a5eaf98", "e796f39292213708",
          "h_nonneg h_radius h_scale h_law h_coord h_inj",
          "token_tail"),
)
