"""Capacity: tokens that a GiB of device memory holds in every format, computed to the byte and measured."""

from __future__ import annotations

import gc
from typing import Any

import torch
from torch import Tensor

from experiments import style
from experiments.common import Setting
from witcert.store import CachePool, PoolConfig

NAME = "capacity"
ORDER = 13
QUESTION = "How many tokens does a GiB hold in each format, with witness, tags and all?"
METHOD = (
    "For each format the largest pool within a budget of device memory is computed from the layout alone "
    "(PoolConfig), then made: the bytes of its tensors are added up, and on a GPU the growth of the allocator is read "
    "beside it. The computed number and the sum of the tensors must agree to the byte. The yardstick is a cache of "
    "16-bit keys and values and nothing else."
)
LIMITS = (
    "Side pages for repairs, page tables and the kernels' scratch memory are left out of the tokens per GiB (side "
    "pages by the choice of zero); a gate on a packed format needs some, and every gate needs a host copy of the "
    "exact cache, whose bytes are listed apart. Capacity says nothing about quality or speed."
)
OPTIONS: dict[str, Any] = {"budget_mib": 1024}
SHAPES: dict[str, dict[str, Any]] = {
    "SmolLM2-135M": {"layers": 30, "heads": 9, "kv_heads": 3, "head_dim": 64},
    "28 layers, 4 KV heads, d 128": {"layers": 28, "heads": 28, "kv_heads": 4, "head_dim": 128},
}
PACKED = ("int8", "int8-dither")


def _outliers(layers: int, kv_heads: int, head_dim: int, pairs: int) -> Tensor | None:
    """The first pairs of every head; which ones they are changes no byte."""
    if not pairs:
        return None
    first = torch.arange(pairs, dtype=torch.int32)
    return torch.cat((first, first + head_dim // 2)).expand(layers, kv_heads, -1).contiguous()


def formats(shape: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """What is measured of each shape: name and the fields of its PoolConfig."""
    out: list[tuple[str, dict[str, Any]]] = [
        ("exact, no witness", {"format": "exact", "bands": None, "tags": False}),
        ("exact + witness (16 bands)", {"format": "exact", "tags": False}),
        ("exact + witness (8 bands)", {"format": "exact", "bands": 8, "tags": False}),
        ("scheme + witness + tags", {"format": "scheme", "scheme": "rtn_int4"}),
    ]
    for name in PACKED:
        for pairs in (0, 2, 4, 8, 16):
            channels = _outliers(shape["layers"], shape["kv_heads"], shape["head_dim"], pairs)
            out.append((f"{name}, m = {pairs}", {"format": name, "bands": None, "tags": False, "outlier_channels": channels}))
        out.append((f"{name} + witness", {"format": name, "tags": False}))
        out.append((f"{name} + witness + tags", {"format": name}))
    return out


def _measure(config: PoolConfig, device: str) -> dict[str, Any]:
    """Bytes of a pool that was really made."""
    gc.collect()
    cuda = device == "cuda"
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.synchronize()
    before = torch.cuda.memory_allocated() if cuda else 0
    pool = CachePool(config, device)
    grown = torch.cuda.memory_allocated() - before if cuda else None
    parts = pool.account()
    tensors = int(parts["device"] - parts["tables"])
    del pool
    return {"tensor_bytes": tensors, "allocated_bytes": grown}


def run(setting: Setting) -> dict[str, Any]:
    """Every shape and format."""
    mib = setting.option("budget_mib", OPTIONS["budget_mib"])
    if setting.device == "cpu" and "budget_mib" not in setting.options:
        mib = 4 if setting.quick else 64
    budget, rows, wrong = mib * 2**20, [], 0
    for shape_name, shape in SHAPES.items():
        plain = 4 * shape["layers"] * shape["kv_heads"] * shape["head_dim"]
        for name, fields in formats(shape):
            config = PoolConfig.from_bytes(budget, **shape, tokens=4096, **fields)
            got = _measure(config, setting.device)
            backed = PoolConfig(**shape, pages=1, tokens=4096, backing=True, **fields)
            agrees = got["tensor_bytes"] == config.device_bytes <= budget
            wrong += not agrees
            rows.append({
                "shape": shape_name, "format": name, "tokens": config.slots, "bytes_computed": config.device_bytes, **got,
                "agrees": agrees, "bytes_per_token": 2**30 / config.tokens_per_gib,
                "tokens_per_gib": config.tokens_per_gib, "over_16_bit": config.tokens_per_gib * plain / 2**30,
                "host_bytes_per_token": backed.host_bytes / backed.slots,
            })  # fmt: skip
        setting.say(f"{shape_name}: {len(rows)} pools made")
    return {"violations": 0, "disagreements": wrong, "budget_bytes": budget, "rows": rows, "guarantee": "measured"}


def draw(result: dict[str, Any]) -> Any:
    """Tokens against a plain 16-bit cache."""
    shapes = list(dict.fromkeys(r["shape"] for r in result["rows"]))
    figure, panels = style.axes(len(shapes), width=5.2, height=4.4)
    for axis, shape in zip(panels, shapes, strict=True):
        of = [r for r in result["rows"] if r["shape"] == shape][::-1]
        colours = [style.CURVES[0] if r["over_16_bit"] > 1 else style.GREY for r in of]
        axis.barh([r["format"] for r in of], [r["over_16_bit"] for r in of], color=colours)
        axis.axvline(1.0, color="black", lw=0.8)
        axis.set(xlabel="tokens per GiB, as a multiple of a 16-bit cache", title=shape)
        axis.tick_params(axis="y", labelsize=7)
    return figure


def describe(result: dict[str, Any]) -> str:
    """The table, and whether computed and measured bytes agree."""
    rows = [
        (r["shape"], r["format"], f"{r['bytes_per_token']:.1f}", f"{r['tokens_per_gib']:,.0f}", f"{r['over_16_bit']:.3f}",
         "not read" if r["allocated_bytes"] is None else f"{100 * (r['allocated_bytes'] / r['bytes_computed'] - 1):+.3f} %",
         f"{r['host_bytes_per_token']:.0f}")
        for r in result["rows"]
    ]  # fmt: skip
    heads = ("shape", "format", "bytes a token", "tokens per GiB", "against 16 bits", "allocator against computed",
             "host bytes a token, if backed")  # fmt: skip
    wrong = result["disagreements"]
    verdict = "agree to the byte for every pool" if not wrong else f"DISAGREE for {wrong} pools"
    return (
        f"{style.table(heads, rows)}\n\nBytes computed from the layout and bytes of the tensors that were made "
        f"{verdict} ({len(rows)} pools, budget {result['budget_bytes'] / 2**20:.0f} MiB each; {result['guarantee']}). "
        "Bytes a token count every layer."
    )
