"""Contracts of the lemmas of ``WitCert.Core.TierB``: the proofs that cite a lemma discharge its hypotheses."""

from contracts.model import lemma

# theorem, statement hash, meaning hash, hypotheses, proofs that cite it
CONTRACTS = (
    lemma("step_nonneg", "944121681b59b870", "eda0d7966f36382b", "h_scale", "token_tail stored_token_tail"),
    lemma("entry_law", "7e4fad8a1c4e8057", "f4e31ab47ca9fd34", "h_scale h_round h_slack h_noclip",
          "token_tail stored_token_tail"),
    lemma("servedDot_sub", "8a11cd47eec8a0d0", "7e3726973e9d788d", "",
          "tierB_adaptive_det_sound token_tail tierB_adaptive_sound"),
    lemma("cell_sound", "516f03f9b75c20b1", "d04daf8ac5437079", "h_tokens h_error h_acert h_max",
          "tierB_adaptive_det_sound tierB_request_sound tierB_adaptive_sound"),
    lemma("logit_error", "1d2de8b7d53299b4", "52cb0428fb80fc35", "h_cap h_arith h_bound h_dot",
          "tierB_adaptive_det_sound tierB_request_sound tierB_adaptive_sound"),
    lemma("token_tail", "79714028e692360d", "3a73943976e76d8e",
          "h_sm h_scale h_round h_slack h_noclip h_coord h_inj h_radius",
          "tierB_request_sound"),
)
