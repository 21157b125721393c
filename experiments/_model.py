"""Forwards of the model on served caches, and their distance from the exact ones, on the device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from experiments.common import Setting
from witcert.hf.attention import AttentionCall, attention_hook
from witcert.hf.evaluate import Encoded
from witcert.schemes import Scheme, Site

__all__ = ["Damage", "damage", "forward", "serve", "spearman"]

ROWS = 64
"""Rows of logits compared at once, in float64."""
Hook = Callable[[AttentionCall], "tuple[Tensor, Tensor] | None"]


def serve(scheme: Scheme, seed: int, layers: set[int] | None = None) -> Hook:
    """A hook that serves the keys and values of these layers (None: all) under the scheme."""

    def hook(call: AttentionCall) -> tuple[Tensor, Tensor] | None:
        if layers is not None and call.layer not in layers:
            return None
        tokens = call.key.shape[-2]
        k = scheme(call.key[0], Site.contiguous(tokens, layer=call.layer, side="k", seed=seed)).x_hat
        v = scheme(call.value[0], Site.contiguous(tokens, layer=call.layer, side="v", seed=seed)).x_hat
        return k[None], v[None]

    return hook


def forward(setting: Setting, encoded: Encoded, hook: Hook = lambda call: None) -> Tensor:
    """Logits [T, vocab] on the device, float32."""
    with torch.no_grad(), attention_hook(setting.loaded.model, hook):
        logits: Tensor = setting.loaded.model(input_ids=encoded.input_ids, use_cache=False).logits[0].float()
    return logits


@dataclass(frozen=True)
class Damage:
    """What served logits do, over the tokens of one text; all [measured].

    kl : mean divergence of the served from the exact next-token distribution, nats. kl_max : the largest. top1 : share of
    positions with the same most likely token. nll : mean loss of the text's own next token. recall : share of answer tokens
    predicted right, None without answers.
    """

    tokens: int
    kl: float
    kl_max: float
    top1: float
    nll: float
    recall: float | None


def damage(exact: Tensor, served: Tensor, encoded: Encoded) -> Damage:
    """Compare two logit tensors [T, vocab] of the same text in float64."""
    ids = encoded.input_ids[0]
    kl, nll = [], []
    for start in range(0, len(ids), ROWS):
        a = torch.log_softmax(exact[start : start + ROWS].double(), -1)
        b = torch.log_softmax(served[start : start + ROWS].double(), -1)
        kl.append((a.exp() * (a - b)).sum(-1))
        following = ids[start + 1 : start + ROWS + 1]
        nll.append(-b[: len(following)].gather(-1, following[:, None])[:, 0])
    every = torch.cat(kl).clamp(min=0.0)
    best = served.argmax(-1)
    answers = encoded.answers.to(ids.device)
    return Damage(
        len(ids), float(every.mean()), float(every.max()), float((exact.argmax(-1) == best).double().mean()),
        float(torch.cat(nll).mean()),
        float((best[answers - 1] == ids[answers]).double().mean()) if len(answers) else None,
    )  # fmt: skip


def spearman(x: Tensor, y: Tensor) -> float:
    """Rank correlation of two sequences; NaN if one is constant."""
    rank = [v.double().argsort().argsort().double() for v in (x, y)]
    a, b = (r - r.mean() for r in rank)
    norm = float(a.norm() * b.norm())
    constant = bool((x == x[0]).all() | (y == y[0]).all())
    return float(a @ b) / norm if norm > 0 and not constant else float("nan")
