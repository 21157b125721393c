"""Exact blocks from pinned host memory back into the cache: ``page_in``, and ``page_in_mismatches`` to read back."""

from witcert.kernels.page_in.launch import page_in, page_in_mismatches

__all__ = ["page_in", "page_in_mismatches"]
