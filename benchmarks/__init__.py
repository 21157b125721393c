"""Benchmarks of the kernels; ``python -m benchmarks`` on a machine with a CUDA GPU."""
