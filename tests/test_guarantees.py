"""The labels do not mix, and no number under one of them loses it silently."""

from __future__ import annotations

import itertools
import json
import operator

import pytest
import torch

from witcert.errors import GuaranteeError, InputError
from witcert.guarantees import LABELS, Labelled, Measured, Proved, ProvedNonadaptive


def make(kind: type[Labelled], value: float | torch.Tensor = 0.5) -> Labelled:
    return Measured(value) if kind is Measured else kind(value, "meter_sound", 0.0 if kind is Proved else 0.01)


@pytest.mark.parametrize(("a", "b"), list(itertools.permutations(LABELS, 2)))
@pytest.mark.parametrize("op", [operator.lt, operator.le, operator.gt, operator.ge, operator.eq])
def test_comparing_two_labels_raises(a: type[Labelled], b: type[Labelled], op: object) -> None:
    with pytest.raises(GuaranteeError, match="cannot compare"):
        op(make(a), make(b))  # type: ignore[operator]


@pytest.mark.parametrize(("a", "b"), list(itertools.permutations(LABELS, 2)))
def test_taking_the_minimum_of_two_labels_raises(a: type[Labelled], b: type[Labelled]) -> None:
    with pytest.raises(GuaranteeError, match=a.label):
        make(a).minimum(make(b))


@pytest.mark.parametrize("kind", LABELS)
@pytest.mark.parametrize("other", [1.0, 2, None, torch.ones(1)])
def test_comparing_with_a_bare_number_raises(kind: type[Labelled], other: object) -> None:
    with pytest.raises(GuaranteeError):
        make(kind) <= other  # noqa: B015


@pytest.mark.parametrize("kind", LABELS)
@pytest.mark.parametrize("op", [operator.add, operator.sub, operator.mul, operator.truediv])
def test_arithmetic_raises_on_either_side(kind: type[Labelled], op: object) -> None:
    with pytest.raises(GuaranteeError, match="no arithmetic"):
        op(make(kind), 1.0)  # type: ignore[operator]
    with pytest.raises(GuaranteeError, match="no arithmetic"):
        op(1.0, make(kind))  # type: ignore[operator]


def test_the_same_label_compares_and_failure_probabilities_add_up() -> None:
    a, b = ProvedNonadaptive(0.3, "x", 0.01), ProvedNonadaptive(0.2, "y", 0.02)
    assert b < a
    assert a >= b
    low = a.minimum(b)
    assert isinstance(low, ProvedNonadaptive)
    assert float(low.value) == pytest.approx(0.2)
    assert low.delta == pytest.approx(0.03)
    assert low.theorem == "x + y"


def test_only_a_proved_number_weakens() -> None:
    weak = Proved(0.1, "meter_sound").as_nonadaptive()
    assert isinstance(weak, ProvedNonadaptive)
    assert not hasattr(ProvedNonadaptive(0.1, "t", 0.01), "as_proved")


def test_certifying() -> None:
    value = torch.tensor([0.1, 0.2, 0.3, float("nan")], dtype=torch.float64)
    assert Proved(value, "meter_sound").certifies(0.2).tolist() == [True, True, False, False]  # type: ignore[union-attr]
    with pytest.raises(GuaranteeError, match="certifies nothing"):
        Measured(0.1).certifies(0.2)
    with pytest.raises(InputError, match="tau"):
        Proved(0.1, "meter_sound").certifies(0.0)


def test_construction_is_validated() -> None:
    with pytest.raises(GuaranteeError, match="abstract"):
        Labelled(0.1)
    with pytest.raises(InputError, match="theorem"):
        Proved(0.1)
    with pytest.raises(InputError, match="nothing is promised"):
        Measured(0.1, "meter_sound")
    for delta in (-0.1, 1.0, float("nan")):
        with pytest.raises(InputError, match="delta"):
            ProvedNonadaptive(0.1, "t", delta)


@pytest.mark.parametrize("kind", LABELS)
def test_json_and_text_carry_the_label(kind: type[Labelled]) -> None:
    x = make(kind, torch.tensor([0.25, 0.5]))
    data = json.loads(json.dumps(x.to_json()))
    assert data["guarantee"] == kind.label
    assert data["value"] == [0.25, 0.5]
    assert ("theorem" in data) == (kind is not Measured)
    assert f"[{kind.label}" in str(x)


def test_map_keeps_everything_but_the_value() -> None:
    x = ProvedNonadaptive(torch.tensor([0.1, 0.4]), "t", 0.01).map(torch.amax)
    assert (float(x.value), x.theorem, x.delta) == (pytest.approx(0.4), "t", 0.01)
    with pytest.raises(TypeError):
        hash(x)


def test_the_float_nearest_to_a_threshold_is_not_certified_by_it() -> None:
    value = torch.tensor([0.2], dtype=torch.float32)
    assert float(value) > 0.2
    assert not bool(torch.as_tensor(Proved(value, "meter_sound").certifies(0.2)).any())
