"""Free-running generation on a certified cache, watched: the truth of every cell, and a control that can fail."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from experiments import _pools
from experiments._truth import Exact, Violations, exact_of, served_keys
from experiments.common import Setting
from witcert.budget import Budget
from witcert.errors import InputError
from witcert.gate import Gate, GatedPool
from witcert.gate.gated import Attended
from witcert.hf.attach import Attachment
from witcert.hf.records import StepRecord
from witcert.store import CachePool, PoolConfig, ops

__all__ = ["Watch", "aligned_control", "prompts"]


def prompts(setting: Setting, batch: int, tokens: int) -> Tensor:
    """Prompts [batch, tokens] cut from the built-in texts, each from a place of its own; InputError if they are too short."""
    from witcert.hf.evaluate import encode

    limit = min(batch * tokens, setting.loaded.geometry.max_positions or batch * tokens)
    whole = [text for text in setting.texts if not text.pairs]
    ids = torch.cat([encode(setting.loaded, text, limit).input_ids[0] for text in whole])
    if len(ids) < tokens + batch:
        raise InputError(f"the texts have {len(ids)} tokens; {batch} prompts of {tokens} were asked for")
    starts = torch.linspace(0, len(ids) - tokens, batch).long().tolist()
    return torch.stack([ids[s : s + tokens] for s in starts]).to(setting.device)


class Watch:
    """Looks at every decode step of an attachment when it has ended, layer by layer, against the exact backing store.

    pairs : for each label, the reading [cells] and the truth [cells] of all steps. delta : the failure probability under which
    it was read. ``violations`` counts.
    """

    def __init__(self) -> None:
        self.attachment: Attachment | None = None
        self.violations = Violations()
        self.pairs: dict[str, list[tuple[Tensor, Tensor]]] = {}
        self.delta: dict[str, float] = {}
        self.steps = 0
        self._seen: list[tuple[int, Tensor, tuple[int, ...], dict[str, Any], Attended]] = []

    def observe(
        self, layer: int, q: Tensor, sequences: tuple[int, ...], options: dict[str, Any], attended: Attended
    ) -> None:
        """Keep what a layer was asked and what it answered."""
        self._seen.append((layer, q, sequences, options, attended))

    def step(self, _: StepRecord) -> None:
        """The step has ended: recompute every cell. No layer has changed its cache since it answered."""
        a = self.attachment
        assert a is not None
        for layer, q, sequences, options, attended in self._seen:
            if options["window"] is not None:
                raise InputError("a sliding window: this experiment recomputes full attention only")
            table = a.pool.table(sequences)
            lens = torch.tensor([a.pool.length(s) for s in sequences])
            keys = exact_of(a.gated, layer, table, int(lens.max()))
            exact = Exact(q, keys, lens, options["scale"], options["softcap"], options["sinks"])
            truth = exact.variation(a.gated, layer, table)
            self.violations.check(attended.output.readings, truth)
            for r in attended.output.readings:
                pair = torch.as_tensor(r.meter.value).double().flatten().cpu(), truth.flatten().cpu()
                self.pairs.setdefault(r.meter.label, []).append(pair)
                self.delta[r.meter.label] = max(self.delta.get(r.meter.label, 0.0), r.meter.delta)
        self._seen.clear()
        self.steps += 1


def aligned_control(setting: Setting, cells: int) -> dict[str, Any]:
    """Queries that know the dither: two tokens, a query along the difference of their residuals, of several sizes.

    The non-adaptive reading does not speak of such queries, and is broken by them; the adaptive one must hold.
    """
    d = 256
    config = PoolConfig(
        layers=1, heads=1, kv_heads=1, head_dim=d, pages=cells, tokens=16, format="int8-dither", bands=None, seed=setting.seed,
        backing=True, tags=False,
    )  # fmt: skip
    pool = CachePool(config, setting.device)
    gated = GatedPool(pool, Gate(mode="off"))
    meter = pool.meter_for("tierB", Budget(1, 1, 1))
    seqs = [pool.open() for _ in range(cells)]
    slots = pool.reserve(seqs, [2] * cells)
    draw = setting.generator(77)
    k, v = (torch.randn(2 * cells, 1, d, generator=draw).to(setting.device, torch.float16) for _ in range(2))
    pool.write(0, k, v, slots)
    table, lens = pool.table(seqs), torch.full((cells,), 2)
    exact = k.view(cells, 2, 1, d)
    residual = served_keys(gated, 0, table, 2) - exact.double()
    w = (residual[:, 0] - residual[:, 1])[:, 0]  # [R, d]
    gap = (exact[:, 0] - exact[:, 1])[:, 0].double()
    # The exact log-odds shall be minus half of what the residuals add to it: the largest total variation.
    along = -(0.5 * (w * w).sum(-1) + (w * gap).sum(-1)) / ((gap * gap).sum(-1) + 0.5 * (w * gap).sum(-1))
    unit = w + along[:, None] * gap
    scale, out = d**-0.5, Violations()
    found: list[tuple[Tensor, Tensor, Tensor]] = []
    for size in (0.25, 0.5, 1.0, 2.0, 4.0):
        a = size / (scale * (unit * w).sum(-1))
        q = (a[:, None] * unit).to(torch.float16)[:, None]
        truth = Exact(q, exact, lens, scale).variation(gated, 0, table)
        readings = ops.decode(pool, 0, q, table, scale=scale, meter=meter).readings
        out.check(readings, truth)
        adaptive, weak = (torch.as_tensor(r.meter.value).double() for r in readings)
        found.append((truth.cpu(), adaptive.cpu(), weak.cpu()))
    truth, adaptive, weak = (torch.cat(x).flatten() for x in zip(*found, strict=True))
    return {
        "head_dim": d, "queries": len(truth), "violations": out.to_json(), "largest_tv": float(truth.max()),
        "sample": _pools.points(*(x[:: max(1, len(truth) // 250)] for x in (truth, adaptive, weak))),
    }  # fmt: skip
