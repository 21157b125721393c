"""Re-check the cells that come closest to a violation at 50 digits, from the stored bits of q, k and the served key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mpmath as mp
import torch
from torch import Tensor

from witcert.observe.activations import Activations, LayerActivations
from witcert.observe.measure import SchemeCells
from witcert.schemes import Scheme, Site

DIGITS = 50


@dataclass(frozen=True)
class Recheck:
    """One cell, re-computed: the meter (a float, taken as it is) against total variation at 50 digits."""

    scheme: str
    domain: str
    layer: int
    head: int
    position: int
    guarantee: str
    meter: float
    tv: str
    holds: bool

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return dict(self.__dict__)


def _rows(x: Tensor) -> list[list[Any]]:
    return [[mp.mpf(v) for v in row] for row in x.double().tolist()]


def exact_tv(layer: LayerActivations, k_hat: Tensor, head: int, query: int, position: int) -> Any:
    """Total variation of one cell at 50 digits, softmax over the visible keys (and the sink, where there is one)."""
    groups = layer.q.shape[0] // layer.k.shape[0]
    window = slice(int(layer.first[query]), position + 1)
    with mp.workdps(DIGITS):
        q = [mp.mpf(v) for v in layer.q[head, query].double().tolist()]

        def weights(keys: Tensor) -> list[Any]:
            logits = [mp.mpf(layer.scale) * mp.fdot(q, row) for row in _rows(keys[head // groups, window])]
            if layer.softcap is not None:
                logits = [layer.softcap * mp.tanh(x / layer.softcap) for x in logits]
            if layer.sinks is not None:
                logits.append(mp.mpf(float(layer.sinks[head])))
            top = max(logits)
            e = [mp.exp(x - top) for x in logits]
            total = mp.fsum(e)
            return [x / total for x in e]

        p, p_tilde = weights(layer.k), weights(k_hat)
        return mp.fsum(abs(a - b) for a, b in zip(p, p_tilde, strict=True)) / 2


def recheck(recording: Activations, scheme: Scheme, run: SchemeCells, *, count: int, seed: int) -> list[Recheck]:
    """Re-check, for each of the scheme's meters, the ``count`` cells with the smallest meter / TV."""
    out = []
    for meter in run.meters:
        value = torch.as_tensor(meter.value)
        ratio = torch.where(run.tv > 0, value / run.tv, torch.inf).flatten()
        for flat in ratio.topk(min(count, ratio.numel()), largest=False).indices.tolist():
            layer_index, head, query = (int(i) for i in torch.unravel_index(torch.tensor(flat), run.tv.shape))
            layer = recording.layers[layer_index]
            position = int(recording.positions[query])
            site = Site.contiguous(layer.k.shape[1], layer=layer_index, side="k", seed=seed)
            k_hat = scheme(layer.k, site).x_hat
            if not bool(torch.isfinite(k_hat).all()):
                continue
            tv = exact_tv(layer, k_hat, head, query, position)
            m = float(value.flatten()[flat])
            out.append(
                Recheck(
                    run.scheme,
                    run.domain,
                    layer_index,
                    head,
                    position,
                    meter.label,
                    m,
                    mp.nstr(tv, 17),
                    bool(mp.mpf(m) >= tv),
                )
            )
    return out
