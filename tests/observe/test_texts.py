"""The built-in texts are real text, and recall answers stand where the spans say."""

from __future__ import annotations

from pathlib import Path

import pytest

from witcert.errors import InputError
from witcert.observe import texts


@pytest.mark.parametrize("domain", texts.DOMAINS)
def test_builtin_texts_are_long_enough(domain: str) -> None:
    assert len(texts.builtin(domain).text) > 1000


@pytest.mark.parametrize("pairs", [1, 7, 40])
def test_recall_spans_hold_the_values_of_the_first_pass(pairs: int) -> None:
    t = texts.recall(pairs, seed=3)
    lines = t.text.splitlines()
    assert len(lines) == 2 * pairs
    facts = dict(line.removeprefix("The ").rstrip(".").split(" is ") for line in lines[:pairs])
    assert len(facts) == pairs
    for line, (a, b) in zip(lines[pairs:], t.answers, strict=True):
        name, value = line.removeprefix("The ").rstrip(".").split(" is ")
        assert t.text[a:b] == value == facts[name]
    assert sorted(lines[:pairs]) == sorted(lines[pairs:])


def test_overlapping_tokens() -> None:
    assert texts.overlapping([(3, 6)], [(0, 3), (3, 4), (4, 8), (8, 9), (6, 6)]) == [1, 2]


def test_bad_texts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        texts.from_file(tmp_path / "none.txt")
    (tmp_path / "empty.txt").write_text(" \n")
    with pytest.raises(InputError, match="empty"):
        texts.from_file(tmp_path / "empty.txt")
    (tmp_path / "latin.txt").write_bytes(b"\xe9\xff")
    with pytest.raises(InputError, match="UTF-8"):
        texts.from_file(tmp_path / "latin.txt")
    with pytest.raises(InputError, match="pairs"):
        texts.recall(0)
    with pytest.raises(InputError, match="domain"):
        texts.builtin("poetry")
