"""Older releases of Triton's interpreter index by tensors of one element, whatever NumPy says to that."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from triton.runtime import interpreter as triton_interpreter

from contracts import interpreter


class Scope:
    def set_attr(self, thing: Any, name: str, value: Any) -> None:
        setattr(thing, name, value)


def _old(tensor: Any, scope: Any) -> None:
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data))
    scope.set_attr(tensor, "T", "kept")


def _index(patch: Any) -> int:
    tensor = type("tensor", (), {"handle": SimpleNamespace(data=np.array([7], np.int32))})
    patch(tensor, Scope())
    assert tensor.T == "kept"  # type: ignore[attr-defined]
    return tensor.__index__(tensor())  # type: ignore[attr-defined, no-any-return]


def test_it_is_mended_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_interpreter, "_patch_lang_tensor", _old)
    monkeypatch.setattr(interpreter, "_refused", lambda: True)
    interpreter.mend()
    mended = triton_interpreter._patch_lang_tensor  # type: ignore[attr-defined]
    assert mended is not _old
    assert _index(mended) == 7
    interpreter.mend()
    assert triton_interpreter._patch_lang_tensor is mended  # type: ignore[attr-defined]


def test_it_is_left_alone_where_numpy_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_interpreter, "_patch_lang_tensor", _old)
    monkeypatch.setattr(interpreter, "_refused", lambda: False)
    interpreter.mend()
    assert triton_interpreter._patch_lang_tensor is _old  # type: ignore[attr-defined]


def test_it_says_what_numpy_does() -> None:
    try:
        int(np.ones(1, np.int32))
    except TypeError:
        assert interpreter._refused()
    else:
        assert not interpreter._refused()
