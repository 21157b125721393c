"""Contracts of the lemmas of ``WitCert.Core.Tail``: the proofs that cite a lemma discharge its hypotheses."""

from contracts.model import lemma

# theorem, statement hash, meaning hash, hypotheses, proofs that cite it
CONTRACTS = (
    lemma("varianceProxy_nonneg", "120f9d3c74aaa319", "61462433040591a8", "", "two_sided_tail_radius_perm"),
    lemma("weight_eq_zero", "e3afb3c4ca5c624c", "a532141c645d4c0f", "h_zero hc", "two_sided_tail_zero_perm"),
    lemma("independent_sum_mgf", "ddfed60561fa9efe", "bb64f84abb25f60b", "h_pos h_coord h_inj h_mgf",
          "weighted_sum_mgf_perm"),
    lemma("one_sided_tail", "b0c85a22f78b49c6", "c6893cf8d71a3848", "h_nonneg h_mgf", "two_sided_tail_perm"),
    lemma("weighted_sum_mgf_perm", "abd54977ab2f9f11", "48e1a6ccaf55458a", "h_coord h_inj h_perm",
          "two_sided_tail_perm weighted_sum_mgf"),
    lemma("two_sided_tail_perm", "11cddc3865809a13", "7fbb599ff9b8469a", "h_nonneg h_variance h_coord h_inj h_perm",
          "two_sided_tail_radius_perm two_sided_tail"),
    lemma("two_sided_tail_zero_perm", "88417dcc913f59e2", "8a8a2a1fcc9d8e30", "h_nonneg h_variance",
          "two_sided_tail_radius_perm two_sided_tail_zero"),
    lemma("two_sided_tail_radius_perm", "c1196d025766d549", "be4a89d6e51cc218",
          "h_nonneg h_radius h_coord h_inj h_perm",
          "dithered_dot_tail"),
)
