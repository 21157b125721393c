"""Times tunings of the variants on one shape: ``python -m benchmarks.sweep VARIANT:TILE/WARPS/STAGES/SPLITS[/REGISTERS] ...``.

A development tool: it prints a line per tuning and writes nothing. SPLITS 0 lets decode choose. ``--jobs`` compiles first,
in that many processes; ``--shape`` is batch,tokens,kv_heads,group,head_dim.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from functools import partial

import torch

from benchmarks.cases import VARIANTS, Shape, page_table, queries, random_store, step
from benchmarks.timing import copy_bandwidth, timed
from witcert.kernels.decode import Tuning


def parse(text: str) -> tuple[str, Tuning]:
    """"int8+half:32/1/3/0" as a variant's name and a tuning."""
    name, _, rest = text.rpartition(":")
    tile, warps, stages, splits, *registers = (int(x) for x in rest.split("/"))
    return name, Tuning(tile, warps, stages, splits or None, registers[0] if registers else None)


def compile_only(names: list[str], shape: Shape, page_size: int) -> None:
    """Compile what the list needs by one tiny step each."""
    small = Shape(1, 256, shape.kv_heads, shape.group, shape.head_dim)
    for name, tuning in map(parse, names):
        variant = next(v for v in VARIANTS if v.name == name)
        step(queries(small), random_store(small, variant, page_size), page_table(small, page_size), variant, small, tuning)
    torch.cuda.synchronize()


def main() -> None:
    """Parse, compile in parallel, time one by one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--shape", default="16,32768,4,7,128")
    parser.add_argument("--page", type=int, default=16)
    parser.add_argument("--contiguous", action="store_true", help="pages in order instead of shuffled")
    parser.add_argument("--jobs", type=int, default=0)
    parser.add_argument("--compile-only", action="store_true")
    args = parser.parse_args()
    shape = Shape(*(int(x) for x in args.shape.split(",")))
    if args.compile_only:
        compile_only(args.names, shape, args.page)
        return
    if args.jobs:
        base = [sys.executable, "-m", "benchmarks.sweep", "--compile-only", "--shape", args.shape, "--page", str(args.page)]
        parts = [args.names[i :: args.jobs] for i in range(args.jobs)]
        running = [subprocess.Popen([*base, *part], env=os.environ) for part in parts if part]
        for process in running:
            process.wait()
    copy = copy_bandwidth()
    print(f"{torch.cuda.get_device_name()}, copy {copy / 1e9:.0f} GB/s, {shape.name}, page {args.page}")
    table, q = page_table(shape, args.page), queries(shape)
    if args.contiguous:
        table.pages.copy_(torch.arange(table.pages.numel(), device="cuda").view(table.pages.shape))
    made, store = None, None
    base_time = None
    for name, tuning in map(parse, args.names):
        variant = next(v for v in VARIANTS if v.name == name)
        if made != name:
            store = None
            store = random_store(shape, variant, args.page)
            made = name
        assert store is not None
        try:
            t = timed([partial(step, q, store, table, variant, shape, tuning)], repeats=10)
        except Exception as error:
            print(f"{name:26s} {tuning}: {type(error).__name__} {str(error)[:100]}")
            continue
        base_time = base_time or t.seconds
        size = shape.read(store.bytes_per_token)
        print(
            f"{name:26s} T{tuning.tile:<4d} w{tuning.warps} st{tuning.stages} sp{tuning.splits or 0:<4d} "
            f"r{tuning.registers or 0:<4d}{t.seconds * 1e6:9.1f} us {size / t.seconds / 1e9:6.0f} GB/s "
            f"{size / t.seconds / copy:5.3f} of copy, {t.seconds / base_time:5.3f} of first, spread {t.spread:.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
