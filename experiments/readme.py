"""README.md of the experiments, generated from their results: one section each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiments import record, registry

__all__ = ["PATH", "render"]

PATH = record.ROOT / "README.md"

HEAD = """# Experiments

Every number here was written by one command into `results/NAME.json`, with the seed, versions, device and commit; the table and
the picture are made from that file alone. This page is generated: `python -m experiments readme`.

```bash
python -m experiments --list                          # the experiments and their questions
python -m experiments schemes --out out/experiments   # one of them: NAME.json and NAME.png
python -m experiments all --device cuda --out DIR     # all of them, one model load, one recording
python -m experiments figures                         # draw results/*.png from results/*.json again
```

`--quick` makes each run in seconds on a CPU. `--model` takes a directory, a .gguf file or a hub id; `--model none
--recording FILE` meters a file of `witcert capture`. A command ends with exit code 3 if a *proved* reading is below the
truth in a single cell. Labels: **proved** holds for every query, **proved-nonadaptive** with probability at least 1 - δ over
the dither for queries that do not depend on it, **measured** was observed on the tokens named and promises nothing.
"""


def _where(r: dict[str, Any]) -> str:
    """Which model, on which texts, on which machine."""
    about, versions = r["about"], r["versions"]
    parts = []
    if about:
        texts = ", ".join(f"{n} {t['tokens']} tokens and {t['queries']} queries" for n, t in about["texts"].items())
        parts.append(
            f"{about['model']} ({about['layers']} layers, {about['heads']} query and {about['kv_heads']} KV heads, "
            f"d = {about['head_dim']}, {about['dtype'].removeprefix('torch.')})" + (f"; {texts}" if texts else "")
        )
    parts.append(f"{r['device']}, torch {versions['torch']}, triton {versions['triton']}, seed {r['seed']}, {r['seconds']} s")
    parts.append(f"{r['date']}, commit {(r['commit'] or 'unknown')[:12]}{'+changes' if '+' in (r['commit'] or '') else ''}")
    return "; ".join(parts)


def section(module: Any, r: dict[str, Any]) -> str:
    """One experiment: question, method, command, table, figure, what the numbers do not say."""
    name = module.NAME
    note = " (a quick run: a check that it works, not a result)" if r["quick"] else ""
    return f"""## {name}{note}

**{module.QUESTION}**

{module.METHOD}

`{r["command"]}`
*{_where(r)}.* Violations of proved readings: **{r["violations"]}**.

{module.describe(r["result"])}

![{name}](results/{name}.png)

*What the numbers do not say.* {module.LIMITS}
"""


def render(folder: Path = record.RESULTS) -> str:
    """The whole page from the results in a folder."""
    known, _ = registry.discover()
    records = record.load_all(folder)
    sections = [section(module, records[name]) for name, module in known.items() if name in records]
    missing = [name for name in known if name not in records]
    tail = f"\nWithout a committed result: {', '.join(missing)}.\n" if missing else ""
    return "\n".join([HEAD, *sections]) + tail
