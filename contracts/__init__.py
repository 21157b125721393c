"""Validation of the kernels on real hardware: ``python -m contracts``, or ``make contracts``."""
