"""What is changed in the WebAssembly build of Lean, and why; each change is asserted to fit exactly.

* `lean.js`, the loader that Emscripten generated: start-up time, stack size and visible folders.
* `lean.wasm`: one byte, so that `System.Platform.isEmscripten` is false.  With it true Lean treats every
  file as a `module`, in which meta-programs do not run.
* `*.olean`: the flag `isModule` of each module of the core library is cleared, so that an ordinary file,
  which is no `module`, may import them.

Nothing that elaborates or checks a proof is touched.
"""

import re
import struct

from problem import Problem

THREAD_STACK_MB = 256  # JavaScript stack of a thread; only what is used is touched

# The constructor argument of the Boolean `isEmscripten` in the code section, with the bytes around it.
WASM_FLAG_AT = 24_891_078
WASM_AROUND = bytes.fromhex("3a000041e89b3c41013a000041ec9b3c")

OLEAN_HEADER = 80  # bytes before the base address and the address of the root object
OLEAN_OBJECT_FIELDS = 5  # of Lean.ModuleData; its scalar `isModule` comes after them


def replace_once(text: str, old: str, new: str) -> str:
    if text.count(old) != 1:
        raise Problem(f"lean.js is not the file expected: {old[:60]!r} occurs {text.count(old)} times, not once")
    return text.replace(old, new)


def lean_js(text: str) -> str:
    """The loader with six changes.

    1. dlsym looked a symbol up by listing all 200 000 exports on every call.
    2. Four threads were started, each loading the module anew, before Lean could start; one is
       enough, and more are still started when Lean asks for them.
    3. Each thread assigned every export to a global and to a property, 89 MB of JavaScript to parse
       per thread.  Only those that the loader's own code names are kept (about fifty).
    4. Threads got Node's default stack of 4 MB, too little for Lean's recursion.
    5. Only /home and /tmp were visible; now every top-level folder is, but the kernel's own.
    6. A WebAssembly.Global was made for each of 200 000 symbols that no other library imports; a plain
       object holds the same number.
    """
    text = replace_once(
        text,
        "newSymIndex=Object.keys(lib.exports).indexOf(symbol);",
        "newSymIndex=(lib.symIx??=new Map(Object.keys(lib.exports).map((k,i)=>[k,i]))).get(symbol)??-1;",
    )
    text = replace_once(text, "var pthreadPoolSize=4;", "var pthreadPoolSize=1;")
    text = replace_once(
        text, 'name:"em-pthread"})', f'name:"em-pthread",resourceLimits:{{stackSizeMb:{THREAD_STACK_MB}}}}})'
    )
    text = replace_once(
        text,
        'FS.mount(NODEFS,{root:"/home"},"/home");FS.mount(NODEFS,{root:"/tmp"},"/tmp");',
        'for(const d of require("fs").readdirSync("/")){const p="/"+d;if(["dev","proc","sys"].includes(d))continue;'
        'try{if(!require("fs").statSync(p).isDirectory())continue;require("fs").readdirSync(p)}catch(e){continue}'
        "try{FS.mkdir(p)}catch(e){}FS.mount(NODEFS,{root:p},p)}",
    )
    text = replace_once(
        text, 'GOT[symName]??=new WebAssembly.Global({value:"i32",mutable:true});', "GOT[symName]??={value:0};"
    )
    return _drop_unused_exports(text)


def _drop_unused_exports(text: str) -> str:
    head = "function assignWasmExports(wasmExports){"
    tail = "}var wasmImports;function assignWasmImports(){"
    for mark in (head, tail):
        if text.count(mark) != 1:
            raise Problem(f"lean.js is not the file expected: no single {mark!r}")
    body_at, body_end = text.index(head) + len(head), text.index(tail)
    vars_at = text.rindex("var _main,", 0, body_at)
    names = text[vars_at + len("var ") : body_at - len(head)].rstrip(";").split(",")
    used = set(re.findall(r"[\w$]+", text[:vars_at] + text[body_end:]))
    assignment = re.compile(
        r'([\w$]+)=(?:Module\["[^"]+"\]=)?(wasmTable=)?wasmExports\["[^"]+"\](?:\.value)?(?:;|(?=\}))'
    )
    kept, at = [], body_at
    while at < body_end:
        m = assignment.match(text, at, body_end + 1)
        if not m:
            raise Problem(f"lean.js is not the file expected near {text[at : at + 60]!r}")
        if m[1] in used or m[2]:
            kept.append(m[0].rstrip(";"))
        at = m.end()
    kept_names = {k.split("=", 1)[0] for k in kept}
    names = [n for n in names if n in used or n in kept_names]
    return text[:vars_at] + "var " + ",".join(names) + ";" + head + ";".join(kept) + text[body_end:]


def lean_wasm(data: bytearray) -> None:
    """Clear `isEmscripten`, in place."""
    at = WASM_FLAG_AT - 8
    if bytes(data[at : at + len(WASM_AROUND)]) != WASM_AROUND:
        raise Problem("lean.wasm is not the file expected")
    data[WASM_FLAG_AT] = 0


def olean(data: bytearray, name: str) -> None:
    """Clear `isModule` of a compiled module of a 32-bit build, in place."""
    if data[:5] != b"olean" or data[5] != 2:
        raise Problem(f"{name} is not an .olean file of the version expected")
    base, root = struct.unpack_from("<II", data, OLEAN_HEADER)
    at = root - base
    if not 0 < at < len(data) or data[at + 6] != OLEAN_OBJECT_FIELDS or data[at + 7] != 0:
        raise Problem(f"{name}: its root object is not the one expected")
    flag = at + 8 + 4 * OLEAN_OBJECT_FIELDS
    if data[flag] not in (0, 1):
        raise Problem(f"{name}: its flag isModule is {data[flag]}")
    data[flag] = 0
