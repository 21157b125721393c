"""Decode attention over a paged cache with its meter in the same pass."""

from witcert.kernels.decode.launch import (
    BandMeter,
    DecodeOutput,
    HalfStepMeter,
    Reading,
    TierBMeter,
    Tuning,
    decode,
)

__all__ = ["BandMeter", "DecodeOutput", "HalfStepMeter", "Reading", "TierBMeter", "Tuning", "decode"]
