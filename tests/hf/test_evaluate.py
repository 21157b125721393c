"""The measured damage: known answers, and the served cache really is what the model attends to."""

from __future__ import annotations

import pytest
import torch

from tests import models
from witcert import schemes
from witcert.errors import InputError
from witcert.hf import describe
from witcert.hf.capture import capture, query_positions
from witcert.hf.evaluate import Encoded, damage, encode, recall_accuracy, served_logits
from witcert.hf.load import LoadedModel
from witcert.observe.texts import Text, recall


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    model = models.tiny("qwen3")
    return LoadedModel("qwen3", model, models.tokenizer(), describe(model), "")


def encoded(ids: list[int], answers: list[int] | None = None) -> Encoded:
    return Encoded(Text("t", ""), torch.tensor([ids]), torch.tensor(answers or [], dtype=torch.long))


def test_kl_and_top1_have_known_answers() -> None:
    exact = torch.log(torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1]]))
    served = torch.log(torch.tensor([[0.25, 0.5, 0.25], [0.1, 0.8, 0.1]]))
    d = damage(exact, served, encoded([0, 1]))
    kl = 0.5 * torch.log(torch.tensor(2.0)) + 0.25 * torch.log(torch.tensor(0.5))
    assert d.kl == pytest.approx(float(kl) / 2, rel=1e-6)
    assert d.top1 == 0.5
    assert d.recall is None


def test_recall_counts_the_token_after_the_position() -> None:
    logits = torch.zeros(4, 5)
    logits[0, 3] = logits[1, 2] = logits[2, 4] = 1.0  # predicts 3, 2, 4 for positions 1, 2, 3
    assert recall_accuracy(logits, encoded([0, 3, 1, 4], [1, 2, 3])) == pytest.approx(2 / 3)


def test_the_identity_scheme_changes_no_logit_and_a_coarse_one_does(loaded: LoadedModel) -> None:
    e = encode(loaded, Text("t", "some text " * 6), 40)
    _, exact = capture(loaded, e.input_ids, query_positions(40, 4), "t")
    assert torch.equal(exact, served_logits(loaded, e.input_ids, schemes.get("identity")))
    kl = [
        damage(exact, served_logits(loaded, e.input_ids, schemes.get(n)), e).kl
        for n in ("rtn_int8", "rtn_int4", "rtn_int2")
    ]
    assert 0 < kl[0] < kl[1] < kl[2]


def test_keys_and_values_are_both_served(loaded: LoadedModel) -> None:
    """Quantizing one side only gives other logits than quantizing both."""
    e = encode(loaded, Text("t", "some text " * 6), 40)
    only: dict[str, torch.Tensor] = {}
    for side in ("k", "v"):

        @schemes.register(f"only_{side}")
        def one(x: torch.Tensor, site: schemes.Site, side: str = side) -> torch.Tensor:
            return (x * 2).round() / 2 if site.side == side else x

        only[side] = served_logits(loaded, e.input_ids, schemes.get(f"only_{side}"))
        schemes.unregister(f"only_{side}")
    exact = served_logits(loaded, e.input_ids, schemes.get("identity"))
    assert not torch.allclose(only["k"], exact, atol=1e-4)
    assert not torch.allclose(only["v"], exact, atol=1e-4)
    assert not torch.allclose(only["k"], only["v"], atol=1e-4)


@pytest.mark.parametrize("tokens", [60, 130, 400])
def test_the_recall_text_fits_and_no_answer_is_cut(loaded: LoadedModel, tokens: int) -> None:
    e = encode(loaded, recall(40), tokens)
    assert e.input_ids.shape[1] <= tokens
    assert len(e.answers) == 3 * e.text.pairs  # one token a byte: three digits
    text = loaded.tokenizer.decode(e.input_ids[0])
    assert all(text[a:b].isdigit() for a, b in e.text.answers)
    assert [chr(c) for c in loaded.tokenizer.decode(e.input_ids[0, e.answers]).encode()] == list(
        "".join(e.text.text[a:b] for a, b in e.text.answers)
    )


def test_texts_that_do_not_fit_are_refused(loaded: LoadedModel) -> None:
    with pytest.raises(InputError, match="at least 2"):
        encode(loaded, Text("t", "a"), 40)
    with pytest.raises(InputError, match="context ends at 512"):
        encode(loaded, Text("t", "word " * 300), None)
