#!/usr/bin/env python3
"""Check Lean files, or run Lean, where no Lean toolchain is installed.

  leanrun.py setup                      download, verify, unpack, patch (once; the others do it when needed)
  leanrun.py check ROOT [MODULE...]     compile the modules; non-zero on any error or sorry
  leanrun.py lean ARGS...               run that Lean with these arguments

Only Python's standard library, npm (for the download) and x86-64 Linux are needed.  There is no Mathlib: a
module that needs another package is listed as `skipped` and never counted as passed.  docs/proofs.md says
what a pass means and what it does not.  Exit status: 0 all well, 1 something failed, 2 it could not run.
"""

import argparse
import os
import sys
from pathlib import Path

import install
import lean
from check import Checker
from problem import Problem


def _arguments() -> argparse.ArgumentParser:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sub = ap.add_subparsers(dest="what", required=True)
    p = sub.add_parser("setup", help="download, verify, unpack, patch")
    p.add_argument("--force", action="store_true", help="install anew")
    p = sub.add_parser("check", help="compile modules")
    p.add_argument("root", type=Path, help="the source root: module A.B is ROOT/A/B.lean")
    p.add_argument("modules", nargs="*", help="module names (default: all)")
    p.add_argument("--build", type=Path, help="where results are kept (default: ROOT/.lake/leanrun)")
    p.add_argument("-j", "--jobs", type=int, default=2)
    p.add_argument("-D", dest="options", action="append", default=[], metavar="NAME=VALUE", help="a Lean option")
    p.add_argument("--timeout", type=int, default=1800, help="seconds for one module")
    p.add_argument("--force", action="store_true", help="check anew what is up to date")
    p.add_argument("--info", action="store_true", help="print #check and #eval output too")
    p = sub.add_parser("lean", help="run Lean with the arguments that follow")
    p.add_argument("args", nargs=argparse.REMAINDER)
    return ap


def _lean(args: list[str]) -> int:
    run = lean.run(["--json", *args], cwd=Path(os.getcwd()))
    for m in run.messages:
        print(f"{m['fileName']}:{m['pos']['line']}:{m['pos']['column']}: {m['severity']}: {m['data']}")
    print("\n".join(run.other))
    return run.status


def main(argv=None) -> int:
    a = _arguments().parse_args(argv)
    try:
        where = install.setup(a.what == "setup" and a.force)
        if a.what == "setup":
            print(where)
            return 0
        if a.what == "lean":
            return _lean(a.args)
        root = a.root.resolve()
        if not root.is_dir():
            raise Problem(f"no such folder: {a.root}")
        build = (a.build or root / ".lake" / "leanrun").resolve()
        asked = [] if a.modules == ["all"] else a.modules
        report = Checker(root, build, a.options, a.timeout, a.force).check(asked, a.jobs, a.info)
        return 1 if report.failed else 0
    except Problem as e:
        print(f"leanrun: error: {e}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
