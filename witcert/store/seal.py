"""Content tags of pages: what finds a flipped bit in a payload, a scale, an outlier, a witness or an epoch.

A page is sealed (its tags are taken) when it is full, and checked against its tags on a sampled sweep. Tags are kept by part
of a page and KV head, so that damage is named. What a tag can miss is stated in
:mod:`witcert.kernels.page_out.reference`: nothing inside one 64-bit word, else a share of about 2^-64.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from witcert.kernels.page_out.reference import content_tag, words_of
from witcert.store.allocator import Slots
from witcert.store.tables import upload

__all__ = ["Damage", "Seals"]

CHUNK = 2**24
"""Words that are mixed at a time: 128 MiB of them, and as much again for what is computed on the way."""


@dataclass(frozen=True, order=True)
class Damage:
    """Bits that are not those that were written: of which layer, page, KV head, and part of the page."""

    layer: int
    page: int
    head: int
    part: str

    def __str__(self) -> str:
        return f"layer {self.layer}, page {self.page}, KV head {self.head}: {self.part}"


class Seals:
    """Tags int64 [layers, pages, Hkv, parts] of the pages of all layers, and which pages they are valid for.

    Parameters
    ----------
    parts : name -> tensors of all layers whose rows the tag covers, each [layers, pages, Hkv, page_size, n], or
        [layers, pages, page_size, Hkv, n] if token-major; [pages, page_size] for the epochs, which layers and heads share.
    token_major : how the rows of the parts are laid out.
    """

    def __init__(
        self, parts: dict[str, tuple[Tensor, ...]], layers: int, pages: int, heads: int, *, token_major: bool,
        device: torch.device,
    ) -> None:  # fmt: skip
        self.parts, self.token_major = parts, token_major
        self.layers, self.heads = layers, heads
        self.tags = torch.zeros(layers, pages, heads, len(parts), dtype=torch.int64, device=device)
        self.valid = torch.zeros(layers, pages, dtype=torch.bool)
        words = sum(x[0, 0].numel() * x.element_size() // 8 for xs in parts.values() for x in xs if x.ndim > 2)
        self.step = max(1, CHUNK // max(1, words * layers))

    @property
    def names(self) -> tuple[str, ...]:
        """Parts with a tag of their own, in the order of the last axis of the tags."""
        return tuple(self.parts)

    def _words(self, x: Tensor, layers: Tensor, pages: Tensor) -> Tensor:
        """Words of each (layer, page, head), int64 [L, P, Hkv or 1, W]."""
        if x.ndim == 2:
            return words_of(x[pages])[None, :, None, :]  # [1, P, 1, W]
        rows = x[layers[:, None], pages[None, :]]  # [L, P, ...]
        rows = rows.transpose(2, 3) if self.token_major else rows
        return words_of(rows.flatten(3))

    def compute(self, layers: Tensor, pages: Tensor) -> Tensor:
        """Tags of what the pages hold now, int64 [L, P, Hkv, parts]; layers [L], pages [P] int64 on the device."""
        head = torch.arange(self.heads, device=pages.device)
        place = (pages[None, :, None] * self.heads + head) * 2**16 + layers[:, None, None]  # [L, P, Hkv]
        tags = []
        for i, tensors in enumerate(self.parts.values()):
            words = [self._words(x, layers, pages) for x in tensors]
            words = [w.expand(len(layers), -1, self.heads, -1) for w in words]
            tags.append(content_tag(torch.cat(words, -1) if len(words) > 1 else words[0], place * 16 + i))
        return torch.stack(tags, -1)

    def _index(self, x: Sequence[int] | Slots) -> Tensor:
        return upload(np.asarray(x, np.int64), torch.int64, self.tags.device)

    def _mark(self, layers: Sequence[int], pages: Sequence[int] | Slots, valid: bool) -> None:
        layer, page = (torch.from_numpy(np.asarray(x, np.int64)) for x in (layers, pages))
        self.valid[layer[:, None], page[None, :]] = valid

    def seal(self, layers: Iterable[int], pages: Iterable[int]) -> None:
        """Take the tags of whole pages as they are now. Does not wait for the device."""
        wanted, every = list(layers), list(pages)
        layer = self._index(wanted)
        for start in range(0, len(every), self.step):
            page = self._index(every[start : start + self.step])
            self.tags[layer[:, None], page[None, :]] = self.compute(layer, page)
        self._mark(wanted, every, True)

    def renew(self, layer: int, pages: Slots, heads: Slots) -> None:
        """Take the tags of (page, head) pairs anew, whose rows were changed on purpose; those of other heads stay."""
        for start in range(0, len(pages), self.step):
            page, head = self._index(pages[start : start + self.step]), self._index(heads[start : start + self.step])
            tags = self.compute(self._index([layer]), page)[0]  # [P, Hkv, parts]
            self.tags[layer, page, head] = tags[torch.arange(len(page), device=page.device), head]

    def forget(self, pages: Iterable[int]) -> None:
        """The pages will be written to: their tags say nothing any more."""
        self._mark(range(self.layers), list(pages), False)

    def sealed(self, layer: int, page: int) -> bool:
        """Whether the tags of a page are valid."""
        return bool(self.valid[layer, page])

    def check(self, layers: Iterable[int], pages: Iterable[int]) -> list[Damage]:
        """Damage of the pages among these that are sealed. Waits for the device."""
        wanted, every, found = list(layers), list(pages), []
        layer = self._index(wanted)
        for start in range(0, len(every), self.step):
            chunk = every[start : start + self.step]
            page = self._index(chunk)
            differs = self.compute(layer, page) != self.tags[layer[:, None], page[None, :]]
            known = self.valid[torch.tensor(wanted, dtype=torch.int64)[:, None], torch.tensor(chunk, dtype=torch.int64)]
            for i, j, head, part in (differs.cpu() & known[:, :, None, None]).nonzero().tolist():
                found.append(Damage(wanted[i], chunk[j], head, self.names[part]))
        return found
