"""Contracts of the lemmas of ``WitCert.Core.Merge``: the proofs that cite a lemma discharge its hypotheses."""

from contracts.model import lemma

# theorem, statement hash, meaning hash, hypotheses, proofs that cite it
CONTRACTS = (
    lemma("massOn_mul_avgOn", "18edae58bdbbeab4", "b8514d4fc2407db4", "h_nonneg", "lse_merge"),
    lemma("sum_massOn", "abb781a9181c7001", "71952fa2d096422d", "h_part", "lse_merge"),
    lemma("le_maxOver", "c9886181760f2d87", "69188db0a4390e2f", "hi", "cmax_merge"),
    lemma("maxOver_nonneg", "b9e2b655eb73da50", "6ee2df0a2b4d47ca", "", "cmax_merge"),
    lemma("maxOver_le", "99b036899a76dcd0", "24999acfc62f93a8", "h_nonneg h_le", "cmax_merge"),
)
