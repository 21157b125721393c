"""Contracts of the lemmas of ``WitCert.Core.SharpScalar``: the proofs that cite a lemma discharge its hypotheses."""

from contracts.model import lemma

# theorem, statement hash, meaning hash, hypotheses, proofs that cite it
CONTRACTS = (
    lemma("sharp_scalar_prod", "e23ec190be4bbb92", "e23ec190be4bbb92", "hab ha hb hx hz hxz hd",
          "sharp_scalar_small"),
    lemma("sharp_scalar_small", "e6b49476c88971b5", "e6b49476c88971b5", "hab ha hb hs hU hV hA hd h",
          "tv_le_sharp_small"),
    lemma("sharp_scalar", "6d293d0dea57df58", "6d293d0dea57df58", "hb hb1 hs hX h", "tv_le_sharp_always"),
    lemma("tanh_scalar", "ba0038043c47843b", "ba0038043c47843b", "hab ha hE h", "tv_le_tanh_half"),
)
