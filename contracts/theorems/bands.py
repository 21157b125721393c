"""Contracts of the lemmas of ``WitCert.Core.Bands``: the proofs that cite a lemma discharge its hypotheses."""

from contracts.model import lemma

# theorem, statement hash, meaning hash, hypotheses, proofs that cite it
CONTRACTS = (
    lemma("bandSq_nonneg", "9641041a3947b8a0", "26a3da0ff7366bfe", "", "sum_abs_mul_le_bands"),
    lemma("sum_abs_mul_le_bands", "fea49852e8433a84", "6cb8b5863d120e89", "h_band h_nq h_nr h_nq_sq h_nr_sq",
          "band_cauchy_schwarz_upper arith_fold"),
    lemma("abs_dot_le", "1c8335c1ee7e6989", "060406c0627d9f2a", "", "band_cauchy_schwarz_upper half_step"),
    lemma("dot_sub", "a99a5704fbd25949", "62145d43aaf8910d", "", "arith_fold"),
    lemma("band_cauchy_schwarz_upper", "0c5f22d80290c7f8", "01ee6567667b93d7", "h_band h_nq h_nr h_nq_sq h_nr_sq",
          "band_cauchy_schwarz query_cast_term arith_fold"),
)
