"""What the INT8 write kernel leaves in a packed store, in PyTorch, from the schemes themselves."""

from __future__ import annotations

import torch
from torch import Tensor

from witcert.kernels.formats import PackedStore
from witcert.schemes import Site
from witcert.schemes.dither_int8 import DitherInt8, dither, xi
from witcert.schemes.grid import GROUP, channel_scale
from witcert.witness import Bands, witness

__all__ = ["encode_tokens", "int8_write_reference", "kept_channels", "served_tokens"]


def kept_channels(store: PackedStore) -> Tensor:
    """Boolean [Hkv, d]: the channels of the keys that are stored exactly."""
    keep = torch.zeros(store.kv_heads, store.head_dim, dtype=torch.bool, device=store.k_code.device)
    if store.outlier_channels is not None:
        keep.scatter_(1, store.outlier_channels.long(), True)
    return keep


def _site(store: PackedStore, slots: Tensor, side: str) -> Site | None:
    """Where the dither of a side comes from; None if the side has none."""
    if store.dither is None or store.epochs is None or (side == "v" and not store.dither.values):
        return None
    epochs = store.epochs[slots].long() & 0xFFFFFFFF
    return Site(store.dither.layer, "k" if side == "k" else "v", slots.cpu(), epochs.cpu(), store.dither.seed)


def encode_tokens(x: Tensor, slots: Tensor, store: PackedStore, side: str) -> tuple[Tensor, Tensor]:
    """Codes int8 [Hkv, T, d] and scales float16 [Hkv, T, d/32] of tokens x [T, Hkv, d]; every slot inside the store."""
    site = _site(store, slots, side)
    # On the CPU: elsewhere PyTorch divides by a number by multiplying with its reciprocal, which is not IEEE division.
    rows = x.float().transpose(0, 1).cpu()  # [Hkv, T, d]
    keep = kept_channels(store)[:, None, :].cpu() if side == "k" else torch.zeros(1, 1, 1, dtype=torch.bool)
    if site is not None and store.dither is not None and not keep.any():
        code, kept = DitherInt8(rounds=store.dither.rounds).encode(rows, site)
        return code.to(x.device), kept.to(x.device)
    keep = keep.expand_as(rows)
    scale = channel_scale(rows, 127.0 if site is None else 126.5, GROUP, keep)
    ratio = rows / torch.where(scale > 0, scale, 1.0)
    if site is not None and store.dither is not None:
        ratio = ratio + xi(dither(site, store.kv_heads, store.head_dim, store.dither.rounds))
    code = ratio.round().masked_fill(~scale.isfinite() | keep, 0.0).to(torch.int8)
    return code.to(x.device), scale[..., ::GROUP].to(torch.float16).to(x.device)


def served_tokens(x: Tensor, slots: Tensor, store: PackedStore, side: str) -> Tensor:
    """The numbers that the store serves for tokens x, exactly, float64 [T, Hkv, d] (NaN where it claims nothing)."""
    code, scale = encode_tokens(x, slots, store, side)
    site = _site(store, slots, side)
    multiple = code.double()
    if site is not None and store.dither is not None:
        multiple -= xi(dither(site, store.kv_heads, store.head_dim, store.dither.rounds), torch.float64).to(x.device)
    spread = scale.double().repeat_interleave(GROUP, -1)
    served = torch.where(spread.isfinite(), spread * multiple, torch.nan).transpose(0, 1)
    if side == "k":
        served = torch.where(kept_channels(store), x.to(torch.float16).double(), served)
    return served


def int8_write_reference(
    k: Tensor, v: Tensor, slots: Tensor, store: PackedStore, *, bands: Bands | None = None, gamma: float = 0.0
) -> None:
    """As ``dither_int8_write`` or ``rtn_write``: the same bits, but for a witness, which is not above the kernel's."""
    inside = (slots >= 0) & (slots < store.slots)
    where = slots[inside].long()
    page, row = where // store.page_size, where % store.page_size
    sides = (("k", k[inside], store.k_code, store.k_scale), ("v", v[inside], store.v_code, store.v_scale))
    for side, x, code_pool, scale_pool in sides:
        code, scale = encode_tokens(x, where, store, side)
        code_pool[page, :, row] = code.transpose(0, 1)
        scale_pool[page, :, row] = scale.transpose(0, 1)
    if store.k_outlier is not None and store.outlier_channels is not None:
        at = store.outlier_channels.long().expand(len(where), -1, -1)
        store.k_outlier[page, :, row] = k[inside].gather(2, at).to(torch.float16)
    if store.witness is not None:
        served = served_tokens(k[inside], where, store, "k")
        split = bands or Bands(store.head_dim, store.witness.shape[3])
        store.witness[page, :, row] = witness(k[inside], served, split, gamma)
