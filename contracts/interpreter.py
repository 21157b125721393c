"""Triton's interpreter as released with Triton 3.6 and older, beside NumPy from 2.4 on.

There a tensor of one element becomes an index by ``int(array)``, which NumPy no longer does for arrays with axes. Newer
releases of Triton drop the axes first; this does the same to older ones. Kernels that are compiled never come here.
"""

# mypy: disable-error-code="attr-defined"

from __future__ import annotations

from typing import Any

__all__ = ["mend"]


def _refused() -> bool:
    """Whether NumPy refuses to make a number of an array with one axis and one element."""
    import warnings

    import numpy as np

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            int(np.ones(1, np.int32))
        except TypeError:
            return True
    return False


def mend() -> None:
    """Let the interpreter of this process take tensors of one element as indices; harmless where it does."""
    from triton.runtime import interpreter

    original = getattr(interpreter, "_patch_lang_tensor", None)
    if original is None or hasattr(original, "mended") or not _refused():
        return

    def patch(tensor: Any, scope: Any) -> None:
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.squeeze()))

    patch.mended = True
    interpreter._patch_lang_tensor = patch
