"""What a pool holds, and what that costs to the byte."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from witcert.errors import InputError
from witcert.kernels.formats import BANDS, GROUP, HEAD_DIMS, OUTLIER_PAIRS, PAGE_SIZES, Dither
from witcert.witness import Bands

__all__ = ["FORMATS", "GIB", "PoolConfig"]

FORMATS = ("exact", "scheme", "int8", "int8-dither")
GIB = 2**30
MAX_GROUP, MAX_TOKENS = 16, 2**24
TAG = 8
"""Bytes of one content tag."""


def _whole(name: str, value: object, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InputError(f"{name}={value!r} is not a whole number in {least}..{most}")


def _one_of(name: str, value: object, allowed: tuple[object, ...]) -> None:
    if isinstance(value, bool) or value not in allowed:
        raise InputError(f"{name}={value!r} is none of {', '.join(map(str, allowed))}")


@dataclass(frozen=True, eq=False, kw_only=True)
class PoolConfig:
    """A paged pool of all layers of one model, validated at construction.

    Parameters
    ----------
    layers, heads, kv_heads, head_dim : shape of the model; heads counts query heads, at most 16 a KV head; head_dim is
        64, 128 or 256.
    pages : pages of the pool; a page holds page_size tokens of every layer.
    tokens : most tokens that a sequence ever stores (S of the theorems).
    page_size : 16 or 1.
    format : ``"exact"`` the keys and values as they are; ``"scheme"`` what a registered scheme serves, in dtype, with a
        witness; ``"int8"`` packed codes; ``"int8-dither"`` packed codes with subtractive dither.
    scheme : name of the scheme, for the format ``"scheme"``. Only schemes that quantize each token by itself can be
        written token by token: those registered with per_token=False are refused.
    dtype : float16 or bfloat16, of exact keys and values and of what a scheme serves.
    bands : bands of the witness, 16 or 8; None keeps no witness.
    pairing : how channels pair up under RoPE, ``"half"`` or ``"adjacent"``.
    rotary_dim : channels that RoPE turns, None for all. Stored keys are post-RoPE, so every split of the channels into
        bands is sound as long as writer and reader use the same one; the pool always takes the split of all
        channels, the one that the read kernels know, so this changes nothing that is stored.
    seed, rounds, dither_values : of the dither; rounds is 7 or 10, dither_values extends it to the values.
    outlier_channels : int32 [layers, kv_heads, 2m], channels of the keys that packed formats keep exactly, or None.
    side_pages : pages of one KV head each, in every layer, for exact copies of repaired pages. Needs a backing store.
    backing : whether exact keys and values are kept in (pinned) host memory too.
    tags : whether pages carry content tags, by which :meth:`CachePool.check` finds damage.
    """

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    pages: int
    tokens: int
    page_size: int = 16
    format: Literal["exact", "scheme", "int8", "int8-dither"] = "exact"
    scheme: str | None = None
    dtype: torch.dtype = torch.float16
    bands: int | None = 16
    pairing: Literal["half", "adjacent"] = "half"
    rotary_dim: int | None = None
    seed: int = 0
    rounds: int = 7
    dither_values: bool = False
    outlier_channels: Tensor | None = None
    side_pages: int = 0
    backing: bool = False
    tags: bool = True

    def __post_init__(self) -> None:
        _whole("layers", self.layers, 1, 2**16)
        _whole("kv_heads", self.kv_heads, 1, 2**16 - 1)
        _whole("heads", self.heads, 1, 2**20)
        if self.heads % self.kv_heads or self.heads // self.kv_heads > MAX_GROUP:
            raise InputError(f"heads={self.heads} is not 1 to {MAX_GROUP} times kv_heads={self.kv_heads}")
        _one_of("head_dim", self.head_dim, HEAD_DIMS)
        _one_of("page_size", self.page_size, PAGE_SIZES)
        _whole("pages", self.pages, 1, (2**31 - 1) // (self.page_size * self.kv_heads))
        _whole("tokens", self.tokens, 1, MAX_TOKENS)
        _one_of("format", self.format, FORMATS)
        _one_of("dtype", self.dtype, (torch.float16, torch.bfloat16))
        if self.bands is not None:
            _one_of("bands", self.bands, BANDS)
        _one_of("pairing", self.pairing, ("half", "adjacent"))
        if self.rotary_dim is not None:
            _whole("rotary_dim", self.rotary_dim, 0, self.head_dim)
            if self.rotary_dim % 2:
                raise InputError(f"rotary_dim={self.rotary_dim} is not even")
        self._check_codes()
        _whole("side_pages", self.side_pages, 0, (2**31 - 1) // self.page_size)
        if self.side_pages and not self.backing:
            raise InputError(f"side_pages={self.side_pages} hold copies from a backing store; backing is False")

    def _check_codes(self) -> None:
        if (self.format == "scheme") != (self.scheme is not None):
            raise InputError(f"scheme={self.scheme!r} with format={self.format!r}; a scheme goes with format='scheme' only")
        if self.dither_values and self.format != "int8-dither":
            raise InputError(f"dither_values=True with format={self.format!r}; expected 'int8-dither'")
        Dither(self.seed, 0, self.rounds, self.dither_values)  # raises on a seed or rounds out of range
        x = self.outlier_channels
        if x is None:
            return
        if not self.packed:
            raise InputError(f"outlier_channels with format={self.format!r}; only packed formats keep channels apart")
        shape = (self.layers, self.kv_heads)
        if not isinstance(x, Tensor) or x.dtype != torch.int32 or x.ndim != 3 or tuple(x.shape[:2]) != shape:
            kind = f"{x.dtype} {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
            raise InputError(f"outlier_channels is {kind}; expected int32 [{self.layers}, {self.kv_heads}, 2m]")
        _one_of("outlier pairs", x.shape[2] / 2, OUTLIER_PAIRS[1:])
        ordered = x.sort(-1).values
        if bool((x < 0).any() | (x >= self.head_dim).any() | (ordered[..., 1:] == ordered[..., :-1]).any()):
            raise InputError(f"outlier_channels holds a channel outside 0..{self.head_dim - 1}, or one twice for a head")

    # ---- derived

    @property
    def packed(self) -> bool:
        """Whether the format keeps INT8 codes."""
        return self.format in ("int8", "int8-dither")

    @property
    def slots(self) -> int:
        """Tokens that fit."""
        return self.pages * self.page_size

    @property
    def max_pages(self) -> int:
        """Pages of the longest sequence: the width of every page table."""
        return -(-self.tokens // self.page_size)

    @property
    def split(self) -> Bands | None:
        """The split of the channels by which witnesses are written and read; None without a witness."""
        return None if self.bands is None else Bands(self.head_dim, self.bands, self.pairing)

    @property
    def outliers(self) -> int:
        """Channels of each key that are stored exactly."""
        return 0 if self.outlier_channels is None else self.outlier_channels.shape[2]

    # ---- bytes

    def bytes_by_part(self) -> dict[str, int]:
        """Exact bytes of every part of the pool; ``host`` parts lie in host memory, all others on the device."""
        cells = self.layers * self.slots * self.kv_heads  # one for each token, layer and KV head
        parts: dict[str, int] = {}
        if self.packed:
            parts["codes"] = cells * 2 * self.head_dim
            parts["scales"] = cells * 4 * (self.head_dim // GROUP)
            parts["outliers"] = cells * 2 * self.outliers + 4 * self.layers * self.kv_heads * self.outliers
        else:
            parts["payload"] = cells * 4 * self.head_dim
        parts["witness"] = cells * 2 * (self.bands or 0)
        parts["epochs"] = 4 * self.slots if self.format in ("scheme", "int8-dither") else 0
        parts["tags"] = self.layers * self.pages * self.kv_heads * len(self.tagged) * TAG if self.tags else 0
        side = self.layers * self.side_pages * self.page_size
        parts["side"] = side * (4 * self.head_dim + 2 * (self.bands or 0))
        parts["side tags"] = self.layers * self.side_pages * (2 + bool(self.bands)) * TAG if self.tags else 0
        parts["host backing"] = cells * 4 * self.head_dim if self.backing else 0
        parts["host backing tags"] = cells * TAG if self.backing else 0
        return parts

    @property
    def tagged(self) -> tuple[str, ...]:
        """Parts of a page that have a tag of their own."""
        names = ["keys", "values"] + ["scales"] * self.packed + ["outliers"] * bool(self.outliers)
        return (*names, *["witness"] * bool(self.bands), *["epochs"] * (self.format == "int8-dither"))

    @property
    def device_bytes(self) -> int:
        """Bytes on the device, page tables aside."""
        return sum(n for name, n in self.bytes_by_part().items() if not name.startswith("host"))

    @property
    def host_bytes(self) -> int:
        """Bytes in host memory."""
        return sum(n for name, n in self.bytes_by_part().items() if name.startswith("host"))

    @property
    def tokens_per_gib(self) -> float:
        """Tokens (of all layers) that a GiB of device memory holds, the side pool and the tables aside."""
        parts = self.bytes_by_part()
        fixed = 4 * self.layers * self.kv_heads * self.outliers
        kept = sum(n for name, n in parts.items() if not name.startswith(("host", "side")))
        return GIB * self.slots / (kept - fixed)

    @classmethod
    def from_bytes(cls, budget: int, **fields: Any) -> PoolConfig:
        """The pool with the most pages whose device bytes (page tables aside) are at most ``budget``.

        fields : every other field. Raises InputError if not even one page fits.
        """
        one, two = cls(**{**fields, "pages": 1}), cls(**{**fields, "pages": 2})
        page = two.device_bytes - one.device_bytes
        pages = 1 + math.floor((budget - one.device_bytes) / page)
        if pages < 1:
            raise InputError(f"budget={budget} bytes holds no page; one takes {one.device_bytes}")
        return cls(**{**fields, "pages": min(pages, (2**31 - 1) // (one.page_size * one.kv_heads))})
