"""The names that the specification promises (formal/spec_names.json), by layer."""

import json
from dataclasses import dataclass
from pathlib import Path

from problem import Problem

NAMESPACE = {"core": "WitCert.Core", "real": "WitCert"}


@dataclass(frozen=True)
class SpecName:
    """One promised theorem: its short name, its layer, the topic it belongs to, what it is for."""

    name: str
    layer: str
    topic: str
    purpose: str

    @property
    def full(self) -> str:
        return f"{NAMESPACE[self.layer]}.{self.name}"


def load(path: Path) -> list[SpecName]:
    """All promised names; a name of the Core layer is promised once more, over ℝ, unless it says `"real": false`."""
    try:
        topics = json.loads(path.read_text(encoding="utf-8"))["topics"]
    except (OSError, ValueError, KeyError) as e:
        raise Problem(f"{path}: not a list of names ({e})") from None
    names = []
    for topic in topics:
        for entry in topic["theorems"]:
            layers = [entry["layer"]] + (["real"] if entry["layer"] == "core" and entry.get("real", True) else [])
            names += [SpecName(entry["name"], layer, topic["topic"], entry["purpose"]) for layer in layers]
    full = [n.full for n in names]
    if double := sorted({n for n in full if full.count(n) > 1}):
        raise Problem(f"{path}: listed twice: {', '.join(double)}")
    return names
