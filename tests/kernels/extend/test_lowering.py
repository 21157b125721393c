"""What the compiler makes of extend for a Hopper GPU, without one: it compiles, fits, and flushes only what it may.

Triton lowers ``tl.exp2``, ``tl.sqrt``, ``tl.ceil`` and ``tl.log2`` to instructions that flush subnormals, which the budget
knows. Every other instruction must keep them, no product and sum may be contracted but those that are written out as
fused, and the matrix products of the output path must be the same ones whichever meter is read.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.kernels.lowering import output_of

SCRIPT = """
import json, re, sys
from tests.kernels.lowering import build
from witcert.kernels.extend.kernel import extend_kernel as kernel
from witcert.kernels.extend.launch import _tile

def compiled(kind, d, group, rows, meter, options, half="fp16", bands=16, heads=2, part=-1, own=True):
    packed, out = kind != "exact", 2 * int(kind.partition("m")[2] or 0) if kind != "exact" else 0
    rounds = 7 if kind.startswith("dither") else 0
    m, n, warps = _tile(d, rows, packed, heads)
    constants = dict(HKV=2, G=group, D=d, M=m, N=n, PAGE=16, PACKED=packed, K_ROUNDS=rounds, V_ROUNDS=rounds, OUT=out,
                     METER=meter, NB=bands, HALF=True, WINDOW=options, CAP=options, SINK=options, PART=part, OWN=own,
                     INTERPRET=False)
    pointers = {name: half for name in ("q_ptr", "k_ptr", "v_ptr", "out_ptr")}
    pointers |= {name: "i8" if packed else half for name in ("k_pool", "v_pool")}
    pointers |= {name: "fp16" for name in ("k_scale", "v_scale", "witness_ptr", "outlier_pool")}
    pointers |= {name: "i32" for name in ("lens_ptr", "pages_ptr", "prefix_ptr", "outlier_ptr", "epochs_ptr")}
    pointers |= {name: "fp32" for name in ("sink_ptr", "lse_ptr", "log_a_ptr", "c_ptr", "meter_ptr")}
    pointers |= {"part_ptr": "u8"}
    integers = ("chunk", "cells", "page_stride", "window", "key_low", "key_high", "layer")
    floats = set(kernel.arg_names) - set(pointers) - set(integers)
    made = build(kernel, constants, pointers, floats=floats, num_warps=warps, num_stages=1, enable_fp_fusion=False)
    ptx = made.asm["ptx"]
    flushing = re.findall(r"\\b\\S*\\.ftz\\S*", ptx)
    products = sorted(re.findall(r"(?:mma\\.sync|wgmma\\.mma_async)\\S*", ptx))
    return dict(shared=made.metadata.shared, products=products, fused=len(re.findall(r"\\bfma\\.rn\\.f32", ptx)),
                logarithm=flushing.count("fma.rn.ftz.f32"), flushing=sorted(set(flushing)))

print(json.dumps([compiled(*arguments) for arguments in json.loads(sys.argv[1])]))
"""

SHARED = 232448
"""Bytes of shared memory that one program may have (compute capability 9.0)."""
FLUSHING = ["cvt.rpi.ftz.f32.f32", "ex2.approx.ftz.f32", "fma.rn.ftz.f32", "sqrt.approx.ftz.f32"]
"""Of ceil, exp2, log2 (a polynomial) and sqrt."""


def compiled(*arguments: list[Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(output_of(SCRIPT, json.dumps(arguments)).splitlines()[-1])
    for one in found:
        assert 0 < one["shared"] <= SHARED
        assert set(one["flushing"]) <= set(FLUSHING), one["flushing"]
    return found


@pytest.mark.parametrize(("kind", "meter"), [("exact", 1), ("rtn", 2), ("dither m4", 3)])
def test_the_output_path_is_the_same_with_a_meter(kind: str, meter: int) -> None:
    """Its matrix products are those of the kernel without meter, to which only a band meter adds; nothing is contracted."""
    heads = 128 if meter == 3 else 2  # with many heads, the largest tiles
    off, on = compiled(*[[kind, 64, 4, 512, m, True, "fp16", 16, heads] for m in (0, meter)])
    rest = list(on["products"])
    for product in off["products"]:
        rest.remove(product)
    assert off["products"]
    assert bool(rest) == (meter == 1), rest
    # fused multiply-adds: none in the output path and under a band meter, those written out in half steps and radii
    assert off["fused"] == 0
    assert (on["fused"] > 0) == (meter > 1)
    # flushing ones: those of one logarithm (of the mass), and of one more for each reading
    assert off["logarithm"] > 0
    assert on["logarithm"] == off["logarithm"] * (2 if meter < 3 else 3)


def test_one_part_of_the_prefix() -> None:
    """A part changes no instruction of the products; without the chunk's own keys, its half of them is gone."""
    exact, part, second = compiled(*[["exact", 64, 4, 512, 1, False, "fp16", 16, 2, *x] for x in ((), (0,), (1, False))])
    assert part["products"] == exact["products"]
    # those of prefix and chunk each, and one of the band norms for the prefix alone
    assert len(exact["products"]) == 2 * len(second["products"]) - 1
    assert exact["fused"] == part["fused"] == second["fused"] == 0
    compiled(["dither m4", 128, 7, 512, 3, True, "fp16", 16, 2, 0], ["rtn", 64, 4, 16, 2, True, "bf16", 16, 2, 1, False])


@pytest.mark.parametrize(("kind", "group", "half"), [("exact", 1, "bf16"), ("dither m16", 16, "fp16")])
def test_the_largest_head(kind: str, group: int, half: str) -> None:
    """256 channels, the widest group, most outliers, window, cap and sink."""
    compiled([kind, 256, group, 64, 1 if kind == "exact" else 3, True, half, 8])
