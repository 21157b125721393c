"""What every experiment is given: the device, one model, one recording of the texts, one seed.

An experiment is a module of this package that defines

* ``NAME``, ``QUESTION``: the command and one sentence;
* ``METHOD``, ``LIMITS``: what is done, in three sentences, and what the numbers do not say;
* ``run(setting) -> dict``: plain data with the key ``violations``, the number of cells in which a *proved* reading is below
  the truth; the command fails with exit code 3 unless it is 0;
* ``draw(result) -> matplotlib Figure`` and ``describe(result) -> str`` (markdown: the table), both from that data alone;
* optionally ``ORDER`` (place in the README) and ``OPTIONS`` (name -> default, set by ``--set name=value``).
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from witcert.errors import InputError
from witcert.meter import ExactAttention
from witcert.observe import activations, job, texts
from witcert.observe.activations import Activations
from witcert.observe.measure import exact_layers

if TYPE_CHECKING:
    from witcert.hf.evaluate import Encoded
    from witcert.hf.load import LoadedModel

__all__ = ["SEED", "NeedsModelError", "Setting"]

SEED = 20261129
NO_MODEL = "none"


class NeedsModelError(InputError):
    """The experiment runs the model, and only a recording is at hand."""


@dataclass(eq=False)
class Setting:
    """One run's settings, and what is loaded or recorded once for all its experiments.

    Parameters
    ----------
    device : "cpu" or "cuda".
    quick : short texts and few queries, for a check that everything runs.
    model : as in ``witcert.hf.load_model``; "none" if only a recording is at hand.
    recording : a file of ``witcert capture`` to be metered instead of recording the texts anew.
    seed : of every random choice, and of the dither.
    tau : certificate threshold.
    tokens, queries : of each text; None takes 256 and 16 (quick), 512 and 32 (CPU) or 2048 and 64 (CUDA).
    dtype : precision of the model.
    options : settings of single experiments, as text.
    """

    device: str = "cpu"
    quick: bool = False
    model: str | None = None
    recording: Path | None = None
    seed: int = SEED
    tau: float = 0.2
    tokens: int | None = None
    queries: int | None = None
    dtype: torch.dtype = torch.float32
    options: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.device not in ("cpu", "cuda"):
            raise InputError(f"device={self.device!r} is neither 'cpu' nor 'cuda'")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise InputError("device='cuda': PyTorch sees no GPU here")
        if not 0.0 < self.tau < 1.0:
            raise InputError(f"tau={self.tau!r} is outside (0, 1)")
        size = (256, 16) if self.quick else (2048, 64) if self.device == "cuda" else (512, 32)
        self.tokens = size[0] if self.tokens is None else self.tokens
        self.queries = size[1] if self.queries is None else self.queries
        for name, least in (("tokens", 2), ("queries", 1)):
            if getattr(self, name) < least:
                raise InputError(f"{name}={getattr(self, name)!r} is below {least}")

    def option(self, name: str, default: Any) -> Any:
        """A setting of one experiment, in the type of its default; lists are separated by commas."""
        text = self.options.get(name)
        if text is None:
            return default
        try:
            if isinstance(default, bool):
                return {"true": True, "false": False}[text.lower()]
            if isinstance(default, list | tuple):
                kind = type(default[0]) if default else str
                return type(default)(kind(part) for part in text.split(","))
            return type(default)(text)
        except (KeyError, ValueError) as e:
            raise InputError(f"--set {name}={text}: expected something like {default!r}") from e

    def say(self, what: str) -> None:
        """One line of progress on standard error."""
        print(f"  [{time.strftime('%H:%M:%S')}] {what}", file=sys.stderr, flush=True)

    def generator(self, stream: int = 0) -> torch.Generator:
        """A random generator of its own on the CPU, from the run's seed."""
        return torch.Generator().manual_seed(self.seed + stream)

    # ---- the model

    @property
    def has_model(self) -> bool:
        """Whether a model may be loaded."""
        return self.model != NO_MODEL

    @cached_property
    def loaded(self) -> LoadedModel:
        """The model, loaded once; NeedsModelError where none is at hand."""
        if not self.has_model:
            raise NeedsModelError("this experiment runs the model; with --model none only recordings can be metered")
        from witcert.hf.load import load_model

        self.say(f"loading {self.model or 'the default model'}")
        return load_model(self.model, dtype=self.dtype, device=self.device)

    @cached_property
    def texts(self) -> list[texts.Text]:
        """The built-in texts; the recall text has pairs enough for the tokens."""
        assert self.tokens is not None
        pairs = max(2, min(400, self.tokens // 12))
        return [texts.builtin(domain, pairs) for domain in texts.DOMAINS]

    @cached_property
    def _recorded(self) -> tuple[list[Activations], list[Encoded], list[Tensor]]:
        from witcert.hf.pipeline import record

        assert self.queries is not None
        loaded, limit = self.loaded, self.loaded.geometry.max_positions
        self.tokens = self.tokens if limit is None or self.tokens is None else min(self.tokens, limit)
        return record(loaded, self.texts, tokens=self.tokens, queries=self.queries, tick=self.say)

    @property
    def encoded(self) -> list[Encoded]:
        """The texts as the model reads them."""
        return self._recorded[1]

    @property
    def exact_logits(self) -> list[Tensor]:
        """Logits [T, vocab] of every text with the exact cache (float32, CPU)."""
        return self._recorded[2]

    # ---- recorded attention

    @cached_property
    def recordings(self) -> list[Activations]:
        """Post-RoPE q, k, v of every text, from the file or recorded once."""
        return activations.load(self.recording) if self.recording is not None else self._recorded[0]

    @cached_property
    def _exact(self) -> dict[int, list[list[ExactAttention]]]:
        return {}

    def exact(self, bands: int = 16) -> list[list[ExactAttention]]:
        """The exact side of every layer of every recording on the device, prepared once for a number of bands."""
        if bands not in self._exact:
            self.say(f"preparing {len(self.recordings)} recording(s), {bands} bands")
            self._exact[bands] = [exact_layers(r, bands, self.device) for r in self.recordings]
        return self._exact[bands]

    def about(self) -> dict[str, Any]:
        """The model's name and shape and the texts that were recorded; empty where there is neither."""
        if "recordings" in self.__dict__ or "_recorded" in self.__dict__:
            found = job.about(self.recordings)
        elif "loaded" in self.__dict__:
            g = self.loaded.geometry
            found = {
                "model": self.loaded.name, "fingerprint": self.loaded.fingerprint, "model_type": g.model_type,
                "layers": g.layers, "heads": g.heads, "kv_heads": g.kv_heads, "head_dim": g.head_dim,
                "dtype": str(self.dtype), "texts": {},
            }  # fmt: skip
        else:
            return {}
        return found | {"model": Path(str(found["model"])).name}  # a name, not a place on this machine
