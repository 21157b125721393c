"""Contracts of the lemmas of ``WitCert.Core.Union``: the proofs that cite a lemma discharge its hypotheses."""

from contracts.model import lemma

# theorem, statement hash, meaning hash, hypotheses, proofs that cite it
CONTRACTS = (
    lemma("share_exists_le", "72bfec167d5820db", "2532e19d9edf1beb", "", "share_exists_le_mul"),
    lemma("share_exists_le_mul", "24565d67c46ec7d1", "6e6c2a31484effb8", "h", "request_union tierB_adaptive_sound"),
    lemma("natCast_mul_div", "654040a2e668531b", "654040a2e668531b", "h_pos", "request_union"),
)
