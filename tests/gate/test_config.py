"""Thresholds outside their range are refused; the ledger adds up."""

from __future__ import annotations

import math

import pytest

from witcert.errors import InputError
from witcert.gate import Gate, Ledger
from witcert.guarantees import Proved, ProvedNonadaptive


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"tau": 0.0}, r"tau=0.0"),
        ({"tau": 1.5}, r"tau=1.5"),
        ({"tau": math.nan}, r"tau=nan"),
        ({"mode": "page"}, r"mode='page'"),
        ({"guarantee": "measured"}, r"guarantee='measured'"),
        ({"rounds": -1}, r"rounds=-1"),
        ({"chunk": -1}, r"chunk=-1"),
        ({"chunk": True}, r"chunk=True"),
    ],
)
def test_refusals(bad: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Gate(**bad)  # type: ignore[arg-type]


def test_the_default_decides_by_what_holds_for_every_query() -> None:
    assert Gate().label is Proved
    assert Gate(guarantee="proved-nonadaptive").label is ProvedNonadaptive


def test_ledger_adds_up() -> None:
    ledger = Ledger()
    ledger.of(3).add(cells=8, certified=5, repaired=2, fired=1, pages=4, moved=4096)
    ledger.of(3).add(cells=8, certified=8, repaired=0, fired=0, pages=0, moved=0)
    ledger.of(7).add(cells=8, certified=8, repaired=0, fired=0, pages=0, moved=0)
    got = ledger.summary()
    assert got["requests"] == 2
    assert (got["steps"], got["cells"], got["certified"], got["repaired"], got["uncertified"]) == (3, 24, 21, 2, 1)
    assert got["bytes"] == 4096
    assert got["bytes_per_request"] == {"p50": 2048.0, "p95": pytest.approx(3891.2)}
    assert got["bytes_per_step"]["p50"] == 0
    with pytest.raises(InputError, match="do not add up"):
        ledger.of(3).add(cells=1, certified=1, repaired=1, fired=0, pages=0, moved=0)
    assert Ledger().summary()["bytes_per_step"] == {"p50": 0.0, "p95": 0.0}
