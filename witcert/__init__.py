"""WitCert: a sound run-time bound on what KV-cache quantization does to attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from witcert.hf.attach import attach as attach

__version__ = "0.1.0"
__all__ = ["__version__", "attach"]


def __getattr__(name: str) -> Any:
    """``attach`` is looked up when it is first used: importing witcert imports neither torch nor transformers."""
    if name != "attach":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from witcert.hf.load import _transformers

    _transformers()  # a missing extra is said by name
    from witcert.hf.attach import attach

    globals()["attach"] = attach
    return attach
