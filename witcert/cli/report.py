"""``witcert report``: what the telemetry of a finished run says."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from witcert.errors import InputError, SoundnessViolation, WitCertError


def report(
    run: Annotated[Path, typer.Argument(help="A JSONL file that Telemetry wrote, or a saved snapshot (JSON).")],
    html: Annotated[Path | None, typer.Option("--html", help="Also write one self-contained HTML page.")] = None,
    layers: Annotated[int, typer.Option(help="Layers in the table, worst first; 0: all, in order.", min=0)] = 16,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on standard output, nothing else.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Summarise the telemetry of a run: meters by guarantee and layer, repairs, faults.

    Fails (exit code 3) if a kernel broke its contract during the run.
    """
    from witcert.telemetry.load import load

    found = load(run)
    if html is not None:
        _write_html(html, found.to_json(), run)
    if as_json:
        print(json.dumps(found.to_json(), allow_nan=False))
    else:
        from witcert.cli.report_tables import print_run

        print_run(found, layers)
        if html is not None:
            print(f"wrote {html}")
    if found.snapshot.violations:
        raise SoundnessViolation(
            f"{found.snapshot.violations} contract violation(s) in this run: a meter outside [0, 1], or below 1 after NaN; "
            "this is a bug in WitCert, please report it with the file"
        )


def _write_html(path: Path, data: dict[str, object], source: Path) -> None:
    from witcert.telemetry.server import page

    if path.is_dir() or (path.exists() and path.resolve() == source.resolve()):
        raise InputError(f"html: {path} is {'a folder' if path.is_dir() else 'the run itself'}; name another file")
    part = path.with_name(path.name + ".part")
    try:
        part.write_text(page(data), encoding="utf-8")
        os.replace(part, path)
    except OSError as e:
        raise WitCertError(f"cannot write {path}: {e.strerror or e}") from e
    finally:
        part.unlink(missing_ok=True)
