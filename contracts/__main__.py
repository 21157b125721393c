"""Run every check that needs a GPU (the tests marked ``gpu``) on the GPU of this machine.

Exit status: 0 all passed, 1 something failed, 2 nothing could be run. Without a GPU nothing is run and nothing is
reported as passed; the same kernels run through Triton's interpreter in ``make test``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch


def main() -> int:
    """Run the checks; returns the exit status."""
    if not torch.cuda.is_available():
        print(
            "contracts: NOT RUN, PyTorch sees no CUDA GPU here; use a machine with an NVIDIA GPU (compute capability 8.0 or "
            "newer) and a CUDA build of PyTorch",
            file=sys.stderr,
        )
        return 2
    import pytest

    print(f"contracts: {torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    status = int(pytest.main(["-m", "gpu", str(Path(__file__).resolve().parent.parent / "tests"), *sys.argv[1:]]))
    if status == pytest.ExitCode.NO_TESTS_COLLECTED:
        print("contracts: NOT RUN, no check was found", file=sys.stderr)
        return 2
    return status


if __name__ == "__main__":
    sys.exit(main())
