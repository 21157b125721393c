"""The check without which no time is reported: every variant against float64 on the GPU that measures."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from benchmarks.cases import VARIANTS, Shape, Variant, page_table, queries, random_store, step
from witcert.kernels.decode import decode
from witcert.kernels.decode.reference import decode_reference


@dataclass(frozen=True)
class Check:
    """One variant on one small shape: relative error of the output, least excess of a meter over the reference's."""

    variant: str
    shape: str
    error: float
    excess: float | None
    same_without_meter: bool

    @property
    def passed(self) -> bool:
        return self.error < 2e-3 and (self.excess is None or self.excess >= 0.0) and self.same_without_meter


def check(variant: Variant, shape: Shape, page_size: int) -> Check:
    """Run the variant with the tuning that is measured and compare every cell."""
    store, table, q = random_store(shape, variant, page_size), page_table(shape, page_size), queries(shape)
    table.seq_lens[0] = shape.tokens - 7
    got = step(q, store, table, variant, shape)
    bare = decode(q, store, table, scale=shape.head_dim**-0.5)
    want = decode_reference(q, store, table, scale=shape.head_dim**-0.5, meter=variant.meter_of(shape))
    out = torch.stack([torch.stack([cell.out for cell in row]) for row in want])
    error = float((got.out.double() - out).norm() / out.norm())
    excess: float | None = None
    for i, reading in enumerate(got.readings):
        meters = torch.stack([torch.stack([cell.meters[i] for cell in row]) for row in want]).to(q.device)
        least = float((torch.as_tensor(reading.meter.value).double() - meters).min())
        excess = least if excess is None or not least >= excess else excess  # a NaN stays and fails the check
    return Check(variant.name, shape.name, error, excess, torch.equal(got.out, bare.out))


def check_all() -> list[Check]:
    """Every variant on the three head geometries that are measured, one page size each."""
    out = []
    for i, (heads, group, d) in enumerate(((4, 7, 128), (8, 4, 128), (3, 3, 64))):
        shape = Shape(2, 1040, heads, group, d)
        out += [check(variant, shape, 16 if i != 1 else 1) for variant in VARIANTS]
    return out
