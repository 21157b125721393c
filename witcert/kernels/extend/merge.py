"""Merge of two extends of the same chunk over the two parts of its prefix (``lse_merge``): decode's merge, query by query."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from witcert.errors import InputError
from witcert.kernels.decode import DecodeOutput, Reading, merge
from witcert.kernels.extend.launch import ExtendOutput

__all__ = ["as_decodes", "as_extend", "merge_extend"]


def _shaped(reading: Reading, *shape: int) -> Reading:
    """The reading with tensors of this shape."""

    def view(x: Tensor) -> Tensor:
        return x.reshape(shape)

    return replace(reading, meter=reading.meter.map(view), log_a=view(reading.log_a), c_max=view(reading.c_max))


def as_decodes(output: ExtendOutput) -> DecodeOutput:
    """Every query of the chunk as a decode step of its own, [batch * C, Hq, ...]."""
    batch, chunk, heads, d = output.out.shape
    readings = tuple(_shaped(r, batch * chunk, heads) for r in output.readings)
    return DecodeOutput(output.out.reshape(-1, heads, d), output.lse.reshape(-1, heads), readings)


def as_extend(output: DecodeOutput, batch: int, chunk: int) -> ExtendOutput:
    """The inverse of :func:`as_decodes`."""
    heads, d = output.out.shape[1:]
    readings = tuple(_shaped(r, batch, chunk, heads) for r in output.readings)
    return ExtendOutput(output.out.view(batch, chunk, heads, d), output.lse.view(batch, chunk, heads), readings)


def merge_extend(first: ExtendOutput, second: ExtendOutput, *, tokens: int) -> ExtendOutput:
    """One output from two extends of the same chunk whose keys have no token in common.

    Parameters
    ----------
    first, second : outputs of ``extend`` with the same q, lens, scale, window and soft cap, over the two parts of a prefix. The
        chunk's own keys and the sinks are given to one of the two (``own``). Readings: as :func:`witcert.kernels.decode.merge`
        asks of its arguments.
    tokens : most tokens of a prefix (``table.max_tokens``, 0 if there are none); with the chunk at most 2^24.

    Returns output, LSE and one reading for each of first's, with first's label: an upper bound on the total variation of
    every whole cell. No host synchronization, capturable.
    """
    for side, x in (("first", first), ("second", second)):
        if not isinstance(x, ExtendOutput):
            raise InputError(f"{side} is {type(x).__name__}; expected an ExtendOutput")
    if first.out.shape != second.out.shape:
        raise InputError(f"second is {tuple(second.out.shape)}; expected {tuple(first.out.shape)}")
    if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 0:
        raise InputError(f"tokens={tokens!r} is not a whole number >= 0")
    batch, chunk = first.out.shape[:2]
    # The sums of an extend run over prefix and chunk, in tiles of at least 16 tokens as those of decode.
    return as_extend(merge(as_decodes(first), as_decodes(second), tokens=tokens + chunk), batch, chunk)
