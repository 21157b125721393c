"""Get what the compiled modules state: run formal/Export.lean, and make formal/statements.json from its output."""

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path

import install
import lean
from check import Checker, locked
from problem import Problem
from source import Module
from spec import SpecName

SCHEMA = 1


@dataclass(frozen=True)
class Layer:
    """A layer of the proofs: its root module, and whether a module belongs to it."""

    name: str
    root: str

    def owns(self, module: str) -> bool:
        in_core = module == "WitCert.Core" or module.startswith("WitCert.Core.")
        return in_core if self.name == "core" else not in_core


CORE = Layer("core", "WitCert.Core")
REAL = Layer("real", "WitCert")


def layer_of(module: str) -> str:
    return "core" if CORE.owns(module) else "real"


# --- the raw export ------------------------------------------------------------------


def with_wasm(checker: Checker, program: Path, roots: list[str], timeout: float = 1200) -> dict:
    """Export and kernel replay with the WebAssembly Lean; the result is stored with a digest of what decides it."""
    text = program.read_text(encoding="utf-8")
    decides = [install.installed_dir().name, text, *(f"{r}={checker.digest(r)}" for r in roots)]
    digest = hashlib.sha256(json.dumps(decides).encode()).hexdigest()
    stored = checker.build / f"export-{'-'.join(roots)}.json"
    with locked(checker.build):
        try:
            old = json.loads(stored.read_text(encoding="utf-8"))
            if old["digest"] == digest:
                return old["export"]
        except (OSError, ValueError, KeyError):
            pass
        new = checker.build / f"export-{'-'.join(roots)}.new"
        new.unlink(missing_ok=True)
        run = lean.script(program, ["--replay", new, *roots], [checker.build], timeout)
        if run.status != 0 or not new.is_file():
            errors = [m["data"] for m in run.messages if m["severity"] == "error"]
            raise Problem(f"{program.name} failed with status {run.status}: {' | '.join(errors[:3]) or run.tail()}")
        raw = json.loads(new.read_text(encoding="utf-8"))
        stored.write_text(json.dumps({"digest": digest, "export": raw}), encoding="utf-8")
        new.unlink()
    return raw


# --- statements.json -----------------------------------------------------------------


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def first_sentence(doc: str | None) -> str:
    """The first sentence of a docstring, on one line; abbreviations such as "e.g." do not end it."""
    text = " ".join((doc or "").split("\n\n")[0].split())
    for m in re.finditer(r"[.!?](?=\s+[^a-z]|$)", text):
        if not re.search(r"\b(?:e\.g|i\.e|cf|resp|vs)\.$", text[: m.end()]):
            return text[: m.end()]
    return text


def _reach(start, uses: dict[str, list[str]]) -> set[str]:
    seen, todo = set(), list(start)
    while todo:
        n = todo.pop()
        if n in uses and n not in seen:
            seen.add(n)
            todo += uses[n]
    return seen


def axioms_of(raw: dict) -> dict[str, set[str]]:
    """The axioms that each constant's own proof and those of the project below it name."""
    uses = {c["name"]: c["uses"] for c in raw["constants"]}
    direct = {c["name"]: set(c["axioms"]) for c in raw["constants"]}
    return {name: set().union(*(direct[n] for n in _reach([name], uses))) for name in uses}


def _file(module: str) -> str:
    return f"formal/{module.replace('.', '/')}.lean"


def _binders(t: dict) -> dict:
    """Sort the binders by role; a hypothesis without a name is called `_1`, `_2`, ..."""
    roles: dict[str, list] = {"variables": [], "instances": [], "hypotheses": []}
    for b in t["binders"]:
        if b["kind"] == "instance":
            roles["instances"].append(b["type"])
        else:
            role = roles["hypotheses" if b["prop"] else "variables"]
            role.append({"name": b["name"] or f"_{len(role) + 1}", "type": b["type"]})
    return roles


def build(raw: dict, spec: list[SpecName], mods: dict[str, Module]) -> dict:
    """The content of formal/statements.json for the layers that were exported.

    `statement_hash` is the sha256 of `explicit`, the fully explicit type: it changes exactly when the statement
    does.  `meaning_hash` covers the project's definitions under it as well, however deep.  `uses` are the public
    theorems that the proof cites, itself or through private ones; no hash covers them.
    """
    promised = {n.full for n in spec}
    axioms = axioms_of(raw)
    content = {d["name"]: sha256("\n".join([d["kind"], d["explicit"], d["value"]])) for d in raw["definitions"]}
    uses = {d["name"]: d["uses"] for d in raw["definitions"]}
    written = {d["name"] for d in raw["definitions"] if d["written"]}

    def meaning(explicit: str, names) -> str:
        below = sorted(_reach(names, uses))
        return sha256("\n".join([explicit, *(f"{n} {content[n]}" for n in below)]))

    theorems = []
    for t in raw["theorems"]:
        if t["kind"] == "theorem" and t["name"].startswith("WitCert."):
            theorems.append(
                {
                    "name": t["name"],
                    "layer": layer_of(t["module"]),
                    "spec": t["name"] in promised,
                    "module": t["module"],
                    "file": _file(t["module"]),
                    "line": t["line"],
                    "sentence": first_sentence(t["doc"]),
                    "doc": (t["doc"] or "").strip(),
                    "statement": t["statement"],
                    **_binders(t),
                    "conclusion": t["conclusion"],
                    "explicit": t["explicit"],
                    "statement_hash": sha256(t["explicit"]),
                    "meaning_hash": meaning(t["explicit"], t["uses"]),
                    "definitions": sorted(_reach(t["uses"], uses) & written),
                    "uses": sorted(t["proof_uses"]),
                    "axioms": sorted(axioms[t["name"]]),
                }
            )
    definitions = []
    for d in raw["definitions"]:
        if d["written"]:
            lines = mods[d["module"]].text.split("\n")
            definitions.append(
                {
                    "name": d["name"],
                    "layer": layer_of(d["module"]),
                    "kind": d["kind"],
                    "module": d["module"],
                    "file": _file(d["module"]),
                    "line": d["line"],
                    "sentence": first_sentence(d["doc"]),
                    "doc": (d["doc"] or "").strip(),
                    "signature": d["signature"],
                    "source": "\n".join(lines[d["first_line"] - 1 : d["last_line"]]),
                    "fields": [
                        {
                            "name": f["name"],
                            "prop": f["prop"],
                            "type": f["type"],
                            "variables": [{"name": b["name"], "type": b["type"]} for b in f["binders"]],
                            "doc": (f["doc"] or "").strip(),
                        }
                        for f in d["fields"]
                    ],
                    "explicit": d["explicit"],
                    "content_hash": content[d["name"]],
                    "meaning_hash": meaning(d["explicit"] + content[d["name"]], d["uses"]),
                }
            )
    order = {m: i for i, m in enumerate(raw["modules"])}
    for part in (theorems, definitions):
        part.sort(key=lambda x: (order[x["module"]], x["line"], x["name"]))
    return {"schema": SCHEMA, "theorems": theorems, "definitions": definitions}


def merge_real(new: dict, old: dict | None, digest: str) -> None:
    """Keep the committed part of the Real layer, where its sources are still those it was exported from."""
    if old and old.get("real_sources") == digest:
        for part in ("theorems", "definitions"):
            new[part] += [x for x in old.get(part, []) if x["layer"] == "real"]
        new["real_sources"] = digest


def pending(spec: list[SpecName], statements: dict, sources: dict[str, str]) -> list[dict]:
    """The promised names that nothing was exported for, and the file that writes each, if one does."""
    have = {t["name"] for t in statements["theorems"]}
    out = []
    for n in spec:
        if n.full not in have:
            where = [
                m
                for m, code in sources.items()
                if layer_of(m) == n.layer
                and re.search(rf"^\s*(?:theorem|lemma)\s+{re.escape(n.name)}\b", code, re.MULTILINE)
            ]
            out.append({"name": n.full, "layer": n.layer, "file": _file(where[0]) if where else None})
    return out


def dump(statements: dict) -> str:
    return json.dumps(statements, indent=1, ensure_ascii=False) + "\n"


def load(path: Path) -> dict | None:
    """The committed statements; None where there are none."""
    if not path.is_file():
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as e:
        raise Problem(f"{path} is not JSON: {e}") from None


def differences(old: dict | None, new: dict, skip: frozenset[str] = frozenset()) -> list[str]:
    """What differs between two exports, a line each."""
    if old is None:
        return ["there is no committed export"]
    out = []
    for part in ("theorems", "definitions", "pending"):
        before, after = ({x["name"]: x for x in d.get(part, [])} for d in (old, new))
        out += [f"{n}: no longer among the {part}" for n in sorted(before.keys() - after.keys())]
        out += [f"{n}: new among the {part}" for n in sorted(after.keys() - before.keys())]
        for n in sorted(before.keys() & after.keys()):
            keys = [k for k in {**before[n], **after[n]} if k not in skip and before[n].get(k) != after[n].get(k)]
            if keys:
                out.append(f"{n}: changed: {', '.join(keys)}")
    rest = [k for k in {**old, **new} if k not in ("theorems", "definitions", "pending") and old.get(k) != new.get(k)]
    return out + [f"changed: {k}" for k in rest]
