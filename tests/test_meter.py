"""From quantized keys to a labelled bound: per cell, one-sided, over layouts, caps, sinks and windows."""

from __future__ import annotations

import mpmath as mp
import pytest
import torch

from witcert import schemes
from witcert.budget import Budget
from witcert.errors import InputError
from witcert.guarantees import Proved, ProvedNonadaptive
from witcert.meter import ExactAttention
from witcert.observe.activations import LayerActivations
from witcert.observe.recheck import exact_tv
from witcert.schemes import Served, Site
from witcert.witness import Bands

BUDGET = Budget(layers=1, heads=4, kv_heads=2, steps=8)
CASES = 11 * 4 * 6  # schemes × variants × keys below
VARIANTS = {"plain": {}, "softcap": {"softcap": 3.0}, "sinks": {"sinks": True}, "window": {"window": 9}}


def keys(kind: str, tokens: int = 40, d: int = 32) -> torch.Tensor:
    g = torch.Generator().manual_seed(len(kind))
    k = torch.randn(2, tokens, d, generator=g)
    if kind == "outlier":
        k[..., 3] *= 40
    elif kind == "zero_channel":
        k[..., 5] = 0
    elif kind == "flat":
        k = k * 1e-3
    elif kind == "peaked":
        k[:, 0] = 12.0
    elif kind == "one_token":
        k = k[:, :1]
    return k


def attention(
    k: torch.Tensor, variant: str, q_scale: float = 2.0
) -> tuple[ExactAttention, LayerActivations, torch.Tensor]:
    g = torch.Generator().manual_seed(7)
    tokens, d = k.shape[1], k.shape[2]
    q = torch.randn(4, min(8, tokens), d, generator=g) * q_scale
    positions = torch.linspace(tokens // 2, tokens - 1, q.shape[1]).long()
    opt = dict(VARIANTS[variant])
    window = opt.pop("window", None)
    first = (positions - window + 1).clamp_min(0) if window else torch.zeros_like(positions)
    sinks = torch.tensor([0.5, -1.0, 2.0, 0.0]) if opt.pop("sinks", False) else None
    softcap = opt.get("softcap")
    layer = LayerActivations(q, k, k.clone(), first.int(), d**-0.5, softcap, sinks)
    exact = ExactAttention(
        q, k, scale=d**-0.5, positions=positions, first=first, softcap=softcap, sinks=sinks, bands=Bands(d, 8)
    )
    return exact, layer, positions


@pytest.mark.parametrize("kind", ["normal", "outlier", "zero_channel", "flat", "peaked", "one_token"])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", schemes.names())
def test_every_meter_is_at_least_the_truth(name: str, variant: str, kind: str) -> None:
    k = keys(kind)
    exact, layer, positions = attention(k, variant)
    scheme = schemes.get(name)
    served = scheme(k, Site.contiguous(k.shape[1]))
    cells = exact.cells(served, BUDGET)
    for meter in cells.meters:
        value = torch.as_tensor(meter.value)
        assert value.shape == cells.tv.shape
        assert bool((value >= cells.tv).all()), f"{name}: smallest distance {float((value - cells.tv).min())}"
        assert bool((value <= 1).all())
    # the truth itself, at 50 digits from the stored bits, on the cell with the smallest ratio
    ratio = torch.where(cells.tv > 0, torch.as_tensor(cells.meters[0].value) / cells.tv, torch.inf)
    head, query = divmod(int(ratio.argmin()), ratio.shape[1])
    tv = exact_tv(layer, served.x_hat, head, query, int(positions[query]))
    assert abs(float(tv) - float(cells.tv[head, query])) <= 1e-9 * max(float(tv), 1e-3)
    assert mp.mpf(float(torch.as_tensor(cells.meters[0].value)[head, query])) >= tv


def test_the_matrix_above_is_the_whole_registry() -> None:
    assert len(schemes.names()) * len(VARIANTS) * 6 >= CASES


def test_an_exact_cache_reads_almost_zero_and_a_broken_one_reads_one() -> None:
    k = keys("normal")
    exact, _, _ = attention(k, "plain")
    cells = exact.cells(Served(k.clone()), BUDGET)
    assert float(cells.tv.max()) == 0.0
    assert 0.0 < float(torch.as_tensor(cells.meters[0].value).max()) < 1e-8  # what float64 arithmetic itself may do
    for bad in (float("nan"), float("inf"), -float("inf")):
        damaged = k.clone()
        damaged[0, 3, 4] = bad
        cells = exact.cells(Served(damaged), BUDGET)
        value = torch.as_tensor(cells.meters[0].value)
        assert bool((value[:2] == 1).all())  # both query heads of the damaged KV head
        assert bool((cells.tv[:2] == 1).all())
        assert bool((value[2:] < 1e-8).all())


def test_a_token_that_no_query_sees_changes_nothing() -> None:
    k = keys("normal")
    exact, _, positions = attention(k, "window")
    hidden = k.clone()
    hidden[:, : int(positions[0]) - 9] = 50.0
    a = exact.cells(Served(k.clone()), BUDGET)
    b = exact.cells(Served(hidden), BUDGET)
    assert torch.equal(torch.as_tensor(a.meters[0].value), torch.as_tensor(b.meters[0].value))
    assert float(b.tv.max()) == 0.0


def test_dithered_keys_get_three_meters_with_their_labels() -> None:
    k = keys("normal")
    exact, _, _ = attention(k, "plain")
    cells = exact.cells(schemes.get("dither_int8")(k, Site.contiguous(40)), BUDGET)
    det, adaptive, nonadaptive = cells.meters
    assert (type(det), det.delta) == (Proved, 0.0)
    assert (type(adaptive), adaptive.delta) == (Proved, BUDGET.delta_req)
    assert (type(nonadaptive), nonadaptive.delta) == (ProvedNonadaptive, BUDGET.delta_req)
    d, a, n = (torch.as_tensor(m.value) for m in cells.meters)
    assert bool((a <= d).all())
    assert bool((n <= d).all())
    assert float((n < a).double().mean()) > 0.7  # the weaker promise buys a tighter number, even at d = 32


def test_more_bands_are_never_looser() -> None:
    k = keys("outlier")
    served = schemes.get("rtn_int8")(k, Site.contiguous(40))
    bare = Served(served.x_hat)
    medians = []
    for bands in (1, 4, 16):
        exact, _, _ = attention(k, "plain")
        exact = ExactAttention(
            exact.q.flatten(0, 1), k, scale=32**-0.5, positions=torch.linspace(20, 39, 8).long(), bands=Bands(32, bands)
        )
        medians.append(float(torch.as_tensor(exact.cells(bare, BUDGET).meters[0].value).median()))
    assert medians[0] > medians[1] > medians[2]


@pytest.mark.parametrize(
    ("change", "message"),
    [({"scale": 0.0}, "scale"), ({"scale": float("nan")}, "scale"), ({"softcap": -1.0}, "softcap")],
)
def test_bad_settings_are_refused(change: dict[str, float], message: str) -> None:
    k = keys("normal")
    good = {"scale": 0.1, "positions": torch.arange(8)}
    with pytest.raises(InputError, match=message):
        ExactAttention(torch.randn(4, 8, 32), k, **(good | change))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="grouped-query"):
        ExactAttention(torch.randn(3, 8, 32), k, **good)  # type: ignore[arg-type]
    exact = ExactAttention(torch.randn(4, 8, 32), k, **good)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="served keys"):
        exact.cells(Served(k[:, :5]), BUDGET)
