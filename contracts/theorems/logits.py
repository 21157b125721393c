"""Contracts of the lemmas of ``WitCert.Core.Logits``: the proofs that cite a lemma discharge its hypotheses."""

from contracts.model import lemma

# theorem, statement hash, meaning hash, hypotheses, proofs that cite it
CONTRACTS = (
    lemma("softcap_lipschitz", "b9ac8ed1cc63ff66", "f45a0de814aee844", "h_lipschitz h_bound", "tierA_sound"),
    lemma("scale_bound", "b78bdd628a6132c7", "8828b6a9a964baca", "h_scale h_bound", "tierA_sound"),
    lemma("sink_extend", "281020c0d44148fd", "2d80f1ae7cf42f03", "h_bound _2", "sink_meter_sound"),
    lemma("logit_meter_sound", "833d58f28255ca2f", "9a50a536013a310b", "h_tokens h_bound h_acert h_max",
          "sink_meter_sound tierA_sound"),
    lemma("witness_covers", "eb479ddfd8c94534", "75298b8bba1fb1a4",
          "h_band h_gamma h_query h_query_sq h_nr h_nr_sq h_nk h_nk_sq h_witness h_arith",
          "tierA_sound"),
    lemma("tierA_sound", "4408ad8abf5d2c84", "18a57c6a90ef68e5",
          "h_tokens h_band h_gamma h_scale h_lipschitz h_query h_query_sq h_residual h_key h_witness h_arith "
          "h_token_bound h_acert h_max",
          "tierA_sound_computed"),
)
