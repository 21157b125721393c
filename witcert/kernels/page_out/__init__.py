"""Exact rows from the device to pinned host memory: ``page_out``, its read-back, and tags that find damaged rows."""

from witcert.kernels.page_out.launch import damaged_pairs, damaged_rows, page_out, page_out_mismatches

__all__ = ["damaged_pairs", "damaged_rows", "page_out", "page_out_mismatches"]
