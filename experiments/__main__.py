"""``python -m experiments``: run one experiment or all, draw the pictures, write the README."""

from __future__ import annotations

import argparse
import copy
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import torch

from experiments import readme, record, registry, style, supervise
from experiments.common import SEED, Setting
from witcert.errors import InputError, MissingExtraError, WitCertError

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = argparse.ArgumentParser(prog="python -m experiments", description=__doc__)
    p.add_argument("name", nargs="?", help="an experiment, or: all, figures, readme, unpack, export-model")
    p.add_argument("path", nargs="?", type=Path, help="of unpack: the bundle; of export-model: the folder")
    p.add_argument("--list", action="store_true", help="list the experiments")
    p.add_argument("--out", type=Path, default=None, help="folder of NAME.json and NAME.png; default: out/experiments")
    p.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    p.add_argument("--quick", action="store_true", help="short texts, for a check that everything runs")
    p.add_argument("--model", help="a directory, a .gguf file or a hub id; 'none' with --recording")
    p.add_argument("--recording", type=Path, help="a file of `witcert capture`, instead of recording the texts")
    p.add_argument("--save-recording", type=Path, help="also keep what was recorded")
    p.add_argument("--dtype", choices=tuple(DTYPES), default=None, help="precision of the model; default: float32")
    p.add_argument("--seed", type=int, default=SEED)
    p.add_argument("--tau", type=float, default=0.2)
    p.add_argument("--tokens", type=int)
    p.add_argument("--queries", type=int)
    p.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="an option of the experiment")
    p.add_argument("--commit", help="what the record calls the commit, where there is no repository")
    p.add_argument("--only", help="of all: these experiments, separated by commas")
    p.add_argument("--limit", type=int, default=0, help="of all: seconds that one experiment may take; 0: no limit")
    p.add_argument("--bundle", type=Path, help="of all: also write every result into this one file")
    p.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    p.add_argument("--command", help=argparse.SUPPRESS)
    return p


def setting_of(args: argparse.Namespace) -> Setting:
    """The shared setting that the arguments describe."""
    options = dict(part.partition("=")[::2] for part in args.set)
    return Setting(
        device=args.device, quick=args.quick, model=args.model, recording=args.recording, seed=args.seed, tau=args.tau,
        tokens=args.tokens, queries=args.queries, dtype=DTYPES[args.dtype or "float32"], options=options,
    )  # fmt: skip


def command_of(argv: list[str]) -> str:
    """The command as a reader would repeat it: without where its files went."""
    hidden = ("--out", "--bundle", "--commit", "--save-recording", "--limit")
    words = [w for i, w in enumerate(argv) if w not in hidden and (i == 0 or argv[i - 1] not in hidden)]
    files = ("--model", "--recording")
    words = [Path(w).name if i and words[i - 1] in files else w for i, w in enumerate(words)]
    return "python -m experiments " + shlex.join(words)


def one(args: argparse.Namespace, command: str) -> int:
    """Run one experiment, write its JSON and its picture; 3 if a proved reading was violated."""
    module, setting = registry.find(args.name), setting_of(args)
    known = getattr(module, "OPTIONS", {})
    unknown = sorted(set(setting.options) - set(known))
    if unknown:
        raise InputError(f"--set: {args.name} has no option {', '.join(unknown)}; it has {', '.join(known) or 'none'}")
    out = args.out or Path("out/experiments")
    found = supervise.execute(module, setting, command, args.commit)
    path = record.save(out, found)
    keep(setting, args.save_recording)
    print(module.describe(json.loads(path.read_text(encoding="utf-8"))["result"]))
    print(f"\n{found['seconds']} s, violations of proved readings: {found['violations']}; wrote {path}")
    draw([path])
    return 3 if found["violations"] else 0


def keep(setting: Setting, path: Path | None) -> None:
    """Save the recording if that was asked for."""
    if path is not None:
        from witcert.observe import activations

        activations.save(setting.recordings, path)


def draw(paths: list[Path]) -> None:
    """Draw the picture beside each result; says so where matplotlib is missing."""
    known, _ = registry.discover()
    for path in paths:
        r = record.load(path)
        if r["experiment"] not in known:
            print(f"{path}: no experiment {r['experiment']!r}", file=sys.stderr)
            continue
        try:
            style.save(known[r["experiment"]].draw(r["result"]), path.with_suffix(".png"))
        except MissingExtraError as e:
            print(f"no picture: {e}", file=sys.stderr)
            return
        print(f"wrote {path.with_suffix('.png')}")


def every(args: argparse.Namespace, argv: list[str], command: str) -> int:
    """All experiments; 3 if one has a violation, 1 if one failed, else 0."""
    known, _ = registry.discover()
    names = args.only.split(",") if args.only else list(known)
    for name in names:
        registry.find(name)
    out = args.out or Path("out/experiments")
    if args.here:
        setting = setting_of(args)
        try:
            return supervise.run_here(names, setting, out, args.command or command, args.commit, args.limit)
        finally:
            keep(setting, args.save_recording)
    handed = [w for i, w in enumerate(argv) if w != "all" and not _belongs(argv, i, ("--only", "--out", "--bundle"))]
    failures = supervise.run_all(names, [*handed, "--command", command], out)
    whole = supervise.bundle(names, out, failures)
    if args.bundle:
        record.write_json(args.bundle, whole)
    for r in whole["records"]:
        print(f"{r['experiment']:16s} {r['seconds']:7.1f} s  violations {r['violations']}")
    for name, reason in failures.items():
        print(f"{name:16s} FAILED: {reason.strip().splitlines()[-1]}")
    if any(r["violations"] for r in whole["records"]):
        return 3
    return 1 if failures else 0


def _belongs(argv: list[str], i: int, names: tuple[str, ...]) -> bool:
    """Whether a word is one of these options or its value."""
    return argv[i].split("=")[0] in names or (i > 0 and argv[i - 1] in names)


def unpack(path: Path | None, out: Path) -> None:
    """Write the records of a bundle as single files."""
    if path is None or not path.is_file():
        raise InputError("unpack needs the file that `all --bundle` wrote")
    whole = json.loads(path.read_text(encoding="utf-8"))
    for r in whole["records"]:
        print(f"wrote {record.save(out, r)}")
    for name, reason in whole["failures"].items():
        print(f"{name} failed: {reason.strip().splitlines()[-1]}")


def _plain(model: Any) -> Any:
    """The model, or, of one read from GGUF, a copy that shares its weights and has no marks of quantization.

    transformers does not write a model with those marks, although its weights are ordinary tensors by then. Raises
    InputError if they are still packed in blocks.
    """
    method = getattr(getattr(model.config, "quantization_config", None), "quant_method", None)
    if getattr(method, "value", method) != "gguf":
        return model
    packed = [name for name, x in model.state_dict().items() if not x.is_floating_point()]
    if packed:
        raise InputError(f"model: {packed[0]} is still packed as in the GGUF file; only unpacked weights can be written")
    plain = copy.copy(model)
    plain.config = copy.deepcopy(model.config)
    for part in (plain, plain.config):
        for mark in ("hf_quantizer", "quantization_config", "quantization_method", "is_quantized", "_is_quantized"):
            part.__dict__.pop(mark, None)
    return plain


def export_model(args: argparse.Namespace) -> None:
    """Write the model and its tokenizer as a directory of safetensors, in 16 bits unless float32 is asked for."""
    from witcert.hf.load import load_model

    if args.path is None:
        raise InputError("export-model needs the folder to write")
    loaded = load_model(args.model, dtype=DTYPES[args.dtype or "float16"])
    _plain(loaded.model).save_pretrained(args.path)
    loaded.tokenizer.save_pretrained(args.path)
    print(f"wrote {loaded.name} to {args.path}, weights rounded to {args.dtype or 'float16'}")


def dispatch(args: argparse.Namespace, argv: list[str]) -> int:
    """Do what was asked for."""
    if args.list or args.name is None:
        known, broken = registry.discover()
        for name, module in known.items():
            print(f"{name:16s} {module.QUESTION}")
        for name, reason in broken.items():
            print(f"{name:16s} BROKEN: {reason.strip().splitlines()[-1]}")
        return 1 if broken else 0
    if args.name == "figures":
        draw(sorted((args.out or record.RESULTS).glob("*.json")))
        return 0
    if args.name == "readme":
        readme.PATH.write_text(readme.render(), encoding="utf-8")
        print(f"wrote {readme.PATH}")
        return 0
    if args.name == "unpack":
        unpack(args.path, args.out or record.RESULTS)
        return 0
    if args.name == "export-model":
        export_model(args)
        return 0
    command = command_of(argv)
    return every(args, argv, command) if args.name == "all" else one(args, command)


def main(argv: list[str] | None = None) -> int:
    """Exit code 0, 1 when something failed, 2 on bad input, 3 when a proved reading is below the truth."""
    words: list[Any] = sys.argv[1:] if argv is None else list(argv)
    try:
        return dispatch(parser().parse_args(words), words)
    except WitCertError as e:
        print(f"error: {e}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
