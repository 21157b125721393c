"""Launch of ``write_exact`` and ``split_table``: arguments are checked, the device is not waited for."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from witcert.errors import InputError
from witcert.kernels.checks import on_device, slot_map, token_rows
from witcert.kernels.formats import PAGE_SIZES, ExactStore, PageTable
from witcert.kernels.side.kernel import split_table_kernel, write_exact_kernel
from witcert.kernels.witness_write.budget import write_factors
from witcert.kernels.witness_write.launch import band_order, check_bands, is_contiguous, is_half
from witcert.witness import Bands

__all__ = ["split_table", "write_exact"]

TILE = 128


def _map(pages: object, device: torch.device) -> Tensor:
    """pages, if it is a contiguous int32 [pages, Hkv] on the device."""
    if not isinstance(pages, Tensor) or pages.dtype != torch.int32 or pages.ndim != 2 or not pages.is_contiguous():
        kind = f"{pages.dtype} {tuple(pages.shape)}" if isinstance(pages, Tensor) else type(pages).__name__
        raise InputError(f"pages is {kind}; expected a contiguous int32 tensor [pages, Hkv]")
    if pages.device != device:
        raise InputError(f"pages is on {pages.device}; expected {device}")
    return pages


def write_exact(
    k: Tensor, v: Tensor, slots: Tensor, pages: Tensor, store: ExactStore, largest: Tensor, *, page_size: int,
    bands: Bands | None = None, gamma: float,
) -> None:  # fmt: skip
    """Make new rows of repaired pages exact: their exact keys, values and witnesses, where ``pages`` says.

    Parameters
    ----------
    k, v : exact keys and values [T, Hkv, d] of new tokens in the dtype of the store, any strides but adjacent channels.
    slots : int32 or int64 [T], the slot of each token in the cache; a slot outside it (-1) is skipped.
    pages : int32 [pages of the cache, Hkv], the page of ``store`` that holds the exact rows of a page and KV head, or -1.
    store : exact store of one head (a side pool), or of Hkv heads (the cache itself; a page's map is then itself).
    largest : float32 [Hkv], raised to at least the norm of every key that is given; +inf for a norm that is no number.
    page_size : 1 or 16, of the cache and of the store. bands : the split of the channels; default: full rotation.
    gamma : dot-product constant of the kernel that will read the keys; 0.0 for one that computes exactly.

    A row without a repaired page is not written. The witness of an exact key is ``RU16(gamma |k_b|)`` or above, as
    ``page_in`` writes it (``repair_exact``, ``arith_fold``); +inf for a band with a NaN or an infinity.
    """
    if not isinstance(store, ExactStore):
        raise InputError(f"store is {type(store).__name__}; expected ExactStore")
    device, d = store.k.device, store.head_dim
    on_device("store", store.k)
    _map(pages, device)
    heads = pages.shape[1]
    if store.kv_heads not in (1, heads):
        raise InputError(f"store has {store.kv_heads} heads; expected 1 or the {heads} of pages")
    for name, x in (("k", k), ("v", v)):
        token_rows(name, x, heads, d, (store.k.dtype,))
        if x.device != device:
            raise InputError(f"{name} is on {x.device}, the store on {device}")
    if v.shape != k.shape:
        raise InputError(f"v has shape {tuple(v.shape)}; expected {tuple(k.shape)}")
    slot_map("slots", slots, k.shape[0], device)
    if page_size not in PAGE_SIZES:
        raise InputError(f"page_size={page_size!r} is none of {PAGE_SIZES}")
    if largest.dtype != torch.float32 or tuple(largest.shape) != (heads,) or largest.device != device:
        raise InputError(
            f"largest is {largest.dtype} {tuple(largest.shape)} on {largest.device}; expected float32 ({heads},)"
        )
    count, half, order, factor = 0, True, slots, 0.0
    if store.witness is not None:
        count = store.witness.shape[-1]
        bands = bands or Bands(d, count)
        check_bands(bands, d, count)
        half, factor = is_half(bands), write_factors(d // count, gamma)[1]
    permuted = factor > 0 and bands is not None and not half and not is_contiguous(bands)
    if permuted and bands is not None:
        order = band_order(bands, device)
    if not k.shape[0]:
        return
    bits = [x.view(torch.int16) for x in (k, v, store.k, store.v)]
    write_exact_kernel[(k.shape[0], heads)](
        bits[0], bits[1], slots, pages, bits[2], bits[3], slots if store.witness is None else store.witness.view(torch.int16),
        order, largest.view(torch.int32), k.stride(0), k.stride(1), v.stride(0), v.stride(1), pages.shape[0] * page_size,
        store.slots, factor,
        H=heads, D=d, PAGE=page_size, BESIDE=store.kv_heads == 1, BANDS=count, HALF=half, PERMUTED=permuted,
        FOLD=factor > 0, WIDE=k.dtype == torch.bfloat16, INTERPRET=triton.knobs.runtime.interpret, num_warps=1,
    )  # fmt: skip


def split_table(table: PageTable, pages: Tensor) -> tuple[Tensor, Tensor]:
    """Which pages of the sequences are repaired, and where: uint8 [batch, Hkv, max_pages], int32 [batch * Hkv, max_pages].

    pages : int32 [pages of the cache, Hkv], as in :func:`write_exact`. The first is what ``PagePart`` takes; the second is
    the page table of the exact rows, one sequence for each KV head, 0 where a page is not repaired or past the end.
    """
    if not isinstance(table, PageTable):
        raise InputError(f"table is {type(table).__name__}; expected PageTable")
    on_device("table", table.pages)
    _map(pages, table.pages.device)
    batch, columns = table.pages.shape
    heads = pages.shape[1]
    parts = torch.empty(batch, heads, columns, dtype=torch.uint8, device=pages.device)
    side = torch.empty(batch * heads, columns, dtype=torch.int32, device=pages.device)
    if parts.numel():
        split_table_kernel[(batch * heads, triton.cdiv(columns, TILE))](
            table.pages, table.seq_lens, pages, parts, side, columns, len(pages), H=heads, PAGE=table.page_size, T=TILE,
            num_warps=1,
        )  # fmt: skip
    return parts, side
