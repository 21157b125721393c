"""What a scheme does to the model itself: its next-token distribution when the whole cache is served quantized."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from witcert.errors import InputError
from witcert.hf.attention import AttentionCall, attention_hook
from witcert.hf.load import LoadedModel
from witcert.observe.texts import Text, overlapping, recall
from witcert.schemes import Scheme, Site


@dataclass(frozen=True)
class Encoded:
    """A text as the model reads it: ids [1, T] and, for recall, the positions whose token is an answer."""

    text: Text
    input_ids: Tensor
    answers: Tensor


@dataclass(frozen=True)
class OutputDamage:
    """Measured effect on the model's output over one text (no guarantee attached).

    kl: mean KL divergence, nats per token, of the served from the exact next-token distribution; top1: share of
    positions with the same most likely token; recall: share of answer tokens predicted right (None without answers).
    """

    kl: float
    top1: float
    recall: float | None


def encode(loaded: LoadedModel, text: Text, tokens: int | None) -> Encoded:
    """Tokenize, cut to ``tokens``; InputError for an empty text or one longer than the model's context."""
    if text.pairs and tokens is not None:
        text = _fitting_recall(loaded, text, tokens)
    offsets: list[tuple[int, int]] | None = None
    if text.answers and getattr(loaded.tokenizer, "is_fast", False):
        enc: Any = loaded.tokenizer(text.text, return_offsets_mapping=True, add_special_tokens=True)
        offsets = enc["offset_mapping"]
    else:
        # only as much text as can matter: tokenizing half a megabyte for 512 tokens is slow
        enc = loaded.tokenizer(text.text if tokens is None else text.text[: 64 * tokens], add_special_tokens=True)
    ids: list[int] = enc["input_ids"][:tokens] if tokens is not None else enc["input_ids"]
    if len(ids) < 2:
        raise InputError(f"text: {text.domain} gives {len(ids)} token(s); at least 2 are needed")
    limit = loaded.geometry.max_positions
    if limit is not None and len(ids) > limit:
        raise InputError(
            f"text: {text.domain} has {len(ids)} tokens, the model's context ends at {limit}; use --tokens {limit} or less"
        )
    answers = [i for i in overlapping(text.answers, offsets[: len(ids)]) if i > 0] if offsets else []
    return Encoded(text, torch.tensor([ids], device=loaded.model.device), torch.tensor(answers, dtype=torch.long))


def _fitting_recall(loaded: LoadedModel, text: Text, tokens: int) -> Text:
    """The recall text with as many pairs as fit into ``tokens`` (at least one), so that no answer is cut off."""
    pairs = text.pairs
    while pairs > 1 and len(loaded.tokenizer(text.text, add_special_tokens=True)["input_ids"]) > tokens:
        pairs -= 1
        text = recall(pairs)
    return text


def served_logits(loaded: LoadedModel, input_ids: Tensor, scheme: Scheme, seed: int = 0) -> Tensor:
    """Logits [T, vocab] (float32, CPU) of one forward in which every key and value is the served one."""

    def serve(call: AttentionCall) -> tuple[Tensor, Tensor]:
        tokens = call.key.shape[-2]
        k = scheme(call.key[0], Site.contiguous(tokens, layer=call.layer, side="k", seed=seed)).x_hat
        v = scheme(call.value[0], Site.contiguous(tokens, layer=call.layer, side="v", seed=seed)).x_hat
        return k[None], v[None]

    with torch.no_grad(), attention_hook(loaded.model, serve):
        logits: Tensor = loaded.model(input_ids=input_ids, use_cache=False).logits[0].float().cpu()
    return logits


def damage(exact: Tensor, served: Tensor, encoded: Encoded) -> OutputDamage:
    """Compare two logit tensors [T, vocab] of the same text."""
    log_p, log_q = torch.log_softmax(exact, -1), torch.log_softmax(served, -1)
    kl = float((log_p.exp() * (log_p - log_q)).sum(-1).mean())
    top1 = float((exact.argmax(-1) == served.argmax(-1)).float().mean())
    return OutputDamage(kl, top1, recall_accuracy(served, encoded))


def recall_accuracy(logits: Tensor, encoded: Encoded) -> float | None:
    """Share of answer tokens whose most likely prediction is right."""
    if not len(encoded.answers):
        return None
    predicted = logits.argmax(-1)[encoded.answers - 1]
    return float((predicted == encoded.input_ids[0].cpu()[encoded.answers]).float().mean())
