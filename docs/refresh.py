"""Rewrite the README's results from a finished run: the table between its markers, and the picture beside it.

python docs/refresh.py out/demo
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from witcert.observe.report import bound, number, percent, ratio, whole

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- demo:begin -->", "<!-- demo:end -->"


def table(results: dict[str, Any]) -> str:
    """The README's table, one line a meter."""
    about, config = results["about"], results["config"]
    texts = ", ".join(f"{d} {t['tokens']}" for d, t in about["texts"].items())
    head = [
        "scheme",
        "guarantee",
        "bytes K+V",
        f"coverage (TV ≤ {config['tau']:g})",
        "with ½(A² − 1)",
        "with tanh C",
        "meter, median",
        "true TV, median",
        "meter / TV, median",
        "KL, natural",
        "recall",
        "violations",
    ]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * 2 + "---:|" * (len(head) - 2)]
    for row in results["schemes"]:
        for i, m in enumerate(row["meters"]):
            label = m["guarantee"] + (f", δ = {m['delta']:g}" if m["delta"] else "")
            b = row["bytes_per_token_head"]
            recall = next((v["recall"] for v in row["output"].values() if v.get("recall") is not None), None)
            kl = row["output"].get("natural", {}).get("kl")
            own = [row["scheme"], label, whole(b["k"] + b["v"])] if i == 0 else ["", label, ""]
            lines.append(
                "| "
                + " | ".join(
                    [
                        *own,
                        percent(m["coverage"]),
                        percent(row["comparison"]["coverage_eform"]) if i == 0 else "",
                        percent(row["comparison"]["coverage_tanh_rival"]) if i == 0 else "",
                        bound(m["meter"]["p50"]),
                        number(row["tv"]["p50"]) if i == 0 else "",
                        ratio(m["tightness"]["p50"] if m["tightness"]["p50"] is not None else float("nan")),
                        number(kl) if i == 0 else "",
                        percent(recall) if i == 0 else "",
                        str(m["violations"]),
                    ]
                )
                + " |"
            )
    cells = sum(r["cells"] for r in results["schemes"])
    base = next((v["recall"] for v in results["baseline"].values() if v.get("recall") is not None), None)
    held = sum(r["holds"] for r in results["rechecks"])
    note = (
        f"{about['model']}: {about['layers']} layers, {about['heads']} query and {about['kv_heads']} KV heads, "
        f"d = {about['head_dim']}; tokens: {texts}; {cells:,} cells; recall with the exact cache {percent(base)}; "
        f"{held} of {len(results['rechecks'])} closest cells hold at 50 digits. "
        f"torch {about['environment']['torch']}, {about['environment']['cpus']} CPU cores, {results['seconds']:.0f} s."
    )
    return "\n".join([*lines, "", note])


def main() -> None:
    """Refresh README.md and docs/img from the folder of a run."""
    folder = Path(sys.argv[1])
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    readme.write_text(f"{before}{BEGIN}\n{table(results)}\n{END}{after}", encoding="utf-8")
    (ROOT / "docs" / "img").mkdir(exist_ok=True)
    shutil.copyfile(folder / "bound_vs_tv.png", ROOT / "docs" / "img" / "bound_vs_tv.png")


if __name__ == "__main__":
    main()
