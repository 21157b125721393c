"""What recording costs, as a share of a decode step: ``python -m benchmarks.telemetry``.

A step is, for every layer of a model, the seven matrix products of its size and the metered attention; norms, rotary
embedding, sampling and the cache's writes are left out, so that the share of a whole decode step is smaller than what is
printed. The share of the attention alone is printed beside it. Measured are

``gpu``    CUDA graphs of a step: without and with ``Telemetry.record`` after each layer, and the launches of the record alone
``host``   eager: Python time of the calls of ``record``, records on disk included, against that of the same eager step

both where every layer is decoded into its place of ``Telemetry.stage`` and, as ``general``, where the record has to copy the
readings of a step together first. The limit is for the first.

A case whose check is red reports no time: the record of the GPU must be that of the reference, bit for bit, the readings in
the stage those of a decode into new tensors, and a graph that is replayed n times must have counted n steps.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from benchmarks.cases import VARIANTS, Shape, Variant, page_table, queries, random_store
from benchmarks.timing import rounds_for, timed
from witcert.kernels.decode import DecodeOutput, ReadingBuffers, decode
from witcert.kernels.telemetry import StepRecord
from witcert.kernels.telemetry.step_reference import add_reference
from witcert.telemetry import Telemetry

__all__ = ["LIMIT", "TelemetryCase", "cases", "check", "measure"]

LIMIT = 0.01
"""Largest share of a decode step that recording may cost."""
TIERS = ("proved", "proved-nonadaptive")


@dataclass(frozen=True)
class TelemetryCase:
    """A model on one shape, read by one variant; hidden, inner: width of the model and of its feed-forward layers."""

    layers: int
    hidden: int
    inner: int
    shape: Shape
    variant: Variant

    @property
    def name(self) -> str:
        return f"L{self.layers}-{self.shape.name} {self.variant.name}"

    @property
    def readings(self) -> int:
        """Of one layer."""
        return 2 if self.variant.meter == "tierB" else 1


def cases(tokens: list[int], batch: list[int]) -> list[TelemetryCase]:
    """Layers and heads of SmolLM2-135M and of a 7B model with 4 KV heads; a witness, and dithered INT8."""
    named = {v.name: v for v in VARIANTS}
    return [
        TelemetryCase(*model, Shape(b, s, *heads), named[name])
        for model, heads in (((30, 576, 1536), (3, 3, 64)), ((28, 3584, 18944), (4, 7, 128)))
        for s in tokens
        for b in batch
        for name in ("fp16+TierA", "int8 dither KV+TierB")
    ]


def check(device: str = "cuda") -> str | None:
    """What is wrong with the record on this device, or None."""
    for rows, heads in ((1, 9), (16, 28), (70, 5)):
        kernel, reference = (StepRecord.empty(TIERS, 4, heads, tau=0.2, device=device) for _ in range(2))
        index = torch.randperm(8)[:5].to(device)
        for number in range(3):
            meter = torch.rand(5, rows, heads) ** 8
            meter.view(-1)[::3] = torch.randint(0, 0x3F800001, meter.view(-1)[::3].shape, dtype=torch.int32).view(torch.float32)
            c_max = torch.rand(5, rows, heads)
            meter[0, 0, :3], c_max[1, 0, :3] = torch.tensor([1.0, float("nan"), 0.0]), float("inf")
            stage = torch.stack((meter, c_max)).to(device)
            kernel.add(stage, index, token=number, stride=stage.numel())
            add_reference(reference, stage, index, token=number, stride=stage.numel())
        if not torch.equal(kernel.memory, reference.memory):
            return f"the record of {rows} rows of {heads} heads is not the reference's"
    return None


class Products:
    """The seven matrix products of each layer of a model, on random weights."""

    def __init__(self, case: TelemetryCase) -> None:
        s, h, f = case.shape, case.hidden, case.inner
        sizes = ((h, (s.kv_heads * (s.group + 2)) * s.head_dim), (s.kv_heads * s.group * s.head_dim, h), (h, 2 * f), (f, h))
        self.rows = [torch.randn(s.batch, i, device="cuda").half() for i, _ in sizes]
        self.weights = [
            [torch.empty(i, o, dtype=torch.float16, device="cuda").normal_(std=i**-0.5) for i, o in sizes]
            for _ in range(case.layers)
        ]

    def __call__(self, layer: int) -> list[Tensor]:
        """q, k and v are one product here, and so are gate and up, as serving engines do it."""
        return [x @ w for x, w in zip(self.rows, self.weights[layer], strict=True)]


Outputs = Callable[[int, ReadingBuffers | None], DecodeOutput]


def _loop(
    outputs: Outputs, case: TelemetryCase, telemetry: Telemetry | None, products: Products | None
) -> list[DecodeOutput]:
    """One step: every layer, with the model's products or without, recorded in the stage or not at all."""
    kept = []
    for layer in range(case.layers):
        out = outputs(layer, None if telemetry is None else telemetry.stage(layer, case.shape.batch, case.readings))
        if products is not None:
            products(layer)
        if telemetry is not None:
            telemetry.record(layer, out.readings)
        kept.append(out)
    return kept


def _record(held: list[DecodeOutput], case: TelemetryCase, telemetry: Telemetry, staged: bool) -> None:
    """Record one step that was computed before; staged: into the stage, so that its place is asked for too."""
    for layer, out in enumerate(held):
        if staged:
            telemetry.stage(layer, case.shape.batch, case.readings)
        telemetry.record(layer, out.readings)


def _same(staged: list[DecodeOutput], fresh: list[DecodeOutput]) -> bool:
    """Whether two steps have the same bits in all that is recorded."""
    return all(
        torch.equal(torch.as_tensor(a.meter.value), torch.as_tensor(b.meter.value)) and torch.equal(a.c_max, b.c_max)
        for x, y in zip(staged, fresh, strict=True)
        for a, b in zip(x.readings, y.readings, strict=True)
    )


def _host(work: Callable[[], Any], repeats: int) -> float:
    """Median seconds of the host for a call, with the device idle before each."""
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return float(median(times[len(times) // 4 :]))


def measure(case: TelemetryCase, repeats: int) -> dict[str, Any]:
    """Times and shares of one case."""
    shape, variant = case.shape, case.variant
    table, q = page_table(shape, 16), queries(shape)
    sets = min(case.layers, rounds_for(shape.read(4 * shape.head_dim)))
    stores = [random_store(shape, variant, 16) for _ in range(sets)]

    scale, meter = shape.head_dim**-0.5, variant.meter_of(shape)

    def outputs(layer: int, into: ReadingBuffers | None = None) -> DecodeOutput:
        return decode(q, stores[layer % sets], table, scale=scale, meter=meter, into=into)

    with Telemetry(case.layers, shape.kv_heads * shape.group, device="cuda") as telemetry:
        products = Products(case)
        attention = timed([partial(_loop, outputs, case, None, None)], repeats)
        bare = timed([partial(_loop, outputs, case, None, products)], repeats)
        before = telemetry.snapshot().steps
        full = timed([partial(_loop, outputs, case, telemetry, products)], repeats)
        counted = telemetry.snapshot()
        per_step = shape.batch * shape.kv_heads * shape.group
        cells = sum(int(t.cells.sum()) for t in counted.tiers)
        if counted.steps - before <= repeats or cells != counted.steps * case.layers * per_step * case.readings:
            raise RuntimeError(f"RED {case.name}: {counted.steps} steps and {cells} cells were counted")
        fresh, held = _loop(outputs, case, None, None), _loop(outputs, case, telemetry, None)
        if not _same(held, fresh):
            raise RuntimeError(f"RED {case.name}: the readings in the stage are not those of a decode into new tensors")
        alone = timed([partial(_record, held, case, telemetry, True)] * 8, repeats)
        general = timed([partial(_record, fresh, case, telemetry, False)] * 8, repeats)

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "run.jsonl"
        with Telemetry(case.layers, shape.kv_heads * shape.group, device="cuda", jsonl=file) as telemetry:
            eager = _host(partial(_loop, outputs, case, None, products), 40)
            held = _loop(outputs, case, telemetry, None)
            calls = _host(partial(_record, held, case, telemetry, True), 80)
            general_calls = _host(partial(_record, fresh, case, telemetry, False), 80)
    return {
        "case": case.name, "layers": case.layers, "shape": shape.name, "variant": variant.name,
        "gpu_step_seconds": bare.seconds, "gpu_step_spread": bare.spread,
        "gpu_recorded_seconds": full.seconds, "gpu_recorded_spread": full.spread,
        "gpu_attention_seconds": attention.seconds, "gpu_record_seconds": alone.seconds,
        "gpu_record_general_seconds": general.seconds, "gpu_share_general": general.seconds / bare.seconds,
        "gpu_share": alone.seconds / bare.seconds, "gpu_share_of_attention": alone.seconds / attention.seconds,
        "gpu_share_by_difference": full.seconds / bare.seconds - 1.0,
        "host_step_seconds": eager, "host_record_seconds": calls, "host_share": calls / eager,
        "host_record_general_seconds": general_calls, "host_share_general": general_calls / eager,
    }  # fmt: skip


def main() -> int:
    """Exit code 0 after a report, 1 when the check is red or a GPU share is above the limit, 2 without a CUDA device."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.telemetry", description=__doc__)
    parser.add_argument("--out", type=Path, help="write the measurements as JSON")
    parser.add_argument("--tokens", type=int, nargs="+", default=[4096, 32768])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--repeats", type=int, default=15)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("benchmarks.telemetry: NOT RUN, PyTorch sees no CUDA GPU here", file=sys.stderr)
        return 2
    torch.manual_seed(20261129)
    wrong = check()
    if wrong:
        print(f"benchmarks.telemetry: RED, {wrong}; no time is reported", file=sys.stderr)
        return 1
    print(f"{torch.cuda.get_device_name()}: all layers of a model; check: the record is the reference's")
    heads = (("record us", 9), ("share", 7), ("differ.", 8), ("attent.", 8), ("general", 8), ("share", 7), ("host us", 8),
             ("share", 7), ("general", 8), ("share", 7))  # fmt: skip
    print(f"{'case':46s} {'step us':>9s} " + " ".join(f"{name:>{width}s}" for name, width in heads))
    rows = []
    for case in cases(args.tokens, args.batch):
        row = measure(case, args.repeats)
        rows.append(row)
        print(
            f"{case.name:46s} {row['gpu_step_seconds'] * 1e6:9.1f} {row['gpu_record_seconds'] * 1e6:9.2f} "
            f"{row['gpu_share']:7.2%} {row['gpu_share_by_difference']:8.2%} "
            f"{row['gpu_share_of_attention']:8.2%} {row['gpu_record_general_seconds'] * 1e6:8.2f} "
            f"{row['gpu_share_general']:7.2%} {row['host_record_seconds'] * 1e6:8.0f} {row['host_share']:7.2%} "
            f"{row['host_record_general_seconds'] * 1e6:8.0f} {row['host_share_general']:7.2%}",
            flush=True,
        )
        torch.cuda.empty_cache()
        if args.out:
            args.out.parent.mkdir(parents=True, exist_ok=True)
            words = [w for i, w in enumerate(sys.argv) if i and w != "--out" and sys.argv[i - 1] != "--out"]
            report = {
                "command": ("python -m benchmarks.telemetry " + shlex.join(words)).strip(),
                "device": torch.cuda.get_device_name(), "torch": torch.__version__, "limit": LIMIT, "measurements": rows,
            }  # fmt: skip
            args.out.write_text(json.dumps(report, indent=1) + "\n")
    above = [r["case"] for r in rows if r["gpu_share"] > LIMIT]
    if above:
        print(f"above {LIMIT:.0%} of a step: {', '.join(above)}")
    return 1 if above else 0


if __name__ == "__main__":
    sys.exit(main())
