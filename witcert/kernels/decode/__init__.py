"""Decode attention over a paged cache with its meter in the same pass."""

from witcert.kernels.decode.launch import (
    BandMeter,
    DecodeOutput,
    HalfStepMeter,
    PagePart,
    Reading,
    ReadingBuffers,
    TierBMeter,
    Tuning,
    decode,
)
from witcert.kernels.decode.merge import merge

__all__ = [
    "BandMeter",
    "DecodeOutput",
    "HalfStepMeter",
    "PagePart",
    "Reading",
    "ReadingBuffers",
    "TierBMeter",
    "Tuning",
    "decode",
    "merge",
]
