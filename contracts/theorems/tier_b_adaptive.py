"""Contracts of the lemmas of ``WitCert.Core.TierBAdaptive``: the proofs that cite a lemma discharge its hypotheses."""

from contracts.model import lemma

# theorem, statement hash, meaning hash, hypotheses, proofs that cite it
CONTRACTS = (
    lemma("stored_token_tail", "d18389aaf79b25d7", "d8089ad04aa67bd8",
          "h_scale h_round h_slack h_noclip h_coord h_inj h_fresh h_radius",
          "tierB_adaptive_sound"),
)
