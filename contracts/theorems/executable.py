"""Contracts of the lemmas of ``WitCert.Core.Executable``: the proofs that cite a lemma discharge its hypotheses."""

from contracts.model import lemma

# theorem, statement hash, meaning hash, hypotheses, proofs that cite it
CONTRACTS = (
    lemma("roundHalfEven_close", "62c4d10e8ff0182d", "a8f1064b01b770b3", "", "ditherCode_law"),
    lemma("sharpRat_eq", "eb327ad6c19cbdb9", "a34291e82bc694db", "", "meterRat_eq"),
)
