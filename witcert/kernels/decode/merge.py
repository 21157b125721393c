"""Merge of two decodes of the same queries over the two parts of a cache (``lse_merge``), in one small launch.

With masses M and accumulators A of the parts, ``A - 1 = sum M_i (A_i - 1) / sum M_i``. The masses come back from the LSEs,
each within a factor of 1 +- eta of the real one, so the computed average times (1 + eta)/(1 - eta) is an upper bound
(``ratio_envelope``); eta covers the sums of stage 1, its exponentials and the float32 LSE. C merges by max.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from witcert.errors import InputError
from witcert.guarantees import Labelled, Proved
from witcert.kernels.decode.budget import EXP2
from witcert.kernels.decode.launch import MAX_TOKENS, DecodeOutput, Reading, ReadingBuffers
from witcert.kernels.decode.stage2 import _meter

__all__ = ["merge"]


@triton.jit(do_not_specialize=["cells", "count_b"])
def merge_kernel(
    out_a, lse_a, log_a, top_a, out_b, lse_b, log_b, top_b, out_ptr, lse_ptr, log_ptr, c_ptr, meter_ptr,
    cells, count_b, eta,
    D: tl.constexpr, METERS: tl.constexpr,
):  # fmt: skip
    cell = tl.program_id(0).to(tl.int64)
    la = tl.load(lse_a + cell).to(tl.float64)
    lb = tl.load(lse_b + cell).to(tl.float64)
    # A NaN stays: maximum would drop it.
    top = tl.where(la != la, la, tl.where(lb != lb, lb, tl.maximum(la, lb)))
    none = top == float("-inf")
    at = tl.where(none, 0.0, top)
    ma = tl.exp(la - at)
    mb = tl.exp(lb - at)
    mass = ma + mb
    share_a = tl.where(none, 0.0, ma / mass)
    share_b = tl.where(none, 0.0, mb / mass)
    d = tl.arange(0, D)
    a = tl.load(out_a + cell * D + d).to(tl.float32)  # [D]
    b = tl.load(out_b + cell * D + d).to(tl.float32)
    # An empty part's output is 0, not NaN: its weight 0 adds nothing.
    value = a * share_a.to(tl.float32) + b * share_b.to(tl.float32)
    tl.store(out_ptr + cell * D + d, value.to(out_ptr.dtype.element_ty))
    tl.store(lse_ptr + cell, tl.where(none, float("-inf"), at + tl.log(tl.where(none, 1.0, mass))).to(tl.float32))
    error = eta + (tl.abs(at) + 1.0) * 2.3841858e-07
    for i in tl.static_range(METERS):
        other = (i % count_b) * cells + cell
        xa = tl.exp(tl.load(log_a + i * cells + cell).to(tl.float64)) - 1.0
        xb = tl.exp(tl.load(log_b + other).to(tl.float64)) - 1.0
        excess = (share_a * xa + share_b * xb) * ((1.0 + error) / (1.0 - error)) * (1.0 + 1e-9)
        ratio = ((1.0 + excess) * (1.0 + 1.2e-7)).to(tl.float32)
        ratio = tl.where((error < 0.5) & (ratio == ratio), ratio, float("inf"))
        ca = tl.load(top_a + i * cells + cell)
        cb = tl.load(top_b + other)
        c = tl.where(ca != ca, ca, tl.where(cb != cb, cb, tl.maximum(ca, cb)))
        log, high, meter = _meter(tl.where(none, 0.0, ratio), tl.where(none, 0.0, 1.0), c * 1.4426955, 1.0)
        tl.store(log_ptr + i * cells + cell, log)
        tl.store(c_ptr + i * cells + cell, high)
        tl.store(meter_ptr + i * cells + cell, meter)


def merge(
    first: DecodeOutput, second: DecodeOutput, *, tokens: int, into: ReadingBuffers | None = None
) -> DecodeOutput:
    """One output from two decodes of the same queries whose caches have no token in common.

    Parameters
    ----------
    first, second : outputs of ``decode`` with the same q, scale and soft cap. Sinks are given to one of the two. Either
        both have readings or none; second has one reading without probability, or as many as first.
    tokens : most tokens that a sequence has (``table.max_tokens``).
    into : where the meters and C of the result go, as in ``decode``; memory of neither input.

    Returns output, LSE and one reading for each of first's, with first's label: an upper bound on the total variation of
    the whole cell. No host synchronization, capturable.
    """
    for side, x in (("first", first), ("second", second)):
        if not isinstance(x, DecodeOutput):
            raise InputError(f"{side} is {type(x).__name__}; expected a DecodeOutput")
    if first.out.shape != second.out.shape or first.out.dtype != second.out.dtype or first.out.device != second.out.device:
        theirs = f"{second.out.dtype} {tuple(second.out.shape)} on {second.out.device}"
        raise InputError(f"second is {theirs}; expected {first.out.dtype} {tuple(first.out.shape)} on {first.out.device}")
    if isinstance(tokens, bool) or not isinstance(tokens, int) or not 1 <= tokens <= MAX_TOKENS:
        raise InputError(f"tokens={tokens!r} is not a whole number in 1..{MAX_TOKENS}")
    count, other = len(first.readings), len(second.readings)
    if (count == 0) != (other == 0) or other not in (0, 1, count):
        raise InputError(f"first has {count} readings, second {other}; expected none, as many, or one in second")
    if other == 1 and not (isinstance(second.readings[0].meter, Proved) and not second.readings[0].meter.delta):
        raise InputError("the one reading of second has a probability; it cannot stand beside every reading of first")
    if other > 1 and any(type(a.meter) is not type(b.meter) for a, b in zip(first.readings, second.readings, strict=True)):
        raise InputError("the readings of first and second have different labels")
    batch, heads, d = first.out.shape
    cells = batch * heads
    out, lse = torch.empty_like(first.out), torch.empty_like(first.lse)
    log_a = torch.empty(count, batch, heads, device=out.device)
    if into is None:
        c_max, value = torch.empty_like(log_a), torch.empty_like(log_a)
        each = tuple(zip(value.unbind(), c_max.unbind(), strict=True))
    else:
        into.check((count, batch, heads), out.device)
        c_max, value, each = into.c_max, into.meter, into.each

    def stack(parts: list[torch.Tensor]) -> torch.Tensor:
        return torch.stack(parts) if len(parts) > 1 else parts[0].contiguous() if parts else lse

    # any Tuning (tiles of 256 tokens, 1024 splits), and 599 more for the LSE of a light part
    additions = tokens / 16 + 1920
    eta = EXP2 + 2 * 256 * math.log(2.0) * 2.0**-24 + additions * 2.0**-24 + 2.0**-20
    if cells:
        merge_kernel[(cells,)](
            first.out, first.lse, stack([r.log_a for r in first.readings]), stack([r.c_max for r in first.readings]),
            second.out, second.lse, stack([r.log_a for r in second.readings]), stack([r.c_max for r in second.readings]),
            out, lse, log_a, c_max, value, cells, max(1, other), eta, D=d, METERS=count,
            num_warps=1, enable_fp_fusion=False,
        )  # fmt: skip
    readings = []
    for i, r in enumerate(first.readings):
        delta = min(r.meter.delta + second.readings[i % other].meter.delta, 1.0 - 2.0**-53)
        label: type[Labelled] = type(r.meter)
        readings.append(Reading(label(each[i][0], f"{r.meter.theorem} + lse_merge", delta), log_a[i], each[i][1]))
    return DecodeOutput(out, lse, tuple(readings))
