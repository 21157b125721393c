"""The main job: meter every scheme on recorded attention and, where a model is at hand, on its own output."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

import witcert
from witcert import schemes
from witcert.errors import InputError
from witcert.observe.activations import Activations
from witcert.observe.measure import SchemeCells, budget_for, exact_layers, measure
from witcert.observe.recheck import Recheck, recheck
from witcert.observe.summary import SchemeRow, scheme_row
from witcert.schemes import Scheme

Tick = Callable[[str], None]


def silent(_: str) -> None:
    """A progress callback that shows nothing."""


@dataclass(frozen=True)
class ObserveConfig:
    """Settings of one run, validated; tau is the certificate threshold, tau_v that of the value side."""

    schemes: tuple[str, ...] = ()
    tau: float = 0.2
    tau_v: float = 0.05
    delta_req: float = 1e-2
    bands: int = 16
    seed: int = 0
    recheck: int = 2
    device: str = "cpu"

    def __post_init__(self) -> None:
        for name in ("tau", "tau_v", "delta_req"):
            value = getattr(self, name)
            if not 0.0 < value < 1.0:
                raise InputError(f"{name}={value!r} is outside (0, 1)")
        if self.bands < 1:
            raise InputError(f"bands={self.bands} must be at least 1")
        if self.recheck < 0:
            raise InputError(f"recheck={self.recheck} must not be negative")
        for name in self.schemes:
            schemes.get(name)

    @property
    def selected(self) -> list[Scheme]:
        """The schemes of the run, in order; all registered ones when none was named."""
        return [schemes.get(n) for n in (self.schemes or schemes.names())]


@dataclass
class Results:
    """Everything a report shows."""

    config: ObserveConfig
    rows: list[SchemeRow]
    cells: list[SchemeCells]
    rechecks: list[Recheck]
    about: dict[str, Any]
    baseline: dict[str, dict[str, float | None]] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def violations(self) -> int:
        """Cells of any meter below the truth, counting failed re-checks at 50 digits."""
        return sum(r.violations for r in self.rows) + sum(not r.holds for r in self.rechecks)

    def to_json(self) -> dict[str, Any]:
        """The whole result as plain data."""
        return {
            "format": "witcert-observe/1",
            "about": self.about,
            "config": asdict(self.config),
            "violations": self.violations,
            "schemes": [r.to_json() for r in self.rows],
            "baseline": {d: {"guarantee": "measured", **v} for d, v in self.baseline.items()},
            "rechecks": [r.to_json() for r in self.rechecks],
            "seconds": round(self.seconds, 1),
        }


def environment() -> dict[str, Any]:
    """Versions that a reader needs to repeat the run."""
    import triton

    return {
        "witcert": witcert.__version__,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
    }


def about(recordings: Sequence[Activations]) -> dict[str, Any]:
    """What was metered: the model's identity and shape, the texts, the environment."""
    rec = recordings[0]
    layer = rec.layers[0]
    head_dims = sorted({x.k.shape[-1] for x in rec.layers})
    return {
        "model": rec.meta.get("model", "unknown"),
        "fingerprint": rec.meta.get("fingerprint", ""),
        "model_type": rec.meta.get("model_type", ""),
        "rope": rec.meta.get("rope", {}),
        "dtype": rec.meta.get("dtype", ""),
        "layers": len(rec.layers),
        "heads": layer.q.shape[0],
        "kv_heads": layer.k.shape[0],
        "head_dim": head_dims[-1],
        "pairing": rec.pairing,
        "rotary_dim": rec.rotary_dim,
        "texts": {r.domain: {"tokens": r.layers[0].k.shape[1], "queries": len(r.positions)} for r in recordings},
        "environment": environment(),
    }


OutputFn = Callable[[Scheme], "dict[str, dict[str, float | None]]"]


def observe(
    recordings: Sequence[Activations],
    config: ObserveConfig,
    *,
    output: OutputFn | None = None,
    baseline: dict[str, dict[str, float | None]] | None = None,
    tick: Tick = silent,
) -> Results:
    """Meter every selected scheme on every recording.

    ``output`` maps a scheme to what it does to the model's output per text; None when only activations are at hand.
    ``tick`` is called with a short description once per unit of work.
    """
    if not recordings:
        raise InputError("observe: no recording was given")
    start = time.monotonic()
    exact = [exact_layers(r, config.bands, config.device) for r in recordings]
    head_dim = recordings[0].layers[0].k.shape[-1]
    rows: list[SchemeRow] = []
    cells: list[SchemeCells] = []
    checks: list[Recheck] = []
    for scheme in config.selected:
        runs = []
        for rec, sides in zip(recordings, exact, strict=True):
            budget = budget_for(rec, delta_req=config.delta_req, tau_k=config.tau, tau_v=config.tau_v)
            tick(f"{scheme.name}: metering {rec.domain}")
            run = measure(rec, sides, scheme, budget, seed=config.seed)
            runs.append(run)
            checks += recheck(rec, scheme, run, count=config.recheck, seed=config.seed)
        damage: dict[str, dict[str, float | None]] = {}
        if output is not None:
            tick(f"{scheme.name}: running the model on the served cache")
            damage = output(scheme)
        rows.append(scheme_row(scheme, runs, head_dim, config.tau, config.tau_v, damage))
        cells += runs
    return Results(config, rows, cells, checks, about(recordings), baseline or {}, time.monotonic() - start)
