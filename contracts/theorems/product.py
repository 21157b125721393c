"""Contracts of the lemmas of ``WitCert.Core.Product``: the proofs that cite a lemma discharge its hypotheses."""

from contracts.model import lemma

# theorem, statement hash, meaning hash, hypotheses, proofs that cite it
CONTRACTS = (
    lemma("prod_zero", "37a2db643704354c", "8d17d644f82358e4", "",
          "prod_nonneg prod_le grid_mgf_eq grid_mgf average_prod_fresh_le"),
    lemma("prod_succ", "d40d08d8ae32f559", "55e9af9c72aa39a8", "",
          "prod_congr prod_eq_one prod_single exp_sum average_prod grid_mgf_eq grid_mgf average_prod_fresh_le"),
    lemma("prod_congr", "59ee32c23832c2ce", "582076a0b104c13e", "h",
          "average_prod average_prod_draw average_prod_fresh_le"),
    lemma("prod_eq_one", "9657a83bcc965df9", "48c9be72930dc610", "h", "prod_comm average_prod_draw"),
    lemma("prod_mul", "9defc61628728f51", "899099ded97edc51", "", "prod_comm"),
    lemma("prod_comm", "750514c2ef7622cb", "37f95014b7687e91", "", "average_prod_draw"),
    lemma("prod_single", "0f21fea85dc87eb6", "03bfc427e39dfb97", "", "average_prod_draw"),
    lemma("prod_nonneg", "42a060907f933785", "459607d5770facf1", "h", "prod_le average_prod_fresh_le"),
    lemma("prod_le", "67dcd750a52bf16c", "353fffc0911d328a", "h_nonneg h", "independent_sum_mgf"),
    lemma("exp_sum", "c9fca78b9dcbc5fb", "cb161139ec695c58", "", "independent_sum_mgf fresh_energy_tail"),
)
