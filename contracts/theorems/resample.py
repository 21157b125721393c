"""Contracts of the lemmas of ``WitCert.Core.Resample``: the proofs that cite a lemma discharge its hypotheses."""

from contracts.model import lemma

# theorem, statement hash, meaning hash, hypotheses, proofs that cite it
CONTRACTS = (
    lemma("draw_redraw_self", "77cb773c28bde33a", "422c38d7f08c1c79", "hj", "average_prod_fresh_le"),
    lemma("draw_redraw_of_ne", "09b089c8f71dac59", "f7fc5c0754fc9f4e", "hj h_ne", "average_prod_fresh_le"),
    lemma("average_comm", "673d3d36015020b0", "4d15ae68750a4e2b", "", "average_redraw"),
    lemma("average_redraw", "3c1a6256b854620b", "e81fb5ad83b6c25e", "h_pos ha", "average_prod_fresh_le"),
    lemma("average_prod_fresh_le", "0206859615348937", "8e3ace136dee6e44",
          "h_pos h_coord h_inj h_nonneg h_fresh h_average",
          "fresh_energy_tail"),
)
