"""Contracts of the lemmas of ``WitCert.Core.Dispersion``: the proofs that cite a lemma discharge its hypotheses."""

from contracts.model import lemma

# theorem, statement hash, meaning hash, hypotheses, proofs that cite it
CONTRACTS = (
    lemma("sum_two", "0ad6615450739948", "75de6c2058fde46d", "",
          "dispersion_counterexample dispersion_bound_unsound"),
    lemma("exp_tenth_bounds", "160022f321a18792", "9e3c6d1984899b2c", "",
          "dispersion_counterexample dispersion_bound_unsound"),
    lemma("dispersion_counterexample", "6eb26863f224b283", "e5be7db1df3abc48", "h_exact", "dispersion_bound_unsound"),
)
