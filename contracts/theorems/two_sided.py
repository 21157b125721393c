"""Contracts of the lemmas of ``WitCert.Core.TwoSided``: the proofs that cite a lemma discharge its hypotheses."""

from contracts.model import lemma

# theorem, statement hash, meaning hash, hypotheses, proofs that cite it
CONTRACTS = (
    lemma("one_le_acert_mul_acertNeg", "4f4ce5d5fb4e89f3", "d4e01fe49f26cba1", "h_nonneg h_sum_one h_bound",
          "tv_le_retention"),
)
