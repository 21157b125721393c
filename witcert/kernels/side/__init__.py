"""Repaired pages as the cache grows: which lie where (``split_table``), and new rows of theirs made exact (``write_exact``)."""

from witcert.kernels.side.launch import split_table, write_exact

__all__ = ["split_table", "write_exact"]
