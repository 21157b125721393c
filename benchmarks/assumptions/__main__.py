"""Measure every assumption on this machine's GPU, print a table and write JSON; exit code 1 if one does not hold."""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

import torch
import triton

from benchmarks.assumptions import dots, elementary, lowering, upward

GROUPS = {"upward": upward, "elementary": elementary, "dots": dots, "lowering": lowering}


def main() -> int:
    """Run the groups that were asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.assumptions", description=__doc__)
    parser.add_argument("groups", nargs="*", choices=[*GROUPS, []], help="default: all")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/assumptions.json"))
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("benchmarks.assumptions needs a CUDA GPU; none was found")
        return 2
    findings = []
    for name in arguments.groups or GROUPS:
        start = time.perf_counter()
        for finding in GROUPS[name].findings():
            findings.append(finding)
            print(finding.line(), flush=True)
        print(f"  {name}: {time.perf_counter() - start:.1f} s", flush=True)
    record = {
        "command": "python -m benchmarks.assumptions " + " ".join(arguments.groups),
        "device": torch.cuda.get_device_name(),
        "capability": list(torch.cuda.get_device_capability()),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "findings": [asdict(f) | {"holds": f.holds} for f in findings],
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(record, indent=1) + "\n")
    return 0 if all(f.holds for f in findings) else 1


if __name__ == "__main__":
    sys.exit(main())
