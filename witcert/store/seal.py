"""Content tags of pages: what finds a flipped bit in a payload, a scale, an outlier, a witness or an epoch.

A page is sealed (its tags are taken) when it is full, and checked against its tags on a sampled sweep. Tags are kept by part
of a page and KV head, so that damage is named. What a tag can miss is stated in
:mod:`witcert.kernels.page_out.reference`: nothing inside one 64-bit word, else a share of about 2^-64.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from witcert.kernels.page_out.reference import content_tag, words_of
from witcert.kernels.page_tag import Rows, page_tags
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
    kernels : through the Triton kernel, or through PyTorch (the same bits).
    """

    def __init__(
        self, parts: dict[str, tuple[Tensor, ...]], layers: int, pages: int, heads: int, *, token_major: bool,
        device: torch.device, kernels: bool,
    ) -> None:  # fmt: skip
        self.parts, self.token_major = parts, token_major
        self.layers, self.heads = layers, heads
        self.tags = torch.zeros(layers, pages, heads, len(parts), dtype=torch.int64, device=device)
        self.valid = np.zeros((layers, pages), np.bool_)
        self._rows = [[Rows.of(x, token_major=token_major) for x in xs] for xs in parts.values()] if kernels else None
        words = sum(x[0, 0].numel() * x.element_size() // 8 for xs in parts.values() for x in xs if x.ndim > 2)
        self.step = 2**16 if kernels else max(1, CHUNK // max(1, words))

    @property
    def names(self) -> tuple[str, ...]:
        """Parts with a tag of their own, in the order of the last axis of the tags."""
        return tuple(self.parts)

    def _words(self, x: Tensor, items: Tensor) -> Tensor:
        """Words of each (layer, page) and head, int64 [N, Hkv or 1, W]."""
        layers, pages = items
        if x.ndim == 2:
            return words_of(x[pages])[:, None, :]  # [N, 1, W]
        rows = x[layers, pages]  # [N, ...]
        rows = rows.transpose(1, 2) if self.token_major else rows
        return words_of(rows.flatten(2))

    def compute(self, items: Tensor) -> Tensor:
        """Tags of what pages hold now, int64 [N, Hkv, parts]; items int64 [2, N] on the device: layers, then pages."""
        if self._rows is not None:
            return page_tags(self._rows, items, self.heads)
        layers, pages = items
        head = torch.arange(self.heads, device=pages.device)
        place = (pages[:, None] * self.heads + head) * 2**16 + layers[:, None]  # [N, Hkv]
        tags = []
        for i, tensors in enumerate(self.parts.values()):
            words = [self._words(x, items).expand(-1, self.heads, -1) for x in tensors]
            tags.append(content_tag(torch.cat(words, -1) if len(words) > 1 else words[0], place * 16 + i))
        return torch.stack(tags, -1)

    def _items(self, layers: Slots, pages: Slots) -> Iterator[tuple[Slots, Slots, Tensor]]:
        """The pairs in runs that fit, each with its copy on the device."""
        for start in range(0, len(layers), self.step):
            part = np.stack((layers[start : start + self.step], pages[start : start + self.step]))
            yield part[0], part[1], upload(part, torch.int64, self.tags.device)

    def seal(self, layers: Iterable[int], pages: Iterable[int]) -> None:
        """Take the tags of whole pages, in each of the layers, as they are now. Does not wait for the device."""
        self.seal_pairs(*_product(layers, pages))

    def seal_pairs(self, layers: Slots, pages: Slots) -> None:
        """The same for the pairs (layers[i], pages[i])."""
        if not len(layers):
            return
        for _, _, items in self._items(layers, pages):
            self.tags[items[0], items[1]] = self.compute(items)
        self.valid[layers, pages] = True

    def renew(self, layer: int, pages: Slots, heads: Slots) -> None:
        """Take the tags of (page, head) pairs anew, whose rows were changed on purpose; those of other heads stay."""
        start = 0
        for _, here, items in self._items(np.full(len(pages), layer, np.int64), pages):
            head = upload(heads[start : start + len(here)], torch.int64, self.tags.device)
            every = torch.arange(len(here), device=head.device)
            self.tags[layer, items[1], head] = self.compute(items)[every, head]
            start += len(here)

    def forget(self, pages: Iterable[int]) -> None:
        """The pages will be written to: their tags say nothing any more."""
        self.forget_pairs(*_product(range(self.layers), pages))

    def forget_pairs(self, layers: Slots, pages: Slots) -> None:
        """The same for the pairs (layers[i], pages[i])."""
        self.valid[layers, pages] = False

    def sealed(self, layer: int, page: int) -> bool:
        """Whether the tags of a page are valid."""
        return bool(self.valid[layer, page])

    def check(self, layers: Iterable[int], pages: Iterable[int]) -> list[Damage]:
        """Damage of the pages among these that are sealed. Waits for the device."""
        return self.check_pairs(*_product(layers, pages))

    def check_pairs(self, layer: Slots, page: Slots) -> list[Damage]:
        """The same for the pairs (layer[i], page[i])."""
        known = self.valid[layer, page]
        found: list[Damage] = []
        for of, where, items in self._items(layer[known], page[known]):
            differs = self.compute(items) != self.tags[items[0], items[1]]
            for i, head, part in differs.nonzero().tolist():
                found.append(Damage(int(of[i]), int(where[i]), head, self.names[part]))
        return found


def _product(layers: Iterable[int], pages: Iterable[int]) -> tuple[Slots, Slots]:
    """All pairs of a layer and a page, layer by layer."""
    layer, page = (np.fromiter(x, np.int64) for x in (layers, pages))
    return np.repeat(layer, len(page)), np.tile(page, len(layer))
