"""``witcert audit``: offline advice for a model, by layer and head."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from witcert.errors import InputError, SoundnessViolation, WitCertError
from witcert.observe.report import bound, number, percent


def _pairs(text: str) -> tuple[int, ...]:
    try:
        return tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError as e:
        raise InputError(f"pairs={text!r}: expected numbers separated by commas, out of 0, 2, 4, 8, 16") from e


def audit_command(
    model: Annotated[
        str | None,
        typer.Argument(help="A directory, a .gguf file or a hub id. Default: SmolLM2-135M-Instruct from its wheel."),
    ] = None,
    text: Annotated[
        list[Path] | None,
        typer.Option("--text", help="A UTF-8 text; repeatable: outliers are chosen on the first, the others are audited."),
    ] = None,
    activations: Annotated[Path | None, typer.Option(help="Audit a recording of `witcert capture`; needs no model.")] = None,
    scheme: Annotated[str, typer.Option(help="The quantizer (see `witcert schemes`).")] = "rtn_int8",
    tau: Annotated[float, typer.Option(help="A cell is certified when its meter is at most this.")] = 0.2,
    budget: Annotated[
        int | None,
        typer.Option(help="Bytes that a request may page in. Default: a tenth of its exact cache.", min=0),
    ] = None,
    guarantee: Annotated[str, typer.Option(help="The reading that decides: proved or proved-nonadaptive.")] = "proved",
    pairs: Annotated[str, typer.Option(help="Numbers of outlier pairs to try (int8 formats only).")] = "0,2,4,8,16",
    outliers: Annotated[
        Path | None, typer.Option(help="Write the advised outlier_channels into this safetensors file.")
    ] = None,
    tokens: Annotated[int, typer.Option("--tokens", "-n", help="Longest text, in tokens.", min=2)] = 512,
    queries: Annotated[int, typer.Option(help="Query positions metered per text and head.", min=1)] = 32,
    delta: Annotated[float, typer.Option(help="Failure budget of a request for dithered schemes.")] = 1e-2,
    seed: Annotated[int, typer.Option(help="Seed of the dither.", min=0)] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    dtype: Annotated[str, typer.Option(help="Precision of the model: float32, bfloat16 or float16.")] = "float32",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on standard output, nothing else.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Advise which layers to keep exact, which outlier pairs to keep, and which threshold a traffic budget allows.

    Fails (exit code 3) if a proved meter is below the truth.
    """
    from witcert.audit.advice import advise, to_json
    from witcert.audit.job import AuditConfig, audit
    from witcert.store.outliers import save_outliers

    if outliers is not None and not outliers.parent.is_dir():
        raise InputError(f"outliers: the folder {outliers.parent} does not exist")
    where = _device(device)
    config = AuditConfig(
        scheme=scheme, guarantee=guarantee, tau=tau, delta_req=delta, budget=budget, pairs=_pairs(pairs), seed=seed,
        device=where,
    )  # fmt: skip
    with Console(stderr=True, quiet=as_json).status("loading") as status:
        recordings = _recordings(model, text, activations, tokens, queries, where, dtype, status.update)
        found = audit(recordings, config, status.update)
    advice = advise(found)
    channels = advice.variant.channels
    if outliers is not None and channels is not None:
        about = {"model": str(found.about["model"]), "scheme": scheme, "calibrated_on": found.calibrated_on}
        try:
            save_outliers(channels, outliers, about)
        except Exception as e:
            if isinstance(e, OSError) or type(e).__module__.startswith("safetensors"):
                raise WitCertError(f"cannot write {outliers}: {e}") from e
            raise
    if as_json:
        print(json.dumps(to_json(found, advice), allow_nan=False))
    else:
        _show(to_json(found, advice), found, advice, outliers)
    if found.violations:
        raise SoundnessViolation(
            f"{found.violations} violation(s): a proved meter is below the truth; this is a bug in WitCert, please report it"
        )


def _device(name: str) -> str:
    import torch

    if name not in ("auto", "cpu", "cuda"):
        raise InputError(f"device={name!r} is unknown; choose auto, cpu or cuda")
    there = torch.cuda.is_available()
    if name == "cuda" and not there:
        raise InputError("device='cuda': PyTorch sees no GPU here")
    return "cuda" if name == "cuda" or (name == "auto" and there) else "cpu"


def _recordings(
    model: str | None, text: list[Path] | None, activations: Path | None, tokens: int, queries: int, device: str,
    dtype: str, say: Any,
) -> list[Any]:  # fmt: skip
    """From the file, or recorded now."""
    import torch

    from witcert.observe import activations as files
    from witcert.observe import texts

    if activations is not None:
        if model is not None or text:
            raise InputError("activations: a recording already fixes model and texts; name either")
        return files.load(activations)
    known = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if dtype not in known:
        raise InputError(f"dtype={dtype!r} is unknown; choose {', '.join(known)}")
    from witcert.hf.load import load_model
    from witcert.hf.pipeline import record

    chosen = [texts.from_file(f) for f in text] if text else [texts.builtin(d) for d in texts.DOMAINS]
    loaded = load_model(model, dtype=known[dtype], device=device)
    return record(loaded, chosen, tokens=tokens, queries=queries, tick=say)[0]


def _bytes(x: float) -> str:
    """Bytes in the unit that reads best."""
    for unit in ("B", "KiB", "MiB"):
        if x < 1024:
            return f"{x:.0f} {unit}" if unit == "B" else f"{x:.1f} {unit}"
        x /= 1024
    return f"{x:.2f} GiB"


def _show(data: dict[str, Any], found: Any, advice: Any, outliers: Path | None) -> None:
    """The tables, then the advice in sentences."""
    from witcert.audit.advice import tau_table

    console = Console(highlight=False)
    console = console if console.is_terminal else Console(highlight=False, width=132)
    tau, label = data["tau"], data["guarantee"]
    title = f"{data['about']['model']}, {data['scheme']}, {advice.pairs} outlier pairs, tau {tau:g} ({label})"
    layers = Table(title=title, title_justify="left", header_style="bold")
    heads = ("layer", "coverage", "worst head", "meter\nmedian", "meter\nmax", "true TV\nmax", "traffic", "advice")
    for i, head in enumerate(heads):
        layers.add_column(head, justify="right" if i not in (0, 7) else "left")
    for row in data["layers"]:
        layers.add_row(
            str(row["layer"]), percent(row["coverage"]), percent(min(row["coverage_by_head"])), bound(row["meter"]["p50"]),
            bound(row["meter"]["max"]), number(row["tv"]["max"]), _bytes(row["traffic_bytes"]),
            "[bold]keep exact[/]" if row["keep_exact"] else "",
        )  # fmt: skip
    console.print(layers)
    variants = Table(title="Outlier pairs", title_justify="left", header_style="bold")
    for head in ("pairs", "bytes K+V\nper token, head", "coverage", "largest\nmeter", f"traffic\nat tau {tau:g}"):
        variants.add_column(head, justify="right")
    for v in data["variants"]:
        variants.add_row(
            str(v["pairs"]), f"{v['bytes_per_token']:g}", percent(v["coverage"]), bound(v["largest_meter"]),
            _bytes(v["traffic_bytes"][f"{tau:g}"]),
        )  # fmt: skip
    console.print(variants)
    taus = Table(title=f"Thresholds, {advice.pairs} outlier pairs", title_justify="left", header_style="bold")
    for head in ("tau", "coverage", "traffic"):
        taus.add_column(head, justify="right")
    for t, covered, size in tau_table(found, advice.variant):
        taus.add_row(f"{t:g}", percent(covered), _bytes(size))
    console.print(taus)
    said = data["advice"]
    layers_kept = f"keep {len(advice.exact_layers)} of {len(data['layers'])} layers exact" if advice.exact_layers else (
        "no layer needs to be exact")  # fmt: skip
    console.print(
        f"[bold]Budget[/] {_bytes(data['budget_bytes'])} a request: {layers_kept} at tau {tau:g} "
        f"(traffic {_bytes(said['traffic_bytes'])} before, {_bytes(said['traffic_bytes_left'])} after)."
    )
    fits = "no threshold fits it" if advice.tau is None else f"it allows tau {advice.tau:g}"
    console.print(f"With no layer exact {fits}; nothing at all is paged in from tau {bound(advice.zero_tau)}.")
    if said["vllm"]:
        console.print(f"vLLM: [bold]{said['vllm']}[/]", soft_wrap=True)
    if outliers is not None:
        console.print(f"wrote {outliers}" if advice.pairs else f"no outlier pair is needed: {outliers} was not written")
    console.print(f"[dim]{said['statement']}[/]")
