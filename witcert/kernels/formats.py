"""Physical layouts of the paged KV cache: what the write kernels fill and the read kernels fetch.

*Slots and pages.* A slot is the storage of one token; slot ``s`` is row ``s % page_size`` of page ``s // page_size``.
Row b of the page table lists the pages of sequence b in order of position, so position t lies in slot
``pages[b, t // page_size] * page_size + t % page_size``. With page_size 1 a page is a slot.

*Exact store*, per token, KV head and side: 2d bytes, token-major ``[slots, Hkv, d]``, as serving engines keep it; a
witness adds 2B bytes to the keys.

*Packed store*, per token, KV head and side: d bytes of codes and 2 bytes for each group of 32 channels, 136 bytes at
d = 128. Outlier pairs add 4m bytes to the keys, a witness 2B. Everything is page-major and head-major,
``[pages, Hkv, page_size, ...]``, so that what one program reads of a page is one contiguous run (2 KiB of codes and 128
bytes of scales at d = 128 and page_size 16). Each row of codes starts at a multiple of 16 bytes: one 16-byte load is
one block of 16 channels, which is one draw of dither. Values are stored by token like keys: turning a tile of them in
shared memory costs about one instruction a token, less than a second layout that page_size 1 could not have.

Served numbers of the packed store, in real arithmetic:

* without dither  ``x_hat = s * n``;
* with dither     ``x_hat = s * (n - xi)``, xi = (2j + 1 - 256) / 512 for the byte j whose counter is (slot, epoch of
  the slot, layer, KV head, side, channel // 16), as :func:`witcert.kernels.philox.reference.pack_counter` lays it out;
* an outlier channel of a key is its fp16 number; its code is 0 and is not read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from witcert.errors import InputError

__all__ = ["GROUP", "HEAD_DIMS", "OUTLIER_PAIRS", "PAGE_SIZES", "Dither", "ExactStore", "PackedStore", "PageTable"]

GROUP = 32
"""Channels that share a scale."""
HEAD_DIMS = (64, 128, 256)
PAGE_SIZES = (1, 16)
OUTLIER_PAIRS = (0, 2, 4, 8, 16)
BANDS = (8, 16)
ALIGNMENT = 16


def _tensor(name: str, x: object, dtypes: tuple[torch.dtype, ...], shape: tuple[int | None, ...]) -> Tensor:
    """x, if it is a contiguous, 16-byte-aligned tensor of one of the dtypes and of the shape (None: any size)."""
    if not isinstance(x, Tensor):
        raise InputError(f"{name} is {type(x).__name__}; expected a tensor")
    if x.dtype not in dtypes:
        raise InputError(f"{name} has dtype {x.dtype}; expected {' or '.join(map(str, dtypes))}")
    fits = x.ndim == len(shape) and all(n is None or n == have for n, have in zip(shape, x.shape, strict=True))
    if not fits:
        spelled = ", ".join("*" if n is None else str(n) for n in shape)
        raise InputError(f"{name} has shape {tuple(x.shape)}; expected [{spelled}]")
    if not x.is_contiguous():
        raise InputError(f"{name} is not contiguous")
    if x.numel() and x.data_ptr() % ALIGNMENT:
        raise InputError(f"{name} does not start at a multiple of {ALIGNMENT} bytes")
    return x


def _one_of(name: str, value: object, allowed: tuple[object, ...]) -> None:
    if isinstance(value, bool) or value not in allowed:
        raise InputError(f"{name}={value!r} is none of {', '.join(map(str, allowed))}")


def _same_device(*named: tuple[str, Tensor | None]) -> torch.device:
    tensors = [(name, x) for name, x in named if x is not None]
    first, device = tensors[0][0], tensors[0][1].device
    for name, x in tensors[1:]:
        if x.device != device:
            raise InputError(f"{name} is on {x.device}, {first} on {device}")
    return device


@dataclass(frozen=True, eq=False)
class PageTable:
    """Where the tokens of each sequence lie.

    Parameters
    ----------
    pages : int32 [batch, max_pages], page of each run of page_size positions; entries past the end are never read.
    seq_lens : int32 [batch], number of cached tokens, 0 to max_pages * page_size. They live on the device: what reads
        them there is trusted to find them in range, since checking would wait for the device.
    page_size : 1 or 16.
    """

    pages: Tensor
    seq_lens: Tensor
    page_size: int

    def __post_init__(self) -> None:
        _one_of("page_size", self.page_size, PAGE_SIZES)
        _tensor("pages", self.pages, (torch.int32,), (None, None))
        _tensor("seq_lens", self.seq_lens, (torch.int32,), (self.pages.shape[0],))
        _same_device(("pages", self.pages), ("seq_lens", self.seq_lens))

    @property
    def batch(self) -> int:
        """Number of sequences."""
        return self.pages.shape[0]

    @property
    def max_tokens(self) -> int:
        """Largest number of tokens that a sequence can have."""
        return self.pages.shape[1] * self.page_size

    def slots(self, sequence: int) -> Tensor:
        """The slots of one sequence in order of position, int64 [T]. Waits for the device: for tests and references."""
        positions = torch.arange(int(self.seq_lens[sequence]), device=self.pages.device)
        page = self.pages[sequence].long()[positions // self.page_size]
        return page * self.page_size + positions % self.page_size


@dataclass(frozen=True, eq=False)
class ExactStore:
    """Keys and values as the model made them (or as a scheme serves them), with or without a witness of the keys.

    Parameters
    ----------
    k, v : float16 or bfloat16 [slots, Hkv, d].
    witness : float16 [slots, Hkv, B], B in 8, 16, or None.
    """

    k: Tensor
    v: Tensor
    witness: Tensor | None = None

    def __post_init__(self) -> None:
        half = (torch.float16, torch.bfloat16)
        _tensor("k", self.k, half, (None, None, None))
        _tensor("v", self.v, (self.k.dtype,), tuple(self.k.shape))
        _one_of("head_dim", self.k.shape[2], HEAD_DIMS)
        if self.witness is not None:
            _tensor("witness", self.witness, (torch.float16,), (*self.k.shape[:2], None))
            _one_of("bands", self.witness.shape[2], BANDS)
        _same_device(("k", self.k), ("v", self.v), ("witness", self.witness))

    @property
    def kv_heads(self) -> int:
        """Number of KV heads."""
        return self.k.shape[1]

    @property
    def head_dim(self) -> int:
        """Channels of a head."""
        return self.k.shape[2]

    @property
    def slots(self) -> int:
        """Number of tokens that fit."""
        return self.k.shape[0]

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token and KV head takes, keys, values and witness together."""
        return 4 * self.head_dim + (0 if self.witness is None else 2 * self.witness.shape[2])


@dataclass(frozen=True)
class Dither:
    """The random stream of one layer's codes: everything of the counter that is not stored with the token.

    Parameters
    ----------
    seed : key of the stream, 0 to 2^64 - 1.
    layer : index of the layer, 0 to 65535.
    rounds : Philox rounds, 7 or 10.
    values : whether the codes of the values are dithered too; those of the keys are.
    """

    seed: int
    layer: int
    rounds: int = 7
    values: bool = True

    def __post_init__(self) -> None:
        for name, value, bits in (("seed", self.seed, 64), ("layer", self.layer, 16)):
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**bits:
                raise InputError(f"{name}={value!r} is not a whole number in 0..2^{bits} - 1")
        _one_of("rounds", self.rounds, (7, 10))

    @property
    def words(self) -> tuple[int, int]:
        """Low and high word of the seed, as int32 holds them."""
        low, high = self.seed & 0xFFFFFFFF, self.seed >> 32
        return low - ((low >> 31) << 32), high - ((high >> 31) << 32)


@dataclass(frozen=True, eq=False)
class PackedStore:
    """INT8 codes with a scale per group of 32 channels, dithered or not.

    Parameters
    ----------
    k_code, v_code : int8 [pages, Hkv, page_size, d], codes in -127..127.
    k_scale, v_scale : float16 [pages, Hkv, page_size, d/32], >= 0; what quantized and what dequantizes.
    epochs : int32 [pages * page_size], how often each slot was reused (bits of an unsigned word); with dither only.
    dither : the stream, or None for codes without dither.
    k_outlier : float16 [pages, Hkv, page_size, 2m], the exact numbers of m RoPE pairs, m in 2, 4, 8, 16, or None.
    outlier_channels : int32 [Hkv, 2m], the channels of these columns: the first channel of each pair, then the second
        channel of each pair in the same order. Chosen once per (layer, KV head); no channel twice.
    witness : float16 [pages, Hkv, page_size, B], B in 8, 16, of the keys, or None.
    """

    k_code: Tensor
    k_scale: Tensor
    v_code: Tensor
    v_scale: Tensor
    epochs: Tensor | None = None
    dither: Dither | None = None
    k_outlier: Tensor | None = None
    outlier_channels: Tensor | None = None
    witness: Tensor | None = None

    def __post_init__(self) -> None:
        _tensor("k_code", self.k_code, (torch.int8,), (None, None, None, None))
        rows = tuple(self.k_code.shape[:3])
        _one_of("page_size", self.page_size, PAGE_SIZES)
        _one_of("head_dim", self.head_dim, HEAD_DIMS)
        _tensor("v_code", self.v_code, (torch.int8,), (*rows, self.head_dim))
        for name, scale in (("k_scale", self.k_scale), ("v_scale", self.v_scale)):
            _tensor(name, scale, (torch.float16,), (*rows, self.head_dim // GROUP))
        if (self.dither is None) != (self.epochs is None):
            raise InputError("dither and epochs come together: without an epoch a reused slot would repeat its dither")
        if self.epochs is not None:
            _tensor("epochs", self.epochs, (torch.int32,), (self.slots,))
        if (self.k_outlier is None) != (self.outlier_channels is None):
            raise InputError("k_outlier and outlier_channels come together")
        if self.k_outlier is not None:
            _tensor("k_outlier", self.k_outlier, (torch.float16,), (*rows, None))
            _one_of("outlier pairs", self.k_outlier.shape[3] / 2, OUTLIER_PAIRS[1:])
            _tensor("outlier_channels", self.outlier_channels, (torch.int32,), (rows[1], self.k_outlier.shape[3]))
        if self.witness is not None:
            _tensor("witness", self.witness, (torch.float16,), (*rows, None))
            _one_of("bands", self.witness.shape[3], BANDS)
        _same_device(
            ("k_code", self.k_code), ("k_scale", self.k_scale), ("v_code", self.v_code), ("v_scale", self.v_scale),
            ("epochs", self.epochs), ("k_outlier", self.k_outlier), ("outlier_channels", self.outlier_channels),
            ("witness", self.witness),
        )  # fmt: skip

    @classmethod
    def empty(
        cls, pages: int, kv_heads: int, head_dim: int, page_size: int, *, dither: Dither | None = None,
        outlier_channels: Tensor | None = None, bands: int | None = None, device: torch.device | str = "cpu",
    ) -> PackedStore:  # fmt: skip
        """An unwritten store; epochs start at 0. Nothing else is initialized."""
        rows = (pages, kv_heads, page_size)

        def new(width: int, dtype: torch.dtype) -> Tensor:
            return torch.empty(*rows, width, dtype=dtype, device=device)

        return cls(
            k_code=new(head_dim, torch.int8),
            k_scale=new(head_dim // GROUP, torch.float16),
            v_code=new(head_dim, torch.int8),
            v_scale=new(head_dim // GROUP, torch.float16),
            epochs=None if dither is None else torch.zeros(math.prod(rows[::2]), dtype=torch.int32, device=device),
            dither=dither,
            k_outlier=None if outlier_channels is None else new(outlier_channels.shape[1], torch.float16),
            outlier_channels=outlier_channels,
            witness=None if bands is None else new(bands, torch.float16),
        )

    @property
    def page_size(self) -> int:
        """Tokens of a page."""
        return self.k_code.shape[2]

    @property
    def kv_heads(self) -> int:
        """Number of KV heads."""
        return self.k_code.shape[1]

    @property
    def head_dim(self) -> int:
        """Channels of a head."""
        return self.k_code.shape[3]

    @property
    def slots(self) -> int:
        """Number of tokens that fit."""
        return self.k_code.shape[0] * self.page_size

    @property
    def outlier_pairs(self) -> int:
        """Number m of RoPE pairs of the keys that are stored exactly."""
        return 0 if self.k_outlier is None else self.k_outlier.shape[3] // 2

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token and KV head takes, keys, values, outliers and witness together (epochs are per slot)."""
        side = self.head_dim + 2 * (self.head_dim // GROUP)
        return 2 * side + 4 * self.outlier_pairs + (0 if self.witness is None else 2 * self.witness.shape[3])
