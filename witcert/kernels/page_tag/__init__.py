"""Content tags of whole pages of a pool: ``page_tags``."""

from witcert.kernels.page_tag.launch import Rows, page_tags

__all__ = ["Rows", "page_tags"]
