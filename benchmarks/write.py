"""Write kernels against a plain copy: ``python -m benchmarks.write``, or ``cases()`` and ``measure()`` from a runner.

A case is one launch over new tokens of one layer. Its bytes are what it must move: keys and values read once, everything
that the store keeps written once, the slot map read once. The share is those bytes per second over the bandwidth of a
large device-to-device copy in the same process. A case whose check is red reports no speed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor

from benchmarks.timing import copy_bandwidth, timed
from witcert.kernels.dither_int8_write import dither_int8_write
from witcert.kernels.dither_int8_write.reference import int8_write_reference
from witcert.kernels.formats import Dither, PackedStore
from witcert.kernels.rtn_write import rtn_write
from witcert.kernels.witness_write import witness_write
from witcert.kernels.witness_write.reference import witness_write_reference

__all__ = ["MUST", "WriteCase", "cases", "measure"]

MUST, AIM = 0.60, 0.80
"""Share of copy bandwidth that a write kernel must reach, and the share to aim at."""
GAMMA = 2.0**-12
CHECKED = 2048
"""Tokens whose results are compared with the reference before anything is timed."""
POOLS = ("k_code", "k_scale", "v_code", "v_scale", "k_outlier")


@dataclass(frozen=True)
class WriteCase:
    """One write kernel on one shape.

    Parameters
    ----------
    name : kernel and options.
    tokens, kv_heads, head_dim : new tokens of one layer.
    dither : of the codes, or None for round-to-nearest.
    pairs, bands : outlier pairs and witness bands of the packed store.
    exact : the case is ``witness_write`` on fp16 keys instead.
    """

    name: str
    tokens: int
    kv_heads: int
    head_dim: int
    dither: Dither | None = None
    pairs: int = 0
    bands: int | None = None
    exact: bool = False

    @property
    def rows(self) -> int:
        """Tokens times KV heads."""
        return self.tokens * self.kv_heads

    @property
    def bytes(self) -> int:
        """Bytes that the launch must move."""
        d, witness = self.head_dim, 2 * (self.bands or 0)
        slots = 8 * self.tokens
        if self.exact:
            return self.rows * (4 * d + witness) + slots
        epochs = 0 if self.dither is None else 4 * self.tokens
        return self.rows * (4 * d + 2 * (d + d // 16) + 4 * self.pairs + witness) + slots + epochs

    def keys(self, tokens: int) -> Tensor:
        """Random fp16 keys or values."""
        return torch.randn(tokens, self.kv_heads, self.head_dim, device="cuda").half()

    def store(self, tokens: int) -> PackedStore:
        """An unwritten packed store with room for the tokens."""
        channels = None
        if self.pairs:
            first = torch.stack([torch.randperm(self.head_dim // 2)[: self.pairs] for _ in range(self.kv_heads)])
            channels = torch.cat((first, first + self.head_dim // 2), -1).int().cuda()
        return PackedStore.empty(
            -(-tokens // 16), self.kv_heads, self.head_dim, 16,
            dither=self.dither, outlier_channels=channels, bands=self.bands, device="cuda",
        )  # fmt: skip

    def launch(self, tokens: int) -> tuple[Callable[[], None], Callable[[], bool]]:
        """A launch over that many tokens, and a check of what the launch left against the reference."""
        slots = torch.randperm(-(-tokens // 16), device="cuda").repeat_interleave(16) * 16
        slots = (slots + torch.arange(16, device="cuda").repeat(len(slots) // 16))[:tokens].contiguous()
        k, v = self.keys(tokens), self.keys(tokens)
        if self.exact:
            bands = self.bands or 16
            out = torch.zeros(len(slots) + 16, self.kv_heads, bands, dtype=torch.float16, device="cuda")
            expected = out.clone()

            def check_witness() -> bool:
                witness_write_reference(k, v, slots, expected, gamma=GAMMA)
                return _one_step_above(out, expected)

            return lambda: witness_write(k, v, slots, out, gamma=GAMMA), check_witness
        store, other = self.store(tokens), self.store(tokens)
        if store.outlier_channels is not None and other.outlier_channels is not None:
            other.outlier_channels.copy_(store.outlier_channels)
        write = rtn_write if self.dither is None else dither_int8_write
        gamma = GAMMA if self.bands else 0.0

        def check_codes() -> bool:
            int8_write_reference(k, v, slots, other, gamma=gamma)
            index = (slots // 16, slice(None), slots % 16)
            pools = [(getattr(store, name), getattr(other, name)) for name in POOLS]
            same = all(torch.equal(a[index], b[index]) for a, b in pools if a is not None)
            if store.witness is None or other.witness is None:
                return same
            return same and _one_step_above(store.witness[index], other.witness[index])

        return lambda: write(k, v, slots, store, gamma=gamma), check_codes


def _one_step_above(got: Tensor, floor: Tensor) -> bool:
    """Whether each float16 is the reference or the next one up."""
    steps = got.view(torch.int16).int() - floor.view(torch.int16).int()
    return bool(((steps == 0) | (steps == 1)).all())


def cases(tokens: int = 2**17) -> list[WriteCase]:
    """Every write kernel at the shapes of the decode benchmark: (KV heads, d) = (4, 128), (8, 128), (3, 64)."""
    out = []
    for heads, d in ((4, 128), (8, 128), (3, 64)):
        dither = Dither(20261129, 3)
        shape = (tokens, heads, d)
        out += [
            WriteCase("witness fp16 B16", *shape, bands=16, exact=True),
            WriteCase("int8", *shape),
            WriteCase("int8+TierA", *shape, bands=16),
            WriteCase("int8 dither KV", *shape, dither=dither),
            WriteCase("int8 dither K", *shape, dither=Dither(20261129, 3, values=False)),
            WriteCase("int8 dither KV 10 rounds", *shape, dither=Dither(20261129, 3, rounds=10)),
            WriteCase("int8 dither KV m4", *shape, dither=dither, pairs=4),
            WriteCase("int8 dither KV m4+TierA", *shape, dither=dither, pairs=4, bands=16),
        ]
    return out


def measure(case: WriteCase, copy: float) -> dict[str, Any]:
    """Check the case against its reference, then time it; copy is the bandwidth of a copy in bytes per second."""
    torch.manual_seed(20261129)
    record: dict[str, Any] = {
        "name": case.name, "tokens": case.tokens, "kv_heads": case.kv_heads, "head_dim": case.head_dim,
        "bytes": case.bytes,
    }  # fmt: skip
    launch, check = case.launch(CHECKED + 5)
    launch()
    if not check():
        return record | {"correct": False}
    launch, _ = case.launch(case.tokens)
    timing = timed([launch])
    rate = case.bytes / timing.seconds
    return record | {
        "correct": True, "seconds": timing.seconds, "spread": timing.spread, "bytes_per_second": rate,
        "share_of_copy": rate / copy,
    }  # fmt: skip


def compile_in_parallel(jobs: int) -> None:
    """Compile every case in that many processes, which share the compiler's cache on disk."""
    base = [sys.executable, "-m", "benchmarks.write", "--compile-part"]
    for process in [subprocess.Popen([*base, str(i), str(jobs)]) for i in range(jobs)]:
        process.wait()


def main() -> int:
    """Measure every case, print a table, write JSON; exit code 1 if a check is red or a share is below ``MUST``."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.write", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/write.json"))
    parser.add_argument("--jobs", type=int, default=0, help="compile first, in this many processes")
    parser.add_argument("--compile-part", type=int, nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("benchmarks.write needs a CUDA GPU; none was found")
        return 2
    if arguments.compile_part:
        first, step = arguments.compile_part
        for case in cases()[first::step]:
            case.launch(CHECKED + 5)[0]()
        torch.cuda.synchronize()
        return 0
    if arguments.jobs:
        compile_in_parallel(arguments.jobs)
    copy = copy_bandwidth()
    print(f"copy {copy / 1e9:.0f} GB/s on {torch.cuda.get_device_name()}")
    records = []
    for case in cases():
        record = measure(case, copy)
        records.append(record)
        shape = f"({case.kv_heads}, {case.head_dim})"
        if record["correct"]:
            text = f"{record['seconds'] * 1e6:9.1f} us  {record['share_of_copy']:.3f} of copy  +-{record['spread']:.3f}"
        else:
            text = "check is RED: no speed reported"
        print(f"{case.name:<26} {shape:<9} {text}", flush=True)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    whole = {
        "command": "python -m benchmarks.write", "device": torch.cuda.get_device_name(), "torch": torch.__version__,
        "triton": triton.__version__, "copy_bytes_per_second": copy, "must": MUST, "aim": AIM, "cases": records,
    }  # fmt: skip
    arguments.out.write_text(json.dumps(whole, indent=1) + "\n")
    return 0 if all(r["correct"] and r["share_of_copy"] >= MUST for r in records) else 1


if __name__ == "__main__":
    sys.exit(main())
