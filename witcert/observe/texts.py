"""Text of three domains that every Python installation carries: prose, code, and associative recall."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from witcert.errors import InputError

DOMAINS = ("natural", "code", "recall")
_ADJECTIVES = (
    "amber",
    "brass",
    "coral",
    "dusty",
    "early",
    "faded",
    "green",
    "hollow",
    "ivory",
    "jolly",
    "keen",
    "lunar",
    "mossy",
    "noble",
    "olive",
    "plain",
    "quiet",
    "rusty",
    "silver",
    "tidy",
)
_NOUNS = (
    "basket",
    "candle",
    "drawer",
    "engine",
    "fiddle",
    "garden",
    "hammer",
    "island",
    "jacket",
    "kettle",
    "ladder",
    "mirror",
    "needle",
    "orchard",
    "pillow",
    "ribbon",
    "saddle",
    "tunnel",
    "violin",
    "window",
)


@dataclass(frozen=True)
class Text:
    """A text with its domain; ``answers`` are character spans [start, end) whose prediction measures recall.

    pairs: number of facts of a recall text, which is made shorter to fit; 0 for any other text, which is cut.
    """

    domain: str
    text: str
    answers: tuple[tuple[int, int], ...] = ()
    pairs: int = 0


def natural() -> Text:
    """The prose of the Python language reference that ships with the interpreter."""
    from pydoc_data.topics import topics

    return Text("natural", "\n\n".join(topics[k] for k in sorted(topics)))


def code() -> Text:
    """The source of a module of the standard library."""
    import argparse

    return Text("code", inspect.getsource(argparse))


def recall(pairs: int, seed: int = 0) -> Text:
    """``pairs`` facts, then the same facts in another order; the second values can only be recalled, not guessed."""
    limit = len(_ADJECTIVES) * len(_NOUNS)
    if not 1 <= pairs <= limit:
        raise InputError(f"pairs={pairs} is outside 1..{limit}")
    rng = random.Random(seed)
    names = [f"{a} {n}" for a in _ADJECTIVES for n in _NOUNS]
    facts = [(name, str(rng.randrange(100, 1000))) for name in rng.sample(names, pairs)]
    first, second = facts[:], facts[:]
    rng.shuffle(second)
    parts, spans, at = [], [], 0
    for k, (name, value) in enumerate([*first, *second]):
        line = f"The {name} is {value}.\n"
        if k >= pairs:
            start = at + len(line) - len(value) - 2
            spans.append((start, start + len(value)))
        parts.append(line)
        at += len(line)
    return Text("recall", "".join(parts), tuple(spans), pairs)


def from_file(path: Path) -> Text:
    """The user's own text, UTF-8."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as e:
        raise InputError(f"text: no such file {path}") from e
    except UnicodeDecodeError as e:
        raise InputError(f"text: {path} is not UTF-8 text") from e
    if not text.strip():
        raise InputError(f"text: {path} is empty")
    return Text(path.stem, text)


def builtin(domain: str, pairs: int = 40, seed: int = 0) -> Text:
    """The built-in text of one domain."""
    makers: dict[str, Callable[[], Text]] = {"natural": natural, "code": code, "recall": lambda: recall(pairs, seed)}
    if domain not in makers:
        raise InputError(f"domain={domain!r} is unknown; choose from {', '.join(DOMAINS)}")
    return makers[domain]()


def overlapping(spans: Sequence[tuple[int, int]], offsets: Sequence[tuple[int, int]]) -> list[int]:
    """Indices of the tokens whose characters overlap any span."""
    return [i for i, (a, b) in enumerate(offsets) if b > a and any(a < e and s < b for s, e in spans)]
