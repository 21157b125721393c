"""Sums over blocks of tokens: those of the reference's weights and bounds, and together the whole cell."""

from __future__ import annotations

import math

import pytest
import torch

from witcert.errors import InputError
from witcert.kernels.decode import PagePart, decode
from witcert.kernels.decode.reference import decode_reference

from .common import DEVICE, make


@pytest.mark.parametrize("block", [16, 32])
@pytest.mark.parametrize("variant", ["exact-band", "int8-half", "dither-m2-tierB"])
def test_blocks_are_the_reference_by_block(variant: str, block: int) -> None:
    """2 head dims of blocks, 4 lengths with an empty one; every mass within 1e-3, every bound not below."""
    lens = [35, 1, 0, 64]
    case, meter = make(variant, lens, 2, 2, 64, 16)
    got = decode(case.q, case.store, case.table, scale=case.scale, meter=meter, blocks=block)
    rows = decode_reference(case.q, case.store, case.table, scale=case.scale, meter=meter)
    assert got.blocks is not None
    assert got.blocks.shape == (4, 4, math.ceil(64 / block), 8)
    for b, n in enumerate(lens):
        for h in range(4):
            cell = rows[b][h]
            reference = got.blocks[b, h, :, 0].double() * math.log(2) - got.lse[b, h].double()
            for j in range(got.blocks.shape[2]):
                part = slice(j * block, min((j + 1) * block, n))
                p = cell.p[part].cpu()
                unit = 0.0 if part.start >= n else math.exp(float(reference[j]))
                mass = float(got.blocks[b, h, j, 1]) * unit
                assert mass == pytest.approx(float(p.sum()), rel=1e-3, abs=1e-7)
                for i, c in enumerate(cell.bounds):
                    c = c[part].cpu()
                    up = float((p * c.exp()).sum())
                    assert float(got.blocks[b, h, j, 2 + 2 * i]) * unit >= up * (1 - 1e-4)
                    if len(c):
                        assert float(got.blocks[b, h, j, 3 + 2 * i]) * math.log(2) >= float(c.max())


def test_blocks_of_a_part_and_refusals() -> None:
    case, meter = make("int8-half", [40], 1, 2, 64, 16)
    parts = torch.tensor([[[0, 1, 0]]], dtype=torch.uint8, device=DEVICE)
    got = decode(case.q, case.store, case.table, scale=case.scale, meter=meter, part=PagePart(parts, 0), blocks=16)
    assert got.blocks is not None
    assert (got.blocks[0, :, 1, 1:4] == 0).all()
    assert (got.blocks[0, :, 0, 1] > 0).all()
    with pytest.raises(InputError, match="blocks=24"):
        decode(case.q, case.store, case.table, scale=case.scale, meter=meter, blocks=24)
    with pytest.raises(InputError, match="no window"):
        decode(case.q, case.store, case.table, scale=case.scale, meter=meter, blocks=16, window=8)
