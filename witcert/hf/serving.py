"""The attention function and the mask function that an attached model runs, and the state of the forward that they serve.

Fail closed: whatever is called out of place raises. A forward counts as served only if every layer wrote its keys to the pool
and had its attention computed here, on exactly those keys.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from witcert.errors import InputError, UnsupportedModelError, WitCertError
from witcert.hf.attention import _HARMLESS
from witcert.hf.cache import CertifiedCache
from witcert.hf.sequences import Chunk

if TYPE_CHECKING:
    from witcert.gate.gated import Attended
    from witcert.hf.attachment import Attachment
    from witcert.hf.chunks import LayerChunk
    from witcert.kernels.formats import PageTable

__all__ = ["NAME", "Forward", "current", "mask_function", "register"]

NAME = "witcert-serving"
FULL_CHECK = 2**20
"""Largest mask that is compared entry by entry; of larger ones, SAMPLED rows are."""
SAMPLED = 64


@dataclass
class Forward:
    """A forward that is running: its cache, its chunk, and what each layer has done so far.

    written : keys and values of the layers that handed theirs over, until they were attended to: those of all layers together
    would be a second cache. stored : layers whose tokens are in the pool.
    """

    attachment: Attachment
    cache: CertifiedCache
    chunk: Chunk
    check_masks: bool
    written: dict[int, tuple[Tensor, Tensor, Tensor, Tensor] | None] = field(default_factory=dict)
    stored: set[int] = field(default_factory=set)
    served: set[int] = field(default_factory=set)
    attended: dict[int, Attended] = field(default_factory=dict)
    prefix: tuple[PageTable, Tensor, Tensor] | None = None
    """Of a chunk: where its prefixes lie, and int32 [batch] on the device its tokens, and those of them that are metered."""
    chunks: dict[int, LayerChunk] = field(default_factory=dict)

    def unwritten(self) -> list[int]:
        """Layers that have not stored their tokens."""
        return sorted(set(range(len(self.attachment.modules))) - self.stored)

    def missing(self) -> list[int]:
        """Layers that did not come by."""
        return sorted(set(range(len(self.attachment.modules))) - self.served)


_local = threading.local()


def stack() -> list[Forward]:
    """Running forwards of this thread, innermost last."""
    if not hasattr(_local, "stack"):
        _local.stack = []
    found: list[Forward] = _local.stack
    return found


def current() -> Forward:
    """The running forward; raises outside one."""
    if not stack():
        raise WitCertError(
            "attention of an attached model was called outside a forward of that model; call the model itself, not a part "
            "of it, or detach it first"
        )
    return stack()[-1]


def write(cache: CertifiedCache, layer: int, key: Tensor, value: Tensor) -> None:
    """Take a layer's new keys and values [batch, Hkv, Q, d]: those of a decode step are stored when they are attended to,
    in one go with the read; others at once."""
    forward = current()
    attachment = forward.attachment
    if forward.cache is not cache:
        raise WitCertError("a certified cache was updated by a forward that does not own it")
    if layer in forward.written:
        raise UnsupportedModelError(f"layer {layer} wrote its keys twice in one forward")
    config = attachment.pool.config
    expected = (cache.rows.batch, config.kv_heads, forward.chunk.columns, config.head_dim)
    if tuple(key.shape) != expected or tuple(value.shape) != expected:
        raise UnsupportedModelError(
            f"layer {layer} has keys {tuple(key.shape)} and values {tuple(value.shape)}; expected {expected}"
        )
    if key.requires_grad or value.requires_grad:
        raise InputError("the certified cache carries no gradient: call the model under torch.no_grad()")
    k, v = (forward.chunk.align(attachment.convert(x)) for x in (key, value))
    if not forward.chunk.single:
        if len(forward.chunk.slots):
            attachment.gated.write(layer, forward.chunk.tokens(k), forward.chunk.tokens(v), forward.chunk.slots)
        forward.stored.add(layer)
    forward.written[layer] = (key, value, k, v)


def _window(mask: Tensor | None, given: object, layer: int) -> int | None:
    """The window that the mask of a layer says; UnsupportedModelError if the layer says another."""
    if not isinstance(mask, Tensor) or mask.dtype != torch.int64 or mask.numel() != 1:
        raise UnsupportedModelError(f"layer {layer} builds its own attention mask; WitCert cannot tell what it hides")
    window = int(mask) or None
    if given is not None and given != window:
        raise UnsupportedModelError(f"layer {layer} has a window of {given}, its mask one of {window}")
    return window


def attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
    scaling: float | None = None, dropout: float = 0.0, softcap: float | None = None, s_aux: Tensor | None = None,
    sinks: Tensor | None = None, sliding_window: int | None = None, **kwargs: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """Attention of one layer of the running forward on the pool; query [batch, Hq, Q, d], result [batch, Q, Hq, d]."""
    forward = current()
    attachment, chunk = forward.attachment, forward.chunk
    unknown = sorted(k for k, v in kwargs.items() if k not in _HARMLESS and v is not None and v is not False)
    if unknown:
        raise UnsupportedModelError(
            f"{type(module).__name__} passes {', '.join(unknown)} to its attention function; WitCert does not know "
            "whether that changes the logits"
        )
    if dropout:
        raise InputError("the model drops attention weights: call model.eval() first")
    layer = getattr(module, "layer_idx", -1)
    if not 0 <= layer < len(attachment.modules) or attachment.modules[layer] is not module:
        raise WitCertError(f"{type(module).__name__} is no layer of the attached model")
    if layer not in forward.written:
        raise UnsupportedModelError(f"layer {layer} did not write its keys to the cache before it attended to them")
    mine = forward.written[layer]
    if mine is None:
        raise UnsupportedModelError(f"layer {layer} attended twice in one forward")
    own_key, own_value, k, v = mine
    if key is not own_key or value is not own_value:
        raise UnsupportedModelError(f"layer {layer} changes keys or values after they were cached")
    config = attachment.pool.config
    if query.shape[1] != config.heads or query.shape[3] != config.head_dim or query.shape[2] != chunk.columns:
        raise UnsupportedModelError(f"layer {layer} has queries {tuple(query.shape)}, which its keys do not fit")
    options: dict[str, Any] = {
        "scale": float(scaling if scaling is not None else config.head_dim**-0.5),
        "window": _window(attention_mask, sliding_window, layer),
        "softcap": None if softcap is None else float(softcap),
        "sinks": _sinks(s_aux if s_aux is not None else sinks),
    }
    q = attachment.convert(query)
    if chunk.single:
        attended = attachment.step(
            layer, q[:, :, 0].contiguous(), k[:, 0], v[:, 0], chunk.slots, forward.cache.sequences, options
        )
        forward.stored.add(layer)
        forward.attended[layer] = attended
        out = attended.output.out[:, None]
    elif not len(chunk.slots):  # a chunk of nothing but padding
        out = torch.zeros_like(q.transpose(1, 2))
    else:
        out = chunk.restore(attachment.extend(layer, chunk.align(q), k, v, forward, options))
    forward.served.add(layer)
    forward.written[layer] = None
    return out.to(query.dtype), None


def _sinks(sinks: Tensor | None) -> Tensor | None:
    return None if sinks is None else sinks.detach().reshape(-1).float().contiguous()


def _expected(rows: Tensor, columns: Tensor, window: int | None) -> Tensor:
    seen = columns[None, :] <= rows[:, None]
    return seen if window is None else seen & (columns[None, :] > rows[:, None] - window)


def mask_function(
    batch_size: int, q_length: int, kv_length: int, q_offset: int = 0, kv_offset: int = 0,
    mask_function: Callable[..., Any] | None = None, attention_mask: Tensor | None = None, local_size: int | None = None,
    **kwargs: Any,
) -> Tensor:  # fmt: skip
    """Compare the pattern that a model asks for with the window that the kernels apply, and return that window.

    The result stands where other implementations have a mask: int64 [1] on the CPU, the number of visible tokens or 0 for
    all. Padding is not looked at: padding tokens are not in the pool. Raises UnsupportedModelError for any other pattern.
    """
    forward = current()
    if forward.check_masks:
        if mask_function is None:
            raise UnsupportedModelError("the model asks for an attention mask without saying which")
        last = torch.arange(q_length)
        if q_length * kv_length > FULL_CHECK:
            last = torch.linspace(0, q_length - 1, min(q_length, SAMPLED)).round().long()
        rows, columns = last + int(q_offset), torch.arange(kv_length) + int(kv_offset)
        zero = torch.zeros(1, 1, 1, 1, dtype=torch.long)
        try:
            pattern = torch.as_tensor(
                mask_function(zero, zero, rows[None, None, :, None], columns[None, None, None, :])
            ).expand(1, 1, len(rows), len(columns))[0, 0]
        except WitCertError:
            raise
        except Exception as e:
            raise UnsupportedModelError(f"the model's attention mask is no function of positions ({e})") from e
        if not torch.equal(pattern.bool(), _expected(rows, columns, local_size)):
            what = "causal" if local_size is None else f"sliding-window (of {local_size} tokens)"
            raise UnsupportedModelError(f"the model's attention mask is not plain {what} attention")
    return torch.tensor([local_size or 0])


def register() -> None:
    """Make both functions known to transformers, under NAME."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, mask_function)
