import Lean.Elab.Frontend

/-!
Compiles modules one after another in one process, so that starting Lean is paid for once.

    lean --run Worker.lean INBOX [NAME=VALUE...]

The options hold for every module.  A job is the file INBOX with a module, its source and the `.olean` file to write, each
on a line; it is taken away when the work begins.  The messages are printed as JSON, as `lean --json` does, then
`{"done": MODULE, "ok": BOOL}`.  It waits for the next job until it is stopped.  (Its standard input would
be the natural way in, but the WebAssembly build reads that to its end before it gives a line.)
-/

open Lean

def parseOption (options : Options) (arg : String) : IO Options := do
  let name :: rest := arg.splitOn "=" | throw <| .userError s!"not an option: {arg}"
  let value := "=".intercalate rest
  return match value, value.toNat? with
    | "true", _ => options.setBool name.toName true
    | "false", _ => options.setBool name.toName false
    | _, some n => options.setNat name.toName n
    | _, none => options.setString name.toName value

def compile (options : Options) (module source olean : String) : IO Bool := do
  let input ← IO.FS.readFile source
  let env? ← Elab.runFrontend input options source module.toName (trustLevel := 1024) (oleanFileName? := some olean)
    (jsonOutput := true)
  return env?.isSome

def serve (args : List String) : IO Unit := do
  unsafe enableInitializersExecution
  let inbox :: rest := args | throw <| .userError "usage: Worker.lean INBOX [NAME=VALUE...]"
  let options ← rest.foldlM parseOption {}
  repeat
    if ← System.FilePath.pathExists inbox then
      let job ← IO.FS.readFile inbox
      IO.FS.removeFile inbox
      let module :: source :: olean :: _ := job.splitOn "\n" | throw <| .userError s!"not a job: {job}"
      let ok ← compile options module source olean
      IO.println (Json.mkObj [("done", module), ("ok", ok)]).compress
      (← IO.getStdout).flush
    else
      IO.sleep 20

/-- In a thread of its own, because the size of the first thread's stack cannot be chosen everywhere. -/
def main (args : List String) : IO Unit := do
  match (← IO.asTask (prio := .dedicated) (serve args)).get with
  | .ok () => IO.Process.exit 0
  | .error e =>
    IO.eprintln s!"Worker.lean: {e}"
    IO.Process.exit 1
