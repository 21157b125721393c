"""The audit: outlier pairs that help on other texts, traffic that a gate would cause, advice that fits the budget."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests import models
from witcert import bounds, schemes
from witcert.audit import advice as decisions
from witcert.audit.job import AuditConfig, audit
from witcert.audit.outliers import _channels, _left, kept_channels, outlier_channels, rank_pairs
from witcert.audit.traffic import PAGE, layer_traffic
from witcert.budget import Budget
from witcert.cli import main
from witcert.errors import InputError
from witcert.meter import ExactAttention
from witcert.observe.activations import Activations, LayerActivations, save
from witcert.schemes import Site
from witcert.store import PoolConfig

TOKENS, HEAD_DIM = 70, 64


def layer(seed: int, loud: tuple[int, ...] = ()) -> LayerActivations:
    """Random attention of 4 query and 2 KV heads; channels ``loud`` of the keys are 30 times as large."""
    g = torch.Generator().manual_seed(seed)
    k = torch.randn(2, TOKENS, HEAD_DIM, generator=g)
    k[..., list(loud)] *= 30.0
    q = torch.randn(4, 6, HEAD_DIM, generator=g)
    q[..., list(loud)] *= 0.05
    return LayerActivations(q, k, torch.randn(2, TOKENS, HEAD_DIM, generator=g), torch.zeros(6, dtype=torch.int32), 0.125)


def recording(domain: str, seed: int) -> Activations:
    positions = torch.tensor([10, 20, 33, 47, 60, 69])
    layers = [layer(seed, (5, 5 + 32)), layer(seed + 1, (40,)), layer(seed + 2)]
    return Activations(domain, layers, positions, "half", HEAD_DIM, {"model": "random", "tokens": TOKENS})


@pytest.fixture(scope="module")
def recordings() -> list[Activations]:
    return [recording("first", 1), recording("second", 11), recording("third", 21)]


@pytest.mark.parametrize(("head_dim", "pairing"), [(64, "half"), (64, "adjacent"), (16, "half"), (128, "adjacent")])
def test_what_is_left_without_a_pair(head_dim: int, pairing: str) -> None:
    magnitude, weight = torch.rand(2, 5, head_dim), torch.rand(2, head_dim)
    pairs = _channels(torch.arange(head_dim // 2)[:, None], head_dim, pairing)
    left = _left(magnitude, weight, pairs)
    for j, pair in enumerate(pairs):
        m, w = magnitude.clone(), weight.clone()
        m[..., pair], w[:, pair] = 0.0, 0.0
        parts = zip(m.split(32, -1), w.split(32, -1), strict=True)
        torch.testing.assert_close(left[:, j], sum(a.amax(-1).mean(-1) * b.sum(-1) for a, b in parts))


def test_loud_pairs_are_chosen_first(recordings: list[Activations]) -> None:
    ranked = rank_pairs(recordings[0], 4)
    assert ranked.shape == (3, 2, 4)
    assert (ranked[0, :, 0] == 5).all()
    assert (ranked[1, :, 0] == 8).all()  # channel 40 belongs to the pair 8
    assert all(len(set(row.tolist())) == 4 for row in ranked.flatten(0, 1))
    channels = outlier_channels(ranked, 2, HEAD_DIM, "half")
    config = PoolConfig(layers=3, heads=4, kv_heads=2, head_dim=HEAD_DIM, pages=4, tokens=64, format="int8",
                        outlier_channels=channels)  # fmt: skip
    assert config.outliers == 4
    with pytest.raises(InputError, match="pairs=5"):
        outlier_channels(ranked, 5, HEAD_DIM, "half")


@pytest.mark.parametrize("name", ["rtn_int8", "dither_int8"])
def test_kept_channels_are_exact_to_16_bits_and_their_step_says_so(name: str) -> None:
    k = layer(3, (5, 37)).k
    channels = torch.tensor([[5, 37], [1, 33]])
    scheme = kept_channels(schemes.get(name), channels, HEAD_DIM)
    served = scheme(k, Site.contiguous(TOKENS))
    assert served.step is not None
    for head in (0, 1):
        at = channels[head]
        assert torch.equal(served.x_hat[head][:, at], k[head][:, at].half().float())
    assert bool(((served.x_hat.double() - k.double()).abs() <= served.step.double() / 2).all())
    plain = schemes.get(name)(k, Site.contiguous(TOKENS))
    assert plain.step is not None
    assert served.step[0, :, 6].mean() < plain.step[0, :, 6].mean() / 5  # the loud channels count in no scale
    assert scheme.bytes_per_token(HEAD_DIM, "k") == schemes.get(name).bytes_per_token(HEAD_DIM, "k") + 4
    assert scheme.bytes_per_token(HEAD_DIM, "v") == schemes.get(name).bytes_per_token(HEAD_DIM, "v")


def test_pages_of_a_plan_are_enough_when_they_are_made_exact() -> None:
    """Serve the chosen pages exactly: the meter that results is at most tau, and the prediction was no smaller."""
    x = layer(5)
    x = replace(x, q=x.q * 4)
    side = ExactAttention(x.q, x.k, scale=x.scale, positions=torch.tensor([10, 20, 33, 47, 60, 69]))
    budget = Budget(1, 4, 2, steps=6)
    served = schemes.get("rtn_int4")(x.k, Site.contiguous(TOKENS))
    cells = side.cells(served, budget)
    value = torch.as_tensor(cells.meters[0].value)
    tau = float(value.median()) * 0.5
    found = layer_traffic(side, served, budget, (tau, 0.999999), "proved")
    assert found.violations == 0
    assert found.total_pages == -(-TOKENS // PAGE)
    assert 0 < int(found.pages[0].sum()) <= 2 * found.total_pages
    assert (found.pages[0] <= found.step_pages[0]).all()
    c, p = cells.c, cells.p_tilde
    for head in range(2):
        for query in range(6):
            above = bool((value.view(2, 2, 6)[head, :, query] > tau).any())
            least = _fewest(p[head, :, query], c[head, :, query], tau) if above else 0
            one = layer_traffic(_only(side, x, query), served, budget, (tau,), "proved")
            assert int(one.step_pages[0, head]) == least


def _only(side: ExactAttention, x: LayerActivations, query: int) -> ExactAttention:
    where = torch.tensor([10, 20, 33, 47, 60, 69])[query : query + 1]
    return ExactAttention(x.q[:, query : query + 1], x.k, scale=x.scale, positions=where)


def _fewest(p: Tensor, c: Tensor, tau: float) -> int:
    """Pages in order of contribution until ``page_in_bound`` gives a meter of at most tau; [G, T]."""
    pages = -(-p.shape[1] // PAGE)
    page = torch.arange(p.shape[1]) // PAGE
    worth = torch.stack([(p * torch.expm1(c) * (page == j)).sum(-1) for j in range(pages)], -1).amax(0)
    order = worth.argsort(descending=True, stable=True)
    for n in range(1, pages + 1):
        gone = torch.isin(page, order[:n])
        log_a = bounds.page_in_log_a(p, c, gone.expand_as(p))
        if bool((bounds.meter(log_a + 2.0**-30, c.masked_fill(gone, 0.0).amax(-1) + 2.0**-34) <= tau).all()):
            return n
    return pages


def test_advice_fits_the_budget(recordings: list[Activations]) -> None:
    found = audit(recordings, AuditConfig(scheme="rtn_int8", tau=0.02, pairs=(0, 2, 4)))
    assert found.violations == 0
    assert found.held_out
    assert found.audited_on == ["second", "third"]
    advice = decisions.advise(found)
    assert advice.traffic_left <= found.budget < advice.traffic
    assert advice.exact_layers
    data = decisions.to_json(found, advice)
    json.dumps(data, allow_nan=False)
    assert [row["layer"] for row in data["layers"] if row["keep_exact"]] == advice.exact_layers
    words = " ".join(map(str, advice.exact_layers))
    assert data["advice"]["vllm"] == f"--kv-cache-dtype-skip-layers {words}"
    assert "second (70 tokens, 6 queries)" in data["advice"]["statement"]
    for variant in data["variants"]:
        traffic = list(variant["traffic_bytes"].values())
        assert traffic == sorted(traffic, reverse=True)
    everything = decisions.advise(replace(found, budget=10**9))
    assert everything.exact_layers == []
    assert everything.pairs == 0
    assert everything.tau == min(found.config.taus)


def test_outliers_help_on_texts_that_they_were_not_chosen_on(recordings: list[Activations]) -> None:
    none, some = audit(recordings, AuditConfig(scheme="dither_int8", pairs=(0, 2))).variants
    assert some.meter[:2].median() < none.meter[:2].median() / 3
    assert some.violations == none.violations == 0


def test_one_text_says_that_it_is_optimistic(recordings: list[Activations]) -> None:
    found = audit(recordings[:1], AuditConfig(pairs=(0, 2)))
    assert not found.held_out
    assert "optimistic" in decisions.statement(found, decisions.advise(found))


def test_other_schemes_try_no_outliers(recordings: list[Activations]) -> None:
    found = audit(recordings, AuditConfig(scheme="rtn_int4"))
    assert [v.pairs for v in found.variants] == [0]


@pytest.mark.parametrize(
    "bad", [{"tau": 0.0}, {"guarantee": "measured"}, {"budget": -1}, {"pairs": (3,)}, {"scheme": "nope"}, {"bands": 0}]
)
def test_settings_are_validated(bad: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        AuditConfig(**bad)


def run(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[int, str, str]:
    status = 0
    try:
        main([str(a) for a in args])
    except SystemExit as e:
        status = int(e.code or 0)
    out = capsys.readouterr()
    assert "Traceback" not in out.err + out.out
    return status, out.out, out.err


def test_command_on_a_recording(
    capsys: pytest.CaptureFixture[str], recordings: list[Activations], tmp_path: Path
) -> None:
    from safetensors import safe_open

    save(recordings, tmp_path / "r.safetensors")
    where = ("--activations", tmp_path / "r.safetensors")
    out = tmp_path / "o.safetensors"
    status, text, _ = run(capsys, "audit", *where, "--tau", 0.05, "--pairs", "0,2,4", "--outliers", out, "--json")
    assert status == 0
    data = json.loads(text)
    assert data["format"] == "witcert-audit/1"
    assert data["advice"]["pairs"] > 0
    with safe_open(out, framework="pt") as f:
        channels = f.get_tensor("outlier_channels")
        assert f.metadata()["calibrated_on"] == "first"
    assert channels.dtype == torch.int32
    assert channels.shape == (3, 2, 2 * data["advice"]["pairs"])
    status, text, _ = run(capsys, "audit", *where, "--tau", 0.05, "--budget", 0, "--scheme", "fp8_e4m3_raw")
    assert status == 0
    assert "--kv-cache-dtype-skip-layers" in text
    status, _, err = run(capsys, "audit", *where, "--pairs", "0,x")
    assert (status, "pairs" in err) == (2, True)
    status, _, err = run(capsys, "audit", *where, "--outliers", tmp_path / "no" / "o")
    assert (status, "does not exist" in err) == (2, True)


def test_command_on_a_model_with_a_text(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = models.save("llama", tmp_path / "llama")
    (tmp_path / "mine.txt").write_text("a line of text that says nothing in particular. " * 8)
    status, text, _ = run(capsys, "audit", folder, "--text", tmp_path / "mine.txt", "--tokens", 48, "--queries", 4, "--json")
    assert status == 0
    assert json.loads(text)["about"]["texts"]["mine"]["tokens"] == 48
