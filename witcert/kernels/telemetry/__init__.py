"""Histogram of meters and ring of sampled cells on the device: ``Telemetry``."""

from witcert.kernels.telemetry.launch import BINS, Sample, Telemetry

__all__ = ["BINS", "Sample", "Telemetry"]
