"""Forwards of several tokens over a stored prefix: metered, never below the truth, counted, and paid for in the budget."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.hf.serving_models import build, cache_name, cache_of, ids
from tests.hf.test_serving_sound import FORMATS, logits, served
from witcert.cli.generate import _verdict
from witcert.gate import Gate, chunk
from witcert.guarantees import Proved, ProvedNonadaptive
from witcert.hf.attach import Attachment, attach
from witcert.hf.chunks import reduced
from witcert.kernels.decode import Reading
from witcert.telemetry import Telemetry

STEPS = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False}


class Watch:
    """Recomputes the true total variation of every query of every chunk, from the served keys and the backing store."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.attachment: Attachment | None = None
        self.cells, self.largest, self.repaired = 0, 0.0, 0
        self.meters: list[Tensor] = []
        self.violations: list[str] = []
        self.real = chunk.extend
        monkeypatch.setattr(chunk, "extend", self)

    def __call__(self, gated: Any, layer: int, q: Tensor, k: Tensor, v: Tensor, table: Any, lens: Tensor, **how: Any) -> Any:
        out = self.real(gated, layer, q, k, v, table, lens, **how)
        a = self.attachment
        assert a is not None
        assert a.pool.backing is not None
        side = None if gated.repairs is None else gated.repairs.side_table(layer, table)
        self.repaired += 0 if side is None else int(side[0].sum())
        cache = a.cache
        assert cache is not None
        for b, s in enumerate(cache.sequences):
            start, window = int(table.seq_lens[b]), how["window"]
            exact = a.pool.backing[layer].k[a.pool.table([s]).slots(0)].double()
            mixed = torch.cat((served(a, layer, s)[:start], exact[start:]))  # what is new is exact
            for i in range(int(lens[b]) if start else 0):
                end = start + i + 1
                p, p_tilde = (
                    torch.softmax(logits(q[b, i], x[:end], {**how, "window": window}), -1) for x in (exact, mixed)
                )
                tv = 0.5 * (p - p_tilde).abs().sum(-1)
                self.largest = max(self.largest, float(tv.max()))
                self.cells += len(tv)
                for r in out.readings:
                    meter = torch.as_tensor(r.meter.value)[b, i].double()
                    assert isinstance(r.meter, (Proved, ProvedNonadaptive))
                    self.meters.append(meter)
                    if not bool((meter >= tv).all()):
                        self.violations.append(f"layer {layer}, {r.meter.label}: {meter.tolist()} < {tv.tolist()}")
        return out


CASES = [
    ("mistral", "exact", "off"), ("llama", "int8, half-steps", "off"), ("gemma2", "dither, Tier B", "off"),
    ("gpt_oss", "scheme rtn_int4", "off"), ("llama", "int8, band norms", None), ("gpt_oss", "int8, half-steps", None),
    ("mistral", "dither, Tier B", None), ("gpt_oss", "dither, Tier B", None), ("gemma2", "dither, band norms", None),
    ("qwen3", "scheme rtn_int4", None),
]  # fmt: skip


@pytest.mark.parametrize(("family", "name", "gate"), CASES, ids=[f"{f}-{n}-{g or 'gated'}" for f, n, g in CASES])
@torch.no_grad()
def test_every_meter_of_a_second_turn_bounds_the_truth(
    family: str, name: str, gate: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunked prompt, steps that repair pages, a second turn of 7 tokens: every query that sees a stored prefix."""
    model, watch = build(family), Watch(monkeypatch)
    prompt = ids(2, 30)
    mask = torch.ones_like(prompt)
    mask[0, :5] = 0
    tau = 0.02 if name != "exact" else 0.2
    with attach(model, **FORMATS[name], gate=gate, tau=tau, backing=True, tokens=64, pages=16) as a:
        watch.attachment = a
        first = model.generate(prompt, attention_mask=mask, prefill_chunk_size=18, return_dict_in_generate=True, **STEPS)
        longer = torch.cat([first.sequences, ids(2, 6, seed=9)], 1)
        full = torch.cat([mask, mask.new_ones(2, 10)], 1)
        model.generate(longer, attention_mask=full, **{cache_name(model): cache_of(first)}, **STEPS)
        reports = a.report()
    assert not watch.violations
    # 12 tokens of the prompt over 18 (13 in the padded row), then the last token of the first turn and 6 new ones
    assert watch.cells == 2 * 2 * 4 * (12 + 7)
    assert (watch.largest > 1e-4) or name == "exact"
    packed = a.pool.config.packed
    assert (watch.repaired > 0) == (gate is None and packed)
    for row, r in enumerate(reports):
        assert (r.chunks, r.chunk_tokens, r.chunk_cells, r.unmetered, r.exact) == (2, 19, 152, 0, (13, 18)[row])
        assert r.steps == 6
        assert r.cells == 48
        for m in r.chunk_worst:
            assert torch.as_tensor(m.value).shape == (2,)
    # what is reported are the largest of the meters, and how many were at most tau
    kinds = len(reports[0].chunk_worst)
    values = torch.stack(watch.meters).view(-1, kinds, 4).float()
    for i in range(kinds):
        assert float(values[:, i].max()) == max(float(torch.as_tensor(r.chunk_worst[i].value).max()) for r in reports)
    certified = sum(r.chunk_certified for r in reports)
    assert certified == int((values[:, 0].double() <= tau).sum())  # the proved reading comes first
    assert certified < 2 * 152 or name == "exact"


TURNS = [("llama", "int8, band norms"), ("gemma2", "dither, Tier B"), ("gpt_oss", "int8, half-steps"),
         ("mistral", "dither, Tier B")]  # fmt: skip


@pytest.mark.parametrize(("family", "name"), TURNS, ids=[f"{f}-{n}" for f, n in TURNS])
@torch.no_grad()
def test_a_second_turn_is_repaired(family: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With Gate(chunk=8) the 7 tokens of a second turn end at most tau, each reading still above the truth; what was paged in
    is in the report, the ledger and the telemetry. The 18 tokens of the prompt's first forward have no prefix, its 12 others
    are more than 8: reported only."""
    model, watch = build(family), Watch(monkeypatch)
    prompt = ids(2, 30)
    gate = Gate(tau=0.02, chunk=8)
    telemetry = Telemetry(2, 4, tau=0.02)
    with attach(model, **FORMATS[name], gate=gate, tokens=64, pages=16, side_pages=40, telemetry=telemetry) as a:
        watch.attachment = a
        first = model.generate(prompt, prefill_chunk_size=18, return_dict_in_generate=True, **STEPS)
        (turn, *_), (long,) = a.report(), a.records[-1].chunks
        told = turn.bytes
        cache = cache_of(first)
        longer = torch.cat([first.sequences, ids(2, 6, seed=9)], 1)
        model.generate(longer, **{cache_name(model): cache}, **STEPS)
        reports, chunks = a.report(), a.records[-1].chunks
        traffic = a.ledger.summary()
    snapshot = telemetry.snapshot()
    telemetry.close()
    assert not watch.violations
    assert [c.tokens for c in chunks] == [(12, 12), (7, 7)]
    assert int(torch.stack(long.repaired).sum()) == long.bytes == 0
    proved = chunks[1]
    assert proved.bytes > 0
    assert proved.pages > 0
    assert proved.refused == 0
    assert bool((proved.certified[0] + proved.repaired[0] == 7 * 4).all())  # [L, batch], the proved reading
    assert int(proved.repaired[0].sum()) > 0
    assert float(torch.as_tensor(proved.worst[0].value).max()) <= 0.02
    for row, r in enumerate(reports):
        before = long.cells[row] - int(long.certified[0][:, row].sum())
        assert r.chunk_certified + r.chunk_repaired == r.chunk_cells - before
        assert r.bytes >= told + proved.bytes
    assert traffic["bytes"] == reports[0].bytes  # of the whole batch
    assert snapshot.pagein_bytes == traffic["bytes"]


@torch.no_grad()
def test_a_first_prompt_is_not_metered_and_pays_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: Any, **__: Any) -> Any:
        raise AssertionError("a chunk without prefix went through the metered path")

    monkeypatch.setattr(chunk, "extend", forbidden)
    model = build("llama")
    with attach(model, format="int8", tokens=64) as a:
        model.generate(ids(1, 30), **STEPS)
        (report,) = a.report()
        assert (report.exact, report.chunks, report.chunk_tokens, report.chunk_worst) == (30, 0, 0, ())
        with pytest.raises(AssertionError, match="metered path"):
            model.generate(ids(1, 30), prefill_chunk_size=8, **STEPS)


@torch.no_grad()
def test_a_row_without_a_prefix_stays_exact_beside_one_with() -> None:
    """The first forward is padding for row 0: in the second, row 0 sees its own keys only, row 1 a stored prefix."""
    model, tokens = build("llama"), ids(2, 12)
    mask = torch.ones_like(tokens)
    mask[0, :7] = 0
    with Telemetry(2, 4, tau=0.2) as telemetry, attach(model, format="int8", tokens=64, pages=16, telemetry=telemetry) as a:
        cache = a.new_cache()
        model(input_ids=tokens[:, :7], attention_mask=mask[:, :7], past_key_values=cache)
        model(input_ids=tokens[:, 7:], attention_mask=mask, past_key_values=cache)
        first, second = a.report()
        counted = telemetry.snapshot()
    assert (first.exact, first.chunk_tokens, first.chunks, first.guarantee) == (5, 0, 0, None)
    assert "5 tokens of 1 longer forwards: " in _verdict(second)
    assert _verdict(first) == "no decode step was metered"
    assert (second.exact, second.chunk_tokens, second.chunk_cells, second.guarantee) == (7, 5, 40, "proved")
    assert first.chunk_worst == ()
    (tier,) = (x for x in counted.tiers if x.cells.sum())
    assert (tier.label, tier.cells.tolist(), int(tier.certified.sum())) == ("proved", [20, 20], second.chunk_certified)
    assert int(tier.violations.sum()) == 0


@torch.no_grad()
def test_what_is_kept_does_not_grow_with_the_chunk() -> None:
    model = build("llama")
    sizes = []
    for n in (4, 90):
        with attach(model, tier_b=True, tokens=128, pages=16) as a:
            cache = a.new_cache()
            model(input_ids=ids(1, 20), past_key_values=cache)
            model(input_ids=ids(1, n), past_key_values=cache)
            (record,) = a.records[0].chunks
            sizes.append(sum(torch.as_tensor(m.value).numel() for m in record.worst) + sum(x.numel() for x in record.certified))
            assert record.tokens == (n,)
            assert record.cells == (n * 2 * 4,)
            other = copy.deepcopy(cache)
            model(input_ids=ids(1, 3), past_key_values=other)
            assert [len(r.chunks) for r in a.records] == [1, 2]
    assert sizes[0] == sizes[1] == 2 * 2 * 2  # readings, layers, and two numbers of each


@torch.no_grad()
def test_every_position_of_a_chunk_is_a_step_of_the_budget() -> None:
    """Within the declared steps a request spends delta_req; beyond them more, and at 1 nothing is promised."""
    model = build("llama")
    spent = []
    for n in (6, 40, 900):
        with attach(model, tier_b=True, tokens=1024, steps=8, fixed_queries=True) as a:
            cache = a.new_cache()
            model(input_ids=ids(1, 20), past_key_values=cache)
            model(input_ids=ids(1, n), past_key_values=cache)
            model(input_ids=ids(1, 1), past_key_values=cache)
            (report,) = a.report()
        assert report.applies == {"proved": True, "proved-nonadaptive": True}
        found = {m.label: m for m in report.chunk_worst}
        steps = {m.label: m for m in report.worst}
        for label, m in found.items():
            assert m.delta == steps[label].delta  # one request, one probability
        assert found["proved"].delta == 1e-2  # whatever the number of queries
        spent.append(found["proved-nonadaptive"])
    assert spent[0].delta == pytest.approx(1e-2)
    assert spent[1].delta == pytest.approx(1e-2 * 41 / 8)
    assert spent[2].delta == 0.0
    assert bool((torch.as_tensor(spent[2].value) == 1).all())


@torch.no_grad()
def test_without_a_meter_the_queries_are_counted_as_unmetered() -> None:
    model = build("llama")
    with attach(model, format="int8", meter=None, gate="off", tokens=64) as a:
        cache = a.new_cache()
        model(input_ids=ids(1, 20), past_key_values=cache)
        model(input_ids=ids(1, 5), past_key_values=cache)
        (report,) = a.report()
    assert (report.unmetered, report.chunk_tokens, report.chunk_worst, report.guarantee) == (5, 0, (), None)
    assert _verdict(report) == "no decode step was metered; 5 queries of the prompt were not metered"
    said = report.to_json()
    assert said["chunk_worst_by_layer"] == []
    assert "chunk_worst" not in said


@torch.no_grad()
def test_a_chunk_that_fails_leaves_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    model, real = build("llama"), chunk.extend

    def failing(gated: Any, layer: int, *x: Any, **how: Any) -> Any:
        if layer:
            raise ZeroDivisionError
        return real(gated, layer, *x, **how)

    with attach(model, format="int8", gate=Gate(tau=0.2), tokens=64) as a:
        cache = a.new_cache()
        model(input_ids=ids(1, 20), past_key_values=cache)
        monkeypatch.setattr(chunk, "extend", failing)
        with pytest.raises(ZeroDivisionError):
            model(input_ids=ids(1, 5), past_key_values=cache)
        (report,) = a.report()
        assert (report.chunks, report.unmetered, report.tokens) == (0, 0, (20,))
        monkeypatch.setattr(chunk, "extend", real)
        model(input_ids=ids(1, 5), past_key_values=cache)
        (report,) = a.report()
        assert (report.chunks, report.chunk_tokens, report.tokens) == (1, 5, (25,))


def test_reduction_leaves_padding_out_and_counts_nan_as_one() -> None:
    value = torch.tensor([[[0.1, 0.3], [0.2, 0.15], [0.9, 0.9]], [[0.5, 0.2], [float("nan"), 0.1], [0.0, 0.0]]])
    reading = Reading(Proved(value, "meter_sound"), value, value)
    (kept,) = reduced((reading,), torch.tensor([2, 2]), 0.2)
    assert torch.as_tensor(kept.worst.value).tolist() == [pytest.approx(0.3), 1.0]
    assert kept.certified.tolist() == [2, 1]  # the float32 nearest to 0.2 is above it
    (none,) = reduced((reading,), torch.tensor([0, 1]), 0.5)
    assert torch.as_tensor(none.worst.value).tolist() == [0.0, 0.5]
    assert none.certified.tolist() == [0, 2]
