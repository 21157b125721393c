"""Loading a model: quietly."""

from __future__ import annotations

import pytest
from tqdm import tqdm
from tqdm.auto import tqdm as auto

from witcert.hf.load import _no_bars


def test_no_bars_while_loading_and_as_before_afterwards(capsys: pytest.CaptureFixture[str]) -> None:
    def failing() -> None:
        with _no_bars():
            assert list(tqdm(range(3), desc="quiet")) == [0, 1, 2]
            assert list(auto(range(3), desc="quiet")) == [0, 1, 2]
            raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        failing()
    assert capsys.readouterr().err == ""
    list(tqdm(range(3), desc="heard"))
    assert "heard" in capsys.readouterr().err
