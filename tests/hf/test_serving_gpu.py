"""On a GPU: steps that are replayed as CUDA graphs serve, meter and repair what eager steps do, to the bit."""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.hf.serving_models import build, ids
from witcert import attach
from witcert.gate import Gate
from witcert.hf.attachment import Attachment
from witcert.schemes import get
from witcert.telemetry import Telemetry

pytestmark = pytest.mark.gpu
NEW = 24
OUTLIERS = torch.tensor([3, 9, 35, 41], dtype=torch.int32).expand(2, 2, 4)
WAYS: list[tuple[str, dict[str, Any]]] = [
    ("llama", {"format": "exact", "meter": "band", "gate": "off"}),
    ("mistral", {"format": "int8", "meter": "half", "gate": "off", "bands": None}),
    ("qwen3", {"format": "int8", "gate": Gate(tau=0.02)}),
    ("llama", {"tier_b": True, "gate": Gate(tau=0.05, mode="head")}),
    ("gpt_oss", {"tier_b": True, "gate": Gate(tau=0.05)}),
    ("llama", {"scheme": "rtn_int4", "gate": Gate(tau=0.05)}),
    ("qwen3", {"scheme": "fp8_e4m3_scaled", "gate": Gate(tau=0.05, mode="head")}),
    ("llama", {"scheme": "stochastic_int8", "gate": "off"}),
    ("qwen3", {"tier_b": True, "gate": Gate(tau=0.02), "outliers": OUTLIERS}),
]


def generated(model: Any, how: dict[str, Any], **changes: Any) -> tuple[Tensor, list[Any], Attachment]:
    prompt = ids(3, 40).cuda()
    mask = torch.ones_like(prompt)
    mask[0, :7] = 0
    side = None if how.get("format") == "exact" else 60
    with attach(model, **how, tokens=80, pages=15, side_pages=side, seed=3, **changes) as a:
        out = model.generate(
            prompt, attention_mask=mask, max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False, output_logits=True,
            return_dict_in_generate=True, pad_token_id=0,
        )  # fmt: skip
        return torch.stack(out.logits), a.records[-1].steps, a


@pytest.mark.parametrize(("family", "how"), WAYS)
@torch.no_grad()
def test_replayed_steps_are_eager_steps(family: str, how: dict[str, Any]) -> None:
    """24 steps of 3 rows, one padded: logits, every reading before and after the gate, and what was paged in."""
    model = build(family).cuda()
    runs = [generated(model, how, graphs=graphs) for graphs in (False, True)]
    (logits, steps, eager), (again, others, replayed) = runs
    assert torch.equal(logits, again)
    assert len(steps) == len(others) == NEW - 1
    for one, other in zip(steps, others, strict=True):
        assert (one.pages, one.bytes, one.refused) == (other.pages, other.bytes, other.refused)
        for a, b in ((one.before, other.before), (one.after, other.after)):
            assert [x.label for x in a] == [x.label for x in b]
            assert all(torch.equal(x.value, y.value) for x, y in zip(a, b, strict=True))
    assert not eager.gated.replays.replayed
    if "scheme" in how and not get(how["scheme"]).capturable:
        assert not replayed.gated.replays.replayed
    else:
        layers = len(replayed.modules)
        replays = replayed.gated.replays
        beside = {key[3:8] for key in replays._graphs if key[0] == "step" and key[2]}
        # the first step of a layer is eager, and so is the first of each kind of layer with repaired pages beside
        assert replays.replayed["step"] == layers * (NEW - 2) - len(beside)
        if how["gate"] != "off" and how["gate"].mode == "block":
            assert replays.replayed["blocks"] > 0
            assert replays.replayed["plan"] > 0
            assert replays.captured["plan"] <= 2  # one graph for all layers, and one more when the blocks outgrow it
            assert replays.replayed["again"] > 0
    if how["gate"] != "off":
        assert sum(s.bytes for s in steps) > 0
        assert sum(r.repaired for r in replayed.report()) > 0
    assert [r.cells for r in eager.report()] == [r.cells for r in replayed.report()]


@torch.no_grad()
def test_an_observer_keeps_what_it_was_shown() -> None:
    """What replays would overwrite is copied for it: kept to the end, every reading is that of its own step."""
    model = build("llama").cuda()
    runs = []
    for graphs in (False, True):
        kept: list[Any] = []
        how = {"tier_b": True, "gate": Gate(tau=0.05)}
        _, _, a = generated(model, how, graphs=graphs, observer=lambda *seen, to=kept: to.append(seen))
        assert bool(a.gated.replays.replayed) == graphs
        runs.append(kept)
    assert len(runs[0]) == len(runs[1]) == model.config.num_hidden_layers * (NEW - 1)
    for (layer, q, sequences, _, one), (other_layer, other_q, other_sequences, _, other) in zip(*runs, strict=True):
        assert (layer, sequences) == (other_layer, other_sequences)
        assert torch.equal(q, other_q)
        assert torch.equal(one.output.out, other.output.out)
        for a, b in ((one.before, other.before), (one.output.readings, other.output.readings)):
            for x, y in zip(a, b, strict=True):
                assert torch.equal(x.meter.value, y.meter.value)
                assert torch.equal(x.c_max, y.c_max)
                assert torch.equal(x.log_a, y.log_a)


@torch.no_grad()
def test_telemetry_counts_replayed_steps() -> None:
    model = build("llama").cuda()
    seen = []
    for graphs in (False, True):
        config = model.config
        telemetry = Telemetry(config.num_hidden_layers, config.num_attention_heads, tau=0.05, device="cuda")
        generated(model, {"tier_b": True, "gate": Gate(tau=0.05)}, graphs=graphs, telemetry=telemetry)
        snapshot = telemetry.snapshot()
        telemetry.close()
        seen.append(snapshot)
    one, other = seen
    for a, b in zip(one.tiers, other.tiers, strict=True):
        for x, y in zip(astuple(a), astuple(b), strict=True):
            assert np.array_equal(x, y, equal_nan=isinstance(x, np.ndarray) and x.dtype.kind == "f")


@torch.no_grad()
def test_rows_that_come_and_go_between_replays() -> None:
    """Batches of several sizes in turn, a crop and a reordering on one attachment: as without graphs."""
    model = build("llama").cuda()
    outs = []
    for graphs in (False, True):
        found = []
        with attach(model, format="int8", tokens=96, pages=24, side_pages=48, gate=Gate(tau=0.02), graphs=graphs):
            for batch in (2, 1, 2):
                prompt = ids(batch, 30, seed=batch).cuda()
                out = model.generate(
                    prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=6, min_new_tokens=6, do_sample=False,
                    pad_token_id=0,
                )  # fmt: skip
                found.append(out)
            prompt = ids(1, 30, seed=9).cuda()
            found.append(
                model.generate(
                    prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=8, min_new_tokens=8, do_sample=False,
                    num_beams=3, pad_token_id=0,
                )
            )  # fmt: skip
        outs.append(found)
    for x, y in zip(*outs, strict=True):
        assert torch.equal(x, y)
