"""What the error budget assumes of the GPU, measured on it: ``python -m benchmarks.assumptions``."""
