"""Launch of the page tags: what a tensor's words are, and one launch for each tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from witcert.errors import InputError
from witcert.kernels.checks import on_device
from witcert.kernels.page_tag.kernel import page_tag_kernel

__all__ = ["Rows", "page_tags"]

WIDTHS = ((8, torch.int64), (4, torch.int32), (2, torch.int16), (1, torch.int8))
MOST = 1024
"""Words of a program at a time."""


@dataclass(frozen=True, eq=False)
class Rows:
    """A tensor as words: what :func:`page_tags` reads of it.

    words : flat view of the whole tensor in words of 8 bytes or fewer. count : words of one page and head. per_row : words
    that lie side by side, runs of which are ``row`` words apart. layer, page, head : distances in words, 0 where shared.
    """

    words: Tensor
    count: int
    per_row: int
    layer: int
    page: int
    head: int
    row: int

    @classmethod
    def of(cls, x: Tensor, *, token_major: bool) -> Rows:
        """Of a contiguous [layers, pages, Hkv, page_size, n], or [layers, pages, page_size, Hkv, n] if token-major, or of
        [pages, page_size] shared by all layers and heads. InputError for other tensors."""
        if not x.is_contiguous() or x.ndim not in (2, 5):
            raise InputError(f"x has shape {tuple(x.shape)}, strides {x.stride()}; expected contiguous pages")
        size = x.element_size()
        if x.ndim == 2:
            row, count, steps = x.shape[1] * size, x.shape[1] * size, (0, x.stride(0), 0, 0)
        elif token_major:
            row, count = x.shape[4] * size, x.shape[2] * x.shape[4] * size
            steps = (x.stride(0), x.stride(1), x.stride(3), x.stride(2))
        else:
            row = count = x.shape[3] * x.shape[4] * size
            steps = (x.stride(0), x.stride(1), x.stride(2), 0)
        width, dtype = next(w for w in WIDTHS if count % w[0] == 0)
        if row % width or (x.storage_offset() * size) % width or any(n * size % width for n in steps):
            raise InputError(f"rows of {row} bytes are no words of {width} bytes; expected head-major pages")
        layer, page, head, between = (n * size // width for n in steps)
        return cls(x.view(-1).view(dtype), count // width, row // width, layer, page, head, between)


def page_tags(parts: Sequence[Sequence[Rows]], items: Tensor, heads: int) -> Tensor:
    """Tags of pages as they are now, int64 [N, heads, parts]; nothing waits for the device.

    parts : for each tag, the tensors whose words it covers, one after the other; at most 16. items : int64 [2, N],
    contiguous, on their device: layers, then pages (not checked: reading them back would wait).
    """
    if not 1 <= len(parts) <= 16 or not all(parts):
        raise InputError(f"{len(parts)} parts; expected 1 to 16, each of one tensor or more")
    if items.dtype != torch.int64 or items.ndim != 2 or len(items) != 2 or not items.is_contiguous():
        raise InputError(f"items is {items.dtype} {tuple(items.shape)}; expected a contiguous int64 [2, N]")
    on_device("items", items)
    out = torch.empty(items.shape[1], heads, len(parts), dtype=torch.int64, device=items.device)
    if not out.numel():
        return out
    for part, tensors in enumerate(parts):
        before = 0
        for x in tensors:
            page_tag_kernel[(items.shape[1], heads)](
                x.words, items, out, x.layer, x.page, x.head, x.row, items.shape[1], before, part,
                H=heads, PARTS=len(parts), PER_ROW=x.per_row, WORDS=x.count, FIRST=before == 0,
                T=min(MOST, triton.next_power_of_2(x.count)), num_warps=4 if x.count > 128 else 1,
            )  # fmt: skip
            before += x.count
    return out
