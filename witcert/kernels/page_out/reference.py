"""Content tags and page-out in PyTorch.

The tag of a row of 64-bit words w_i that lies at a site is ``mix(site) + sum_i mix(w_i + i G) mod 2^64``, where G is an odd
constant and ``mix`` a bijection of 64-bit words with full avalanche (the finalizer of SplitMix64: Steele, Lea, Flood, "Fast
splittable pseudorandom number generators", OOPSLA 2014). Damage inside one word, of any number of bits, always changes
the tag, because mix is one-to-one; damage to several words is missed when the changes of their mixed values add up to 0,
a share of about 2^-64 for damage that does not know the constants. It is no defence against an adversary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from witcert.kernels.formats import ExactStore

__all__ = ["GOLDEN", "content_tag", "mix", "page_out_reference", "pair_tags", "row_site", "row_tags", "words_of"]


def _signed(x: int) -> int:
    return x - 2**64 if x >= 2**63 else x


GOLDEN = _signed(0x9E3779B97F4A7C15)
FIRST, SECOND = _signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """Logical shift to the right of int64."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def mix(x: Tensor) -> Tensor:
    """A bijection of 64-bit words, int64 -> int64, element by element."""
    x = (x ^ _shifted(x, 30)) * FIRST
    x = (x ^ _shifted(x, 27)) * SECOND
    return x ^ _shifted(x, 31)


def words_of(x: Tensor) -> Tensor:
    """The bits of each row as int64 words: [..., n] of any dtype -> int64 [..., W], in words of 8 bytes or fewer."""
    x = x.contiguous()
    size = x.shape[-1] * x.element_size()
    for width, dtype in ((8, torch.int64), (4, torch.int32), (2, torch.int16), (1, torch.int8)):
        if size % width == 0 and x.storage_offset() * x.element_size() % width == 0:
            return x.view(dtype).to(torch.int64)
    raise AssertionError("every row is whole bytes")


def content_tag(words: Tensor, site: Tensor) -> Tensor:
    """Tag of each row of words: int64 [..., W], site int64 [...] -> int64 [...]."""
    place = torch.arange(1, words.shape[-1] + 1, device=words.device) * GOLDEN
    return mix(site) + mix(words + place).sum(-1)


def row_site(rows: Tensor, heads: int, layer: int) -> Tensor:
    """Site of each (row, head): int64 [N] -> int64 [N, heads]."""
    head = torch.arange(heads, device=rows.device)
    return (rows.long()[:, None] * heads + head) * 2**16 + layer


def row_tags(k: Tensor, v: Tensor, rows: Tensor, layer: int) -> Tensor:
    """Tag of each row and head over key and value: 16-bit k, v [N, H, d], rows [N] -> int64 [N, H]."""
    words = torch.cat((words_of(k), words_of(v)), -1)  # [N, H, d / 2]
    return content_tag(words, row_site(rows, k.shape[1], layer))


def pair_tags(k: Tensor, v: Tensor, rows: Tensor, heads: Tensor, count: int, layer: int) -> Tensor:
    """Tag of each (row, head) pair over its key and value: 16-bit k, v [N, d], count heads in all -> int64 [N]."""
    words = torch.cat((words_of(k), words_of(v)), -1)
    return content_tag(words, (rows.long() * count + heads.long()) * 2**16 + layer)


def page_out_reference(
    k: Tensor, v: Tensor, slots: Tensor, host: ExactStore, tags: Tensor | None = None, layer: int = 0
) -> None:
    """As :func:`witcert.kernels.page_out.page_out`."""
    inside = (slots >= 0) & (slots < host.slots)
    where = slots[inside].long()
    host.k[where.to(host.k.device)] = k[inside].to(host.k.device)
    host.v[where.to(host.v.device)] = v[inside].to(host.v.device)
    if tags is not None:
        tags[where.to(tags.device)] = row_tags(k[inside], v[inside], where, layer).to(tags.device)
