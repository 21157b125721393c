"""Counter-based random words: Philox4x32 as Triton computes it, and the same in PyTorch."""
