"""Damage between steps: found by the sweep, written anew or refused, never served silently."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.hf.serving_models import FAMILIES, build, cache_name, cache_of, ids
from witcert.errors import CorruptionError, InputError
from witcert.gate import Gate
from witcert.hf.attach import attach

FAMILY = next(iter(FAMILIES))


def started(model: Any, prompt: int = 40) -> Any:
    """A prefill and one step, after which the pages of the prompt are sealed; the cache."""
    cache = cache_of(model(input_ids=ids(1, prompt)))
    model(input_ids=ids(1, 1), **{cache_name(model): cache})
    return cache


@pytest.mark.parametrize("part", ["k_code", "k_scale", "v_code", "witness"])
@torch.no_grad()
def test_a_flipped_bit_is_found_and_written_anew(part: str) -> None:
    model = build(FAMILY)
    with attach(model, format="int8", tokens=96, backing=True, sweep=1.0) as served:
        cache = started(model)
        store: Any = served.pool.stores[1]
        page = served.pool.pages(cache.sequences[0])[0]
        words = getattr(store, part)[page, 0].view(torch.int8)
        before = words.clone()
        words.view(-1)[5] ^= 4
        model(input_ids=ids(1, 1), **{cache_name(model): cache})
        assert {(d.layer, d.page) for d in served.healed} == {(1, page)}
        assert torch.equal(words, before)
        found = len(served.healed)
        model(input_ids=ids(1, 1), **{cache_name(model): cache})
        assert len(served.healed) == found


@torch.no_grad()
def test_damage_without_a_checked_copy_is_an_error() -> None:
    model = build(FAMILY)
    with attach(model, format="int8", tokens=96, gate="off", backing=False, sweep=1.0) as served:
        cache = started(model)
        store: Any = served.pool.stores[0]
        store.k_code[served.pool.pages(cache.sequences[0])[0], 0, 3, 9] ^= 1
        with pytest.raises(CorruptionError, match="no checked copy"):
            model(input_ids=ids(1, 1), **{cache_name(model): cache})
    with attach(model, format="int8", tokens=96, backing=True, sweep=1.0) as served:
        cache = started(model)
        assert served.pool.backing is not None
        slot = served.pool.pages(cache.sequences[0])[0] * served.pool.config.page_size
        served.pool.backing[0].v.view(torch.int16)[slot, 0, 2] ^= 1
        with pytest.raises(CorruptionError, match="backing"):
            model(input_ids=ids(1, 1), **{cache_name(model): cache})


@torch.no_grad()
def test_damage_in_the_side_pool_is_an_error() -> None:
    model = build(FAMILY)
    gate = Gate(tau=1e-4, mode="head")
    with attach(model, tier_b=True, tokens=96, side_pages=64, gate=gate, sweep=1.0) as served:
        cache = started(model)
        side = served.pool.side[0]
        taken = sorted(served.pool._side_taken[0])
        assert taken  # otherwise this test would show nothing
        side.k.view(torch.int16)[taken[0] * served.pool.config.page_size, 0, 1] ^= 1
        with pytest.raises(CorruptionError, match="side"):
            model(input_ids=ids(1, 1), **{cache_name(model): cache})


def test_a_share_out_of_range_is_refused() -> None:
    with pytest.raises(InputError, match=r"sweep=1\.5"):
        attach(build(FAMILY), format="int8", sweep=1.5)
