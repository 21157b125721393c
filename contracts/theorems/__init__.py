"""The contracts, one module for each module of lemmas; those of the specification's theorems are in ``spec_*``."""
