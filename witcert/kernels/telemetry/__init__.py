"""Record of meters on the device: ``Telemetry``, one launch a layer; ``StepRecord``, one launch a step of all layers."""

from witcert.kernels.telemetry.launch import BINS, Sample, Telemetry
from witcert.kernels.telemetry.step import COLUMNS, LOST, OCTAVES, ONE, OUTSIDE, UNIT, StepRecord, edges

__all__ = ["BINS", "COLUMNS", "LOST", "OCTAVES", "ONE", "OUTSIDE", "UNIT", "Sample", "StepRecord", "Telemetry", "edges"]
