"""Launch of the witness kernel: checks its arguments, waits for nothing."""

from __future__ import annotations

from functools import lru_cache

import torch
import triton
from torch import Tensor

from witcert.errors import InputError
from witcert.kernels.checks import slot_map, token_rows
from witcert.kernels.formats import BANDS, HEAD_DIMS, PAGE_SIZES
from witcert.kernels.witness_write.budget import write_factors
from witcert.kernels.witness_write.kernel import witness_write_kernel
from witcert.witness import Bands

__all__ = ["witness_write"]


TILE = 1024
"""Channels of one program, on one warp: 32 a thread."""


def check_bands(bands: Bands, head_dim: int, count: int) -> None:
    """Refuse a split of the channels that is not the one of the pool, or whose bands have different sizes."""
    if not isinstance(bands, Bands):
        raise InputError(f"bands is {type(bands).__name__}; expected Bands")
    if bands.head_dim != head_dim or bands.bands != count:
        raise InputError(
            f"bands splits {bands.head_dim} channels into {bands.bands}; the pool: {head_dim} into {count}"
        )


def is_half(bands: Bands) -> bool:
    """Whether every band is two runs of channels half a head apart."""
    return bands.pairing == "half" and bands.rotary == bands.head_dim


def is_contiguous(bands: Bands) -> bool:
    """Whether every band is one run of channels."""
    return bands.pairing == "adjacent" or bands.rotary == 0


@lru_cache(maxsize=64)
def band_order(bands: Bands, device: torch.device) -> Tensor:
    """The channels in the order of their bands, int32 [d], made once per device (so before a graph is captured)."""
    return torch.argsort(bands.index, stable=True).to(torch.int32).to(device)


def witness_write(
    k: Tensor, k_hat: Tensor, slots: Tensor, out: Tensor, *, bands: Bands | None = None, gamma: float = 0.0
) -> None:
    """Write the witness of each token to its slot: ``RU16((1 + 2^-20) |k_hat_b - k_b| + gamma |k_hat_b|)`` or above.

    Parameters
    ----------
    k, k_hat : exact and served keys [T, Hkv, d], float16, bfloat16 or float32, any strides but adjacent channels.
    slots : int32 or int64 [T], no slot twice; a slot outside the pool (-1, padding of a captured graph) is skipped.
    out : float16 pool [slots, Hkv, B] or [pages, Hkv, page_size, B], as the stores keep it.
    bands : the split of the channels; the default is that of a full rotation with half-split pairs.
    gamma : dot-product constant of the kernel that will read the keys, in 0..1.

    A band with a NaN or an infinity in k or k_hat gets +inf. Bands of one size are taken (d and B are powers of two).
    """
    if not isinstance(out, Tensor) or out.dtype != torch.float16 or out.ndim not in (3, 4) or not out.is_contiguous():
        kind = f"{out.dtype} {tuple(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
        raise InputError(f"out is {kind}; expected a contiguous float16 [slots, H, B] or [pages, H, page_size, B]")
    heads, count, page = out.shape[1], out.shape[-1], out.shape[2] if out.ndim == 4 else 1
    if count not in BANDS or page not in PAGE_SIZES:
        raise InputError(f"out has {count} bands and pages of {page}; expected one of {BANDS} and one of {PAGE_SIZES}")
    if not isinstance(k, Tensor) or k.ndim != 3 or k.shape[2] not in HEAD_DIMS:
        raise InputError(f"k has shape {tuple(getattr(k, 'shape', ()))}; expected [T, H, d] with d in {HEAD_DIMS}")
    tokens, head_dim = k.shape[0], k.shape[2]
    token_rows("k", k, heads, head_dim)
    token_rows("k_hat", k_hat, heads, head_dim)
    bands = bands or Bands(head_dim, count)
    check_bands(bands, head_dim, count)
    if k_hat.shape != k.shape or k_hat.device != k.device or out.device != k.device:
        where = f"{tuple(k_hat.shape)} on {k_hat.device}, out on {out.device}"
        raise InputError(f"k_hat is {where}; expected {tuple(k.shape)} on {k.device}")
    slot_map("slots", slots, tokens, k.device)
    factor, key_factor = write_factors(head_dim // count, gamma)
    half, permuted = is_half(bands), not is_half(bands) and not is_contiguous(bands)
    order = band_order(bands, k.device) if permuted else slots
    if out.shape[0] * page * heads >= 2**31:
        raise InputError(f"out has {out.shape[0] * page} slots of {heads} heads; expected fewer than 2^31 rows")
    rows = TILE // head_dim
    if tokens:
        witness_write_kernel[(heads, triton.cdiv(tokens, rows))](
            k, k_hat, slots, order, out, k.stride(0), k.stride(1), k_hat.stride(0), k_hat.stride(1),
            tokens, out.shape[0] * page, factor, key_factor,
            H=heads, D=head_dim, BANDS=count, PAGE=page, HALF=half, PERMUTED=permuted, FOLD=gamma > 0,
            TINY=not k.dtype == k_hat.dtype == torch.float16, ROWS=rows, INTERPRET=triton.knobs.runtime.interpret,
            num_warps=1,
        )  # fmt: skip
