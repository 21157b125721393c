"""What the witness kernel writes, in PyTorch: the float64 witness of the package, scattered to slots."""

from __future__ import annotations

from torch import Tensor

from witcert.witness import Bands, witness

__all__ = ["witness_write_reference"]


def witness_write_reference(
    k: Tensor, k_hat: Tensor, slots: Tensor, out: Tensor, *, bands: Bands | None = None, gamma: float = 0.0
) -> None:
    """As the kernel, or one fp16 step lower: this side has no float32 rounding to pay for."""
    page = out.shape[2] if out.ndim == 4 else 1
    w = witness(k, k_hat, bands or Bands(k.shape[2], out.shape[-1]), gamma)  # [T, H, B]
    inside = (slots >= 0) & (slots < out.shape[0] * page)
    where = slots[inside].long()
    by_page = out if out.ndim == 4 else out[:, :, None]
    by_page[where // page, :, where % page] = w[inside]
