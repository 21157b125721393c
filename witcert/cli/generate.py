"""``witcert generate``: text in, text out, from a certified cache, with the meter while it runs."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from witcert.errors import InputError

STYLE = {"proved": "green", "proved-nonadaptive": "yellow", "measured": "dim"}


class _Screen:
    """The text so far and one line about the last step, on standard error of a terminal; silent anywhere else."""

    def __init__(self, tokenizer: Any, tau: float, quiet: bool) -> None:
        console = Console(stderr=True, quiet=quiet, highlight=False)
        self.tokenizer, self.tau, self.shown = tokenizer, tau, console.is_terminal and not quiet
        self.ids: list[int] = []
        self.line = Text("prefill", style="dim")
        self.bytes = self.repairs = self.steps = 0
        self.live = Live(console=console, transient=True, refresh_per_second=8)
        self.prompt_seen = False

    def __enter__(self) -> _Screen:
        if self.shown:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.shown:
            self.live.stop()

    def put(self, value: Any) -> None:
        """New tokens; the first call brings the prompt."""
        if self.prompt_seen:
            self.ids += value.flatten().tolist()
        self.prompt_seen = True
        self._draw()

    def end(self) -> None:
        """Nothing comes any more."""

    def step(self, record: Any) -> None:
        """One decode step was metered."""
        self.steps, self.bytes, self.repairs = self.steps + 1, self.bytes + record.bytes, self.repairs + record.pages
        if not self.shown:
            return
        line = Text(f"step {self.steps}  ", style="dim")
        for m in record.worst():
            if m.label == "proved":
                value = float(m.value)
                colour = "green" if value <= self.tau else "bold red"
                line.append(f"TV ≤ {_bound(value)} [{m.label}]", style=colour)
        line.append(f"  {self.repairs} pages repaired, {_size(self.bytes)}", style="dim")
        self.line = line
        self._draw()

    def _draw(self) -> None:
        if self.shown:
            text = self.tokenizer.decode(self.ids, skip_special_tokens=True)
            self.live.update(Group(Text(text), self.line))


def _bound(value: float) -> str:
    from witcert.observe.report import bound

    return bound(value)


def _size(n: int) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if n >= size:
            return f"{n / size:.2f} {unit}"
    return f"{n} B"


def _encode(loaded: Any, prompt: str, chat: bool) -> Any:
    """Ids [1, T] of the prompt, through the model's chat template if asked."""
    tokenizer = loaded.tokenizer
    if not prompt.strip():
        raise InputError("prompt: it is empty")
    if chat:
        if not getattr(tokenizer, "chat_template", None):
            raise InputError(f"chat: {loaded.name} has no chat template; leave --chat out")
        prompt = tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
        )
    ids = tokenizer(prompt, return_tensors="pt", add_special_tokens=not chat).input_ids
    return ids.to(loaded.model.device)


def _summary(report: Any, seconds: float, format: str, account: dict[str, float]) -> Table:
    title = (
        f"{report.steps} decode steps in {seconds:.1f} s, cache {format}, {_size(int(account['device']))} on the device"
    )
    table = Table(title=title, title_justify="left", header_style="bold")
    for name in ("guarantee", "worst layer", "its meter ≤", "median layer ≤", "speaks of this text"):
        table.add_column(name, justify="left" if name == "guarantee" else "right", no_wrap=True)
    for m in report.worst:
        values = m.value.tolist()
        worst = max(range(len(values)), key=values.__getitem__)
        odds = f", δ={m.delta:g}" if m.delta else ""
        table.add_row(
            f"[{STYLE[m.label]}]{m.label}{odds}[/]", str(worst), _bound(values[worst]),
            _bound(sorted(values)[len(values) // 2]), "yes" if report.applies[m.label] else "no: its queries are adaptive",
        )  # fmt: skip
    return table


def _verdict(report: Any) -> str:
    if report.guarantee is None and not report.unmetered:
        return "no decode step was metered"
    parts = ["no decode step was metered"]
    if report.cells:
        share = (
            f"{report.certified + report.repaired} of {report.cells} cells at most τ = {report.tau:g} [{report.guarantee}]"
        )
        parts = [share, f"{report.certified} as read", f"{report.repaired} after repair", f"{_size(report.bytes)} paged in"]
    if report.refused:
        parts.append(f"{report.refused} pages found no room in the side pool")
    if report.chunk_tokens:
        parts.append(
            f"{report.chunk_tokens} tokens of {report.chunks} longer forwards: "
            f"{report.chunk_certified + report.chunk_repaired} of {report.chunk_cells} cells at most τ, "
            f"{report.chunk_repaired or 'none'} after repair"
        )
    if report.unmetered:
        parts.append(f"{report.unmetered} queries of the prompt were not metered")
    return "; ".join(parts)


def generate(
    prompt: Annotated[str, typer.Argument(help="The text to continue; - reads standard input.")],
    model: Annotated[
        str | None,
        typer.Option(help="A directory, a .gguf file or a hub id. Default: SmolLM2-135M-Instruct from its wheel."),
    ] = None,
    format: Annotated[
        str | None,
        typer.Option(help="What the cache holds: int8 (default), int8-dither, exact; --scheme implies scheme."),
    ] = None,
    scheme: Annotated[str | None, typer.Option(help="A registered scheme whose numbers are stored.")] = None,
    meter: Annotated[str, typer.Option(help="auto, band, half or tierB.")] = "auto",
    outliers: Annotated[
        Path | None, typer.Option(help="Key channels that an int8 cache keeps exactly: the file of witcert audit --outliers.")
    ] = None,
    gate: Annotated[str, typer.Option(help="Repair by block or head, or off.")] = "block",
    tau: Annotated[float, typer.Option(help="Largest total variation that is served without repair.")] = 0.2,
    delta: Annotated[float, typer.Option(help="Failure budget of the request for dithered codes.")] = 1e-2,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", "-n", help="Most tokens to generate.", min=1)] = 64,
    temperature: Annotated[float, typer.Option(help="0: the most likely token; else sampling.", min=0.0)] = 0.0,
    seed: Annotated[int, typer.Option(help="Of the samples and of the dither.", min=0)] = 0,
    chat: Annotated[bool, typer.Option("--chat", help="Wrap the prompt in the model's chat template.")] = False,
    telemetry: Annotated[
        Path | None, typer.Option(help="Write sampled cells to this JSONL file, for witcert report.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    dtype: Annotated[
        str,
        typer.Option(
            help="auto: the model runs in float16 on a CPU and in bfloat16 on a GPU, and its keys are stored as they are; "
            "float16, bfloat16; float32: keys, values and queries are rounded to float16."
        ),
    ] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on standard output, nothing else.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Generate text from a certified cache, and say what its quantization did at most.

    The text goes to standard output, the meter and the summary to standard error.
    """
    from witcert.cli.app import _device, _dtype

    where = _device(device)
    kind = _dtype({"cpu": "float16", "cuda": "bfloat16"}[where] if dtype == "auto" else dtype)
    if gate not in ("block", "head", "off"):
        raise InputError(f"gate={gate!r} is none of block, head, off")
    text = sys.stdin.read() if prompt == "-" else prompt

    import torch

    from witcert.gate import Gate
    from witcert.hf.load import load_model

    threshold = Gate(tau=tau, mode=gate)  # type: ignore[arg-type]
    loaded = load_model(model, dtype=kind, device=where)

    from witcert.hf.attach import attach

    ids = _encode(loaded, text, chat)
    total = int(ids.shape[1]) + max_new_tokens
    limit = loaded.geometry.max_positions
    if limit is not None and total > limit:
        raise InputError(
            f"prompt: {ids.shape[1]} tokens and {max_new_tokens} new ones are {total}; the model's context ends at {limit}"
        )
    screen = _Screen(loaded.tokenizer, tau, as_json)
    recorder = None
    if telemetry is not None:
        from witcert.telemetry import Telemetry

        g = loaded.geometry
        recorder = Telemetry(g.layers, g.heads, tau=tau, device=where, jsonl=telemetry, sample=1 / 16)
    options: dict[str, Any] = {"do_sample": temperature > 0}
    if temperature > 0:
        options["temperature"] = temperature
    exact = format == "exact"
    start = time.monotonic()
    torch.manual_seed(seed)
    try:
        with torch.no_grad(), attach(
            loaded, format=format, scheme=scheme, meter=meter, gate="off" if exact else threshold, tau=tau, tokens=total,  # type: ignore[arg-type]
            dtype=torch.float16 if kind == torch.float32 else None, steps=max_new_tokens, delta_req=delta, seed=seed,
            tier_b=format == "int8-dither" and meter in ("auto", "tierB"), telemetry=recorder, on_step=screen.step,
            outliers=outliers,
        ) as attachment:  # fmt: skip
            with screen:
                pad = loaded.tokenizer.pad_token_id
                output = loaded.model.generate(
                    ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_new_tokens, streamer=screen,
                    pad_token_id=loaded.tokenizer.eos_token_id if pad is None else pad, **options,
                )  # fmt: skip
            seconds = time.monotonic() - start
            account, config = attachment.pool.account(), attachment.pool.config
            (report,) = attachment.report()
    finally:
        if recorder is not None:
            recorder.close()
    new = output[0, ids.shape[1] :].tolist()
    answer = loaded.tokenizer.decode(new, skip_special_tokens=True)
    if as_json:
        data = {
            "model": loaded.name, "format": config.format, "scheme": config.scheme, "text": answer, "tokens": new,
            "prompt_tokens": int(ids.shape[1]), "seconds": seconds, "request": report.to_json(), "bytes": account,
        }  # fmt: skip
        print(json.dumps(data))
        return
    print(answer)
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    if report.worst:
        console.print(_summary(report, seconds, config.scheme or config.format, account))
    console.print(_verdict(report).replace("[", "\\["), style="dim")
