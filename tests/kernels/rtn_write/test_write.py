"""INT8 writes without dither: what the scheme rtn_int8 serves, in the same layout."""

from fractions import Fraction

import pytest
import torch

from tests.kernels.stores import DEVICE, POOLS, bits, clone, hard_tokens, poisoned_store, some_slots
from witcert.errors import InputError
from witcert.kernels.formats import Dither
from witcert.kernels.rtn_write import rtn_write
from witcert.kernels.rtn_write.reference import int8_write_reference, served_tokens
from witcert.schemes.grid import STEP
from witcert.schemes.rtn import RoundToNearest
from witcert.witness import Bands, witness

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's, on NaN and overflow


@pytest.mark.parametrize(
    ("head_dim", "page", "pairs", "dtype"),
    [(64, 1, 2, torch.float16), (128, 16, 0, torch.bfloat16), (256, 16, 16, torch.float16), (64, 16, 0, torch.float32)],
)
def test_same_bits_as_the_reference(head_dim: int, page: int, pairs: int, dtype: torch.dtype) -> None:
    store = poisoned_store(2, head_dim, page, 32 // page, pairs=pairs)
    expected = clone(store)
    k, v = hard_tokens(19, 2, head_dim, dtype), hard_tokens(19, 2, head_dim, dtype)
    slots = some_slots(19, 32, torch.int32)
    slots[13] = -1
    rtn_write(k, v, slots, store)
    int8_write_reference(k, v, slots, expected)
    for name in POOLS[:-1]:
        if getattr(store, name) is not None:
            assert torch.equal(bits(getattr(store, name)), bits(getattr(expected, name))), name


def test_serves_what_the_scheme_serves() -> None:
    """s * n, read out of the store, is the output of rtn_int8 but for the sign of 0, within half a step of x."""
    store = poisoned_store(2, 64, 16, 2)
    k, v = hard_tokens(16, 2, 64, torch.float16), torch.randn(16, 2, 64, device=DEVICE).bfloat16()
    slots = some_slots(16, 32)
    rtn_write(k, v, slots, store)
    for x, codes, scales in ((k, store.k_code, store.k_scale), (v, store.v_code, store.v_scale)):
        s = scales[slots // 16, :, slots % 16].float().repeat_interleave(32, -1)
        x_hat = torch.where(s.isfinite(), codes[slots // 16, :, slots % 16].float() * s, torch.nan).cpu()
        served = RoundToNearest(8)(x.cpu().float().transpose(0, 1)).x_hat.transpose(0, 1)
        assert torch.equal(x_hat.nan_to_num(0.125), served.nan_to_num(0.125))
        for exact, read, scale in zip(
            x.flatten().tolist(), x_hat.flatten().tolist(), s.flatten().tolist(), strict=True
        ):
            if read == read:
                assert abs(Fraction(read) - Fraction(exact)) <= Fraction(scale) * Fraction(STEP) / 2


@pytest.mark.parametrize("gamma", [0.0, 2.0**-10])
def test_fused_witness(gamma: float) -> None:
    store = poisoned_store(2, 64, 16, 2, pairs=4, bands=8)
    k = hard_tokens(16, 2, 64, torch.float16)
    slots = some_slots(16, 32)
    rtn_write(k, k, slots, store, gamma=gamma)
    assert store.witness is not None
    w = store.witness[slots // 16, :, slots % 16]
    floor = witness(k, served_tokens(k, slots, store, "k"), Bands(64, 8), gamma)
    assert bool((w >= floor).all())
    assert bool((w.view(torch.int16) <= floor.view(torch.int16) + 1).all())


def test_refuses_a_dithered_store() -> None:
    k = torch.zeros(4, 2, 64, device=DEVICE, dtype=torch.float16)
    with pytest.raises(InputError, match="dither_int8_write"):
        rtn_write(k, k, torch.arange(4, device=DEVICE), poisoned_store(2, 64, 16, 2, dither=Dither(seed=1, layer=0)))
