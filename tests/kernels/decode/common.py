"""What several decode tests share: the variants, the meters, stacking of reference cells."""

from __future__ import annotations

import torch
from torch import Tensor

from witcert.budget import Budget
from witcert.kernels.decode import BandMeter, HalfStepMeter, TierBMeter
from witcert.kernels.decode.launch import Meter
from witcert.kernels.decode.reference import Cell
from witcert.kernels.formats import Dither

from .build import Case, exact_case, packed_case

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BUDGET = Budget(layers=4, heads=8, kv_heads=2)
SEED = 2**63 + 20261129

VARIANTS = (
    "exact",
    "exact-bf16",
    "exact-band",
    "exact-band8-bf16",
    "int8-half",
    "int8-band",
    "int8-m4-half",
    "dither-half",
    "dither-tierB",
    "dither-values-tierB",
    "dither-m2-tierB",
    "dither-m16-bf16-tierB",
)


def make(variant: str, lens: list[int], hkv: int, group: int, d: int, page_size: int, kind: str = "normal",
         device: str = DEVICE) -> tuple[Case, Meter | None]:  # fmt: skip
    """A case of a variant and the meter that the variant reads."""
    parts = variant.split("-")
    dtype = torch.bfloat16 if "bf16" in parts else torch.float16
    pairs = next((int(p[1:]) for p in parts if p[0] == "m" and p[1:].isdigit()), 0)
    if parts[0] == "exact":
        bands = 8 if "band8" in parts else 16 if "band" in parts else None
        case = exact_case(lens, hkv, group, d, page_size, dtype, kind, bands, device=device)
        return case, BandMeter() if bands else None
    dither = None
    if parts[0] == "dither":
        rounds = 10 if pairs else 7
        dither = Dither(SEED, layer=3, rounds=rounds, values="values" in parts)
    bands = 16 if "band" in parts else None
    case = packed_case(lens, hkv, group, d, page_size, dtype, kind, dither, pairs, bands, device=device)
    meter: Meter = HalfStepMeter()
    if parts[-1] == "tierB":
        meter = TierBMeter(BUDGET, 4096)
    elif bands:
        meter = BandMeter()
    return case, meter


def stacked(rows: list[list[Cell]], what: str, index: int = 0) -> Tensor:
    """One field of every cell, [batch, Hq, ...]; of reading ``index`` for meters."""

    def of(cell: Cell) -> Tensor:
        value = getattr(cell, what)
        return (value[index] if isinstance(value, tuple) else value).cpu()

    return torch.stack([torch.stack([of(cell) for cell in row]) for row in rows])
