"""The main job on a model: record its exact attention on texts, then observe every scheme on it."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from witcert.hf.capture import capture, check_agreement, query_positions
from witcert.hf.evaluate import Encoded, damage, encode, recall_accuracy, served_logits
from witcert.hf.load import LoadedModel
from witcert.observe.activations import Activations
from witcert.observe.job import ObserveConfig, Results, Tick, observe, silent
from witcert.observe.texts import Text
from witcert.schemes import Scheme


def record(
    loaded: LoadedModel, texts: Sequence[Text], *, tokens: int | None, queries: int, tick: Tick = silent
) -> tuple[list[Activations], list[Encoded], list[Tensor]]:
    """Record every text with exact attention; also the encoded texts and the exact logits [T, vocab]."""
    encoded = [encode(loaded, t, tokens) for t in texts]
    tick("checking the attention hook against the model's own attention")
    check_agreement(loaded, encoded[0].input_ids[:, :128])
    recordings, logits = [], []
    for e in encoded:
        n = e.input_ids.shape[1]
        tick(f"exact forward: {e.text.domain}, {n} tokens")
        recording, out = capture(loaded, e.input_ids, query_positions(n, queries), e.text.domain)
        recordings.append(recording)
        logits.append(out)
    return recordings, encoded, logits


def observe_model(
    loaded: LoadedModel,
    texts: Sequence[Text],
    config: ObserveConfig,
    *,
    tokens: int | None = 512,
    queries: int = 32,
    output: bool = True,
    tick: Tick = silent,
) -> Results:
    """Record the texts, meter every scheme, and (unless ``output`` is false) run the model on each served cache."""
    start = time.monotonic()
    torch.manual_seed(config.seed)
    recordings, encoded, exact = record(loaded, texts, tokens=tokens, queries=queries, tick=tick)

    def run(scheme: Scheme) -> dict[str, dict[str, float | None]]:
        out: dict[str, dict[str, float | None]] = {}
        for e, logits in zip(encoded, exact, strict=True):
            d = damage(logits, served_logits(loaded, e.input_ids, scheme, config.seed), e)
            out[e.text.domain] = {"kl": d.kl, "top1": d.top1, "recall": d.recall}
        return out

    baseline: dict[str, dict[str, float | None]] = {
        e.text.domain: {"kl": 0.0, "top1": 1.0, "recall": recall_accuracy(logits, e)}
        for e, logits in zip(encoded, exact, strict=True)
    }
    results = observe(recordings, config, output=run if output else None, baseline=baseline if output else {}, tick=tick)
    results.seconds = time.monotonic() - start
    return results


def units(schemes: int, texts: int) -> int:
    """How many times ``observe_model`` calls ``tick``: the length of a progress bar."""
    return 1 + texts + schemes * (texts + 1)
