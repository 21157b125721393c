"""``python -m benchmarks``: check, measure every variant and baseline on every shape, print a table, write JSON."""

from __future__ import annotations

import argparse
import gc
import json
import shlex
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.baselines import BASELINES, fits
from benchmarks.cases import VARIANTS, Shape, page_table, queries, random_store, step
from benchmarks.check import check_all
from benchmarks.precompile import precompile
from benchmarks.timing import copy_bandwidth, rounds_for, timed

HEADS = ((4, 7, 128), (8, 4, 128), (3, 3, 64))
MEMORY = 0.45
"""Largest share of the device's memory that one fp16 store may take."""


def geometry(text: str) -> tuple[int, int, int]:
    """"4,7,128" as KV heads, query heads of each, channels of a head."""
    heads, group, head_dim = (int(x) for x in text.split(","))
    return heads, group, head_dim


def shapes(batches: list[int], tokens: list[int], heads: tuple[tuple[int, int, int], ...] = HEADS) -> list[Shape]:
    """All shapes whose fp16 store fits."""
    total = torch.cuda.get_device_properties(0).total_memory
    every = [Shape(b, s, *h) for h in heads for b in batches for s in tokens]
    return [x for x in every if 4 * x.head_dim * x.kv_heads * x.batch * x.tokens <= MEMORY * total]


def measure_baselines(shape: Shape, repeats: int) -> list[dict[str, Any]]:
    """Times of the other libraries; one that is absent or refuses is named with its reason."""
    rows: list[dict[str, Any]] = []
    if not fits(shape):
        return rows
    for name, build in BASELINES.items():
        try:
            size = (shape.batch, shape.kv_heads, shape.tokens, shape.head_dim)
            sets = min(4, rounds_for(shape.read(4 * shape.head_dim)))
            calls = []
            for _ in range(sets):
                k = torch.empty(size, dtype=torch.float16, device="cuda").normal_()
                calls.append(build(queries(shape), k, torch.empty_like(k).normal_(), shape))
            t = timed(calls, repeats)
            rows.append(row(shape, name, shape.read(4 * shape.head_dim), t.seconds, t.spread))
        except Exception as error:
            rows.append({"shape": shape.name, "variant": name, "skipped": f"{type(error).__name__}: {str(error)[:120]}"})
        gc.collect()
        torch.cuda.empty_cache()
    return rows


def row(shape: Shape, name: str, size: int, seconds: float, spread: float) -> dict[str, Any]:
    """One measurement; the ratios are filled in when the shape's fp16 time is known."""
    return {
        "shape": shape.name, "variant": name, "seconds": seconds, "spread": spread, "bytes": size,
        "gb_per_s": size / seconds / 1e9,
    }  # fmt: skip


def measure(shape: Shape, page_size: int, repeats: int) -> list[dict[str, Any]]:
    """Times of all variants on one shape."""
    rows = []
    table = page_table(shape, page_size)
    for variant in VARIANTS:
        size = shape.read(random_store(replace(shape, batch=1, tokens=16), variant, 16).bytes_per_token)
        sets = rounds_for(size)
        stores = [random_store(shape, variant, page_size) for _ in range(sets)]
        q = queries(shape)
        calls = [partial(step, q, store, table, variant, shape) for store in stores]
        t = timed(calls, repeats)
        rows.append(row(shape, variant.name, size, t.seconds, t.spread))
        del stores, calls
        gc.collect()
        torch.cuda.empty_cache()
    return rows


def main() -> int:
    """Exit code 0 after a report, 1 when the check is red, 2 without a CUDA device."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--out", type=Path, help="write the measurements as JSON")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--tokens", type=int, nargs="+", default=[4096, 32768, 131072])
    parser.add_argument("--heads", type=geometry, nargs="+", default=list(HEADS), help="KV heads,group,head_dim")
    parser.add_argument("--page-size", type=int, default=16, choices=(1, 16))
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--jobs", type=int, default=0, help="compile first, in this many processes")
    parser.add_argument("--no-baselines", action="store_true")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print(
            "benchmarks: NOT RUN, PyTorch sees no CUDA GPU here; use a machine with an NVIDIA GPU and a CUDA build of PyTorch",
            file=sys.stderr,
        )
        return 2
    torch.manual_seed(20261129)
    if args.jobs:
        for page_size in (16, 1):
            precompile(HEADS if page_size == args.page_size else HEADS[1:2], page_size, args.jobs)
    checks = check_all()
    for c in checks:
        if not c.passed:
            print(f"RED {c.variant} {c.shape}: error {c.error:.2e}, meter excess {c.excess}, {c.same_without_meter}")
    if not all(c.passed for c in checks):
        print("benchmarks: the check is red; no time is reported", file=sys.stderr)
        return 1
    print(f"check: {len(checks)} cases, worst error {max(c.error for c in checks):.1e}, no meter below its reference")
    copy = copy_bandwidth()
    rows: list[dict[str, Any]] = []
    print(f"{torch.cuda.get_device_name()}: copy {copy / 1e9:.0f} GB/s, page size {args.page_size}")
    print(f"{'shape':24s} {'variant':26s} {'us':>9s} {'GB/s':>6s} {'copy':>5s} {'fp16':>6s} {'floor':>6s} spread")
    for shape in shapes(args.batch, args.tokens, tuple(args.heads)):
        found = measure(shape, args.page_size, args.repeats)
        if not args.no_baselines:
            found += measure_baselines(shape, args.repeats)
        base = found[0]
        for r in found:
            if "skipped" in r:
                continue
            r["share_of_copy"] = r["gb_per_s"] * 1e9 / copy
            r["ratio_to_fp16"] = r["seconds"] / base["seconds"]
            r["bytes_ratio"] = r["bytes"] / base["bytes"]
            r["ratio_to_floor"] = r["seconds"] / (r["bytes"] / copy)
            print(
                f"{r['shape']:24s} {r['variant']:26s} {r['seconds'] * 1e6:9.1f} {r['gb_per_s']:6.0f} "
                f"{r['share_of_copy']:5.2f} {r['ratio_to_fp16']:6.3f} {r['ratio_to_floor']:6.2f} {r['spread']:.3f}",
                flush=True,
            )
        rows += found
        if args.out:
            write(args, copy, checks, rows)
    return 0


def write(args: argparse.Namespace, copy: float, checks: list[Any], rows: list[dict[str, Any]]) -> None:
    """The report so far, so that an interrupted run keeps what it measured."""
    import triton

    words = [w for i, w in enumerate(sys.argv) if i and w != "--out" and sys.argv[i - 1] != "--out"]
    report = {
        "command": "python -m benchmarks " + shlex.join(words),
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "copy_gb_per_s": copy / 1e9,
        "page_size": args.page_size,
        "checks": [vars(c) | {"passed": c.passed} for c in checks],
        "measurements": rows,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(report, indent=1, default=str) + "\n")


if __name__ == "__main__":
    sys.exit(main())
