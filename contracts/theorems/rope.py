"""Contracts of the lemmas of ``WitCert.Core.Rope``: the proofs that cite a lemma discharge its hypotheses."""

from contracts.model import lemma

# theorem, statement hash, meaning hash, hypotheses, proofs that cite it
CONTRACTS = (
    lemma("rot", "4f7bb1f565e0833d", "4f7bb1f565e0833d", "h_unit", "rope_band_unitary"),
    lemma("sum_half_split", "cab40d069ed2c015", "7f9ee0439fb767dc", "", "rope_band_unitary_half_split"),
    lemma("sum_adjacent", "3736413e565f8f7f", "76cbf4159a4891db", "", "rope_band_unitary_adjacent"),
    lemma("rope_band_unitary_half_split", "f9d98967d2311a1a", "8819f7d406ed517b", "h_band h_unit",
          "rope_residual_half_split"),
    lemma("rope_band_unitary_adjacent", "2f8ce8be2b8f27cd", "38563ff079a26d2f", "h_band h_unit",
          "rope_residual_adjacent"),
)
