import Lean.Meta
import Lean.PrettyPrinter
import Lean.Replay
import Lean.Util.CollectAxioms

/-!
# Export of statements

Reads the compiled modules of this project and writes, as JSON, what they state: every theorem with its
binders, its conclusion, its documentation, its fully explicit type and the theorems that its proof cites,
every definition that a statement rests on, and every use of an axiom.  Hashes, layers and documents are made from this by `formal/tools`.

    lake env lean --run formal/Export.lean OUT.json WitCert.Core [WitCert]

The modules must be compiled and on the search path.  Nothing of the project is imported statically, so
one program serves every layer.

The *explicit text* of a term leaves no implicit argument, notation or bound variable's name to choose:
bound variables are `x0`, `x1`, ... from the outside in, universe parameters `u1`, `u2`, ... in their declared
order, and a proof inside a term is `(proof T)` with the proposition `T` that it proves.  Two types have the
same text exactly if they are the same up to names of bound variables and up to such proofs.
-/

open Lean Meta

namespace Export

/-- The namespace, and the first part of the module names, of this project. -/
def project : Name := `WitCert

/-! ### the explicit text of a term -/

structure Writer where
  /-- The depth of each variable that is bound around the place where the text is being written. -/
  depth : Std.HashMap FVarId Nat := {}
  /-- Texts already made.  The depth belongs to the key because the names of bound variables depend on it. -/
  memo : Std.HashMap (Expr × Nat) String := {}
  constants : NameSet := {}

abbrev WriteM := StateRefT Writer MetaM

/-- No honest statement comes near this many bytes; a longer text would only eat the memory. -/
def maxText : Nat := 4000000

def levelText (params : List Name) (l : Level) : String :=
  let fresh := (List.range params.length).map fun i => Level.param (.mkSimple s!"u{i + 1}")
  go (l.instantiateParams params fresh).normalize
where
  go : Level → String
    | .zero => "0"
    | .succ l => s!"(succ {go l})"
    | .max a b => s!"(max {go a} {go b})"
    | .imax a b => s!"(imax {go a} {go b})"
    | .param n => toString n
    | .mvar _ => "?"

/-- Count `x` as bound while `act` writes; `act` is given the name that the text has for it. -/
def bound (x : Expr) (act : String → WriteM String) : WriteM String := do
  let level := (← get).depth.size
  modify fun w => { w with depth := w.depth.insert x.fvarId! level }
  let s ← act s!"x{level}"
  modify fun w => { w with depth := w.depth.erase x.fvarId! }
  return s

/-- The explicit text of `e`, whose universe parameters are `params`. -/
partial def write (params : List Name) (e : Expr) : WriteM String := do
  let key := (e, (← get).depth.size)
  if let some s := (← get).memo[key]? then return s
  let s ← if ← isProof e then
      pure s!"(proof {← write params (← inferType e)})"
    else match e with
      | .fvar id => pure s!"x{(← get).depth.getD id 0}"
      | .sort l => pure s!"(Sort {levelText params l})"
      | .const n ls => do
        use n
        pure (if ls.isEmpty then s!"{n}" else s!"{n}.[{" ".intercalate (ls.map (levelText params))}]")
      | .app .. => do
        let args ← e.getAppArgs.mapM (write params)
        pure s!"({" ".intercalate ((← write params e.getAppFn) :: args.toList)})"
      | .lam n t b _ => do
        let type ← write params t
        withLocalDeclD n t fun x => bound x fun k => do
          pure s!"(λ {k} : {type}, {← write params (b.instantiate1 x)})"
      | .forallE n t b _ => do
        let type ← write params t
        withLocalDeclD n t fun x => bound x fun k => do
          pure s!"(∀ {k} : {type}, {← write params (b.instantiate1 x)})"
      | .letE n t v b _ => do
        let type ← write params t
        let value ← write params v
        withLetDecl n t v fun x => bound x fun k => do
          pure s!"(let {k} : {type} := {value}, {← write params (b.instantiate1 x)})"
      | .lit (.natVal v) => pure (toString v)
      | .lit (.strVal v) => pure v.quote
      | .mdata _ b => write params b
      | .proj t i b => do
        use t
        pure s!"(proj {t} {i} {← write params b})"
      | .bvar _ | .mvar _ => throwError "a term that is not closed: {e}"
  if s.utf8ByteSize > maxText then throwError "the explicit text of a term is longer than {maxText} bytes"
  modify fun w => { w with memo := w.memo.insert key s }
  return s
where
  use (n : Name) : WriteM Unit := modify fun w => { w with constants := w.constants.insert n }

/-- The explicit text of a closed term and the constants that occur in it. -/
def explicit (params : List Name) (e : Expr) : MetaM (String × NameSet) := do
  let (s, w) ← (write params e).run {}
  return (s, w.constants)

/-! ### what belongs to the project -/

structure Context where
  /-- The project's modules by their place in the environment. -/
  modules : Std.HashMap Nat Name

abbrev ExportM := ReaderT Context MetaM

def moduleOf? (n : Name) : ExportM (Option Name) := do
  let some i := (← getEnv).getModuleIdxFor? n | return none
  return (← read).modules[i.toNat]?

/-- Did the author write this constant (Lean derives others from what is written)? -/
def isWritten (n : Name) : ExportM Bool := do
  let env ← getEnv
  return (declRangeExt.find? env n).isSome && !(privateToUserName n).isInternalDetail
    && !isAuxRecursor env n && !isNoConfusion env n

/-- What the constant was before its body was left out, where the core library is stored without proofs. -/
def isTrueAxiom (n : Name) : ExportM Bool := do
  let env ← getEnv
  match env.find? n with
  | some (.axiomInfo _) => return (getOriginalConstKind? env n).all (· matches .axiom)
  | _ => return false

/-! ### readable text -/

def readable (f : Format) : String := f.pretty (width := 100)

def pretty (e : Expr) : MetaM String := return readable (← ppExpr e)

/-- The name of a binder as the author wrote it; empty where there is none. -/
def binderName (n : Name) : String := if n.hasMacroScopes then "" else toString n

def binderKind : BinderInfo → String
  | .default => "explicit"
  | .implicit => "implicit"
  | .strictImplicit => "strict-implicit"
  | .instImplicit => "instance"

/-- Each binder of a type (name, kind, type, whether it is a proposition), and what remains. -/
def telescope (type : Expr) (skip : Nat := 0) : MetaM (Array Json × String) :=
  forallTelescope type fun xs body => do
    let binders ← (xs.extract skip xs.size).mapM fun x => do
      let d ← x.fvarId!.getDecl
      return Json.mkObj [("name", binderName d.userName), ("kind", binderKind d.binderInfo),
        ("type", ← pretty d.type), ("prop", ← isProp d.type)]
    return (binders, ← pretty body)

/-- Print with names shortened as they are inside the constant's own namespace. -/
def inNamespaceOf {α} (n : Name) (act : MetaM α) : MetaM α :=
  withTheReader Core.Context ({ · with currNamespace := (privateToUserName n).getPrefix }) act

abbrev Fields := List (String × Json)

def obj (parts : List Fields) : Json := Json.mkObj parts.flatten

def place (n m : Name) : MetaM Fields := do
  let r := declRangeExt.find? (← getEnv) n
  return [("module", toString m), ("line", toJson (r.map (·.selectionRange.pos.line))),
    ("column", toJson (r.map (·.selectionRange.pos.column))),
    ("first_line", toJson (r.map (·.range.pos.line))), ("last_line", toJson (r.map (·.range.endPos.line)))]

def docOf (n : Name) : MetaM Json := return toJson (← findDocString? (← getEnv) n)

def names (ns : Array Name) : Json := toJson (ns.map toString)

/-! ### theorems and definitions -/

/-- Is this a theorem that others may cite: written by the author, not private, no field and no instance? -/
def isCitable (n : Name) : ExportM Bool := do
  let some (.thmInfo _) := (← getEnv).find? n | return false
  return !isPrivateName n && !(← getEnv).isProjectionFn n && !(← isInstance n) && (← isWritten n)

/-- The citable theorems that the proof of `n` rests on directly: those that its term names, itself or through
constants of the project that are not citable (private lemmas, what Lean split off, definitions with proofs in
them), each followed until a citable theorem is reached. -/
def proofUses (n : Name) (v : TheoremVal) : ExportM (Array Name) := do
  let mut seen : NameSet := {}
  let mut todo := v.value.getUsedConstants.toList
  let mut out := #[]
  repeat
    let c :: rest := todo | break
    todo := rest
    if c == n || seen.contains c || (← moduleOf? c).isNone then continue
    seen := seen.insert c
    if ← isCitable c then out := out.push c
    else todo := (← getConstInfo c).getUsedConstantsAsSet.toList ++ todo
  return out.qsort (toString · < toString ·)

def theoremJson (n m : Name) (v : TheoremVal) : ExportM (Json × NameSet) := do
  let (text, constants) ← explicit v.levelParams v.type
  let used ← constants.toArray.filterM fun c => return (← moduleOf? c).isSome
  let kind := if ← isInstance n then "instance" else "theorem"
  let at_ ← place n m
  let readableParts : Fields ← inNamespaceOf n do
    let (binders, conclusion) ← telescope v.type
    let signature ← PrettyPrinter.ppSignature n
    return [("statement", .str (readable signature.fmt)), ("binders", .arr binders), ("conclusion", .str conclusion)]
  let doc ← docOf n
  return (obj [[("name", toString n), ("kind", kind)], at_, readableParts,
    [("explicit", text), ("uses", names used), ("proof_uses", names (← proofUses n v)), ("doc", doc)]], constants)

def fieldsJson (n : Name) : MetaM (Array Json) := do
  let env ← getEnv
  unless isStructure env n do return #[]
  let params := match env.find? n with | some (.inductInfo v) => v.numParams | _ => 0
  (getStructureFields env n).mapM fun f => do
    let proj := (getProjFnForField? env n f).getD (n ++ f)
    let type := (← getConstInfo proj).type
    let (binders, conclusion) ← telescope type (params + 1)
    let prop ← forallTelescope type fun _ b => isProp b
    return Json.mkObj [("name", toString f), ("binders", toJson binders), ("type", conclusion), ("prop", prop),
      ("doc", ← docOf proj)]

/-- A constant that statements mention: its explicit type and content, and the constants in both. -/
def definitionJson (n m : Name) (ci : ConstantInfo) : ExportM (Json × NameSet) := do
  let env ← getEnv
  let isInst ← isInstance n
  let (kind, value, direct) : String × Option Expr × List Name := match ci with
    | .defnInfo v => (if isInst then "instance" else "def", some v.value, [])
    | .opaqueInfo v => ("opaque", some v.value, [])
    | .inductInfo v => (if isClass env n then "class" else if isStructure env n then "structure" else "inductive", none,
        v.ctors)
    | .ctorInfo v => ("constructor", none, [v.induct])
    | .recInfo v => ("recursor", none, v.all)
    | .thmInfo _ => ("theorem", none, [])
    | .axiomInfo _ => ("axiom", none, [])
    | .quotInfo _ => ("quotient", none, [])
  let (type, inType) ← explicit ci.levelParams ci.type
  let (body, inBody) ← match value with
    | some v => explicit ci.levelParams v
    | none => pure ("", {})
  let constants := direct.foldl (·.insert ·) (inBody.foldl (·.insert ·) inType)
  let used ← constants.toArray.filterM fun c => return (← moduleOf? c).isSome
  let written := (← isWritten n) && !isPrivateName n && !env.isProjectionFn n && !(ci matches .ctorInfo _)
  let at_ ← place n m
  let readableParts : Fields ← inNamespaceOf n do
    let signature ← if written then (fun s => readable s.fmt) <$> PrettyPrinter.ppSignature n else pure ""
    return [("signature", .str signature), ("fields", .arr (← fieldsJson n))]
  let doc ← docOf n
  return (obj [[("name", toString n), ("kind", kind), ("written", written)], at_, readableParts,
    [("explicit", type), ("value", body), ("uses", names used), ("doc", doc)]], constants)

/-- All that the project's constants reached from `start` are, each once. -/
partial def definitions (start : NameSet) : ExportM (Array Json) := do
  let mut seen : NameSet := {}
  let mut todo := start.toList
  let mut out := #[]
  repeat
    let n :: rest := todo | break
    todo := rest
    if seen.contains n then continue
    seen := seen.insert n
    let some m ← moduleOf? n | continue
    let (json, constants) ← definitionJson n m (← getConstInfo n)
    out := out.push json
    todo := constants.toList ++ todo
  return out

/-! ### axioms -/

/-- For every constant of the project, the axioms that its type and its body name themselves, and the
project's constants that it uses, so that what a theorem rests on can be followed through all of them. -/
def usesJson (n m : Name) (ci : ConstantInfo) (closure : Bool) : ExportM Json := do
  let direct := ci.getUsedConstantsAsSet.toArray
  let own := match ci with | .axiomInfo _ => #[n] | _ => #[]
  let axioms := own ++ (← direct.filterM isTrueAxiom)
  let inside ← direct.filterM fun c => return (← moduleOf? c).isSome
  let at_ ← place n m
  let all : Fields ← if closure then pure [("closure", names (← collectAxioms n))] else pure []
  return obj [[("name", toString n), ("user_name", toString (privateToUserName n))], at_, all,
    [("axioms", names axioms), ("uses", names inside)]]

/-! ### the whole -/

def isPublicTheorem (n : Name) : ExportM Bool := do
  return !isPrivateName n && !(← getEnv).isProjectionFn n && (← isWritten n)

def statements (closure : Bool) : ExportM Json := do
  let env ← getEnv
  let mut theorems := #[]
  let mut start : NameSet := {}
  let mut uses := #[]
  for (i, m) in (← read).modules.toArray.qsort (·.1 < ·.1) do
    for n in env.header.moduleData[i]!.constNames do
      let ci ← getConstInfo n
      uses := uses.push (← usesJson n m ci closure)
      if ← isPublicTheorem n then
        if let .thmInfo v := ci then
          let (json, constants) ← theoremJson n m v
          theorems := theorems.push json
          start := constants.foldl (·.insert ·) start
  return Json.mkObj [("lean", Lean.versionString), ("modules", names ((← read).modules.toArray.qsort (·.1 < ·.1) |>.map (·.2))),
    ("theorems", Json.arr theorems), ("definitions", Json.arr (← definitions start)), ("constants", Json.arr uses)]

/-- Send every constant of the project once more to the kernel, on top of what the project imports, so that a
constant that was put into a compiled file unchecked is found. -/
def replay (modules : Std.HashMap Nat Name) (env : Environment) : IO Nat := do
  let mut imports : Array Import := #[]
  let mut constants : Std.HashMap Name ConstantInfo := {}
  for (i, _) in modules.toArray do
    let data := env.header.moduleData[i]!
    for imp in data.imports do
      unless project.isPrefixOf imp.module do imports := imports.push imp
    for n in data.constNames, ci in data.constants do
      constants := constants.insert n ci
  let base ← importModules imports {}
  discard <| base.replay constants
  return constants.size

end Export

open Export in
def run (args : List String) : IO Unit := do
  let (flags, args) := args.partition (·.startsWith "--")
  let out :: roots := args | throw <| .userError "usage: Export.lean [--closure] [--replay] OUT.json ROOT..."
  if (← searchPathRef.get).isEmpty then initSearchPath (← findSysroot)
  unsafe enableInitializersExecution
  let env ← importModules (roots.toArray.map fun r => { module := r.toName }) {} (loadExts := true)
  let modules := (env.header.moduleNames.zipIdx.filter fun (m, _) => project.isPrefixOf m).foldl
    (fun s (m, i) => s.insert i m) ({} : Std.HashMap Nat Name)
  let options : Options := ({} : Options).setBool `pp.proofs true |>.setNat `pp.maxSteps 1000000 |>.setBool `pp.deepTerms true
  let (json, _) ← ((statements (flags.contains "--closure")).run { modules }).toIO
    { fileName := "", fileMap := default, options, maxHeartbeats := 0, maxRecDepth := 100000 } { env }
  let replayed : Fields ← if flags.contains "--replay" then
      try pure [("replayed", toJson (← replay modules env))]
      catch e => pure [("replayed", .null), ("replay_error", .str (toString e))]
    else pure [("replayed", .null)]
  let json := replayed.foldl (fun json (name, value) => json.setObjVal! name value) json
  IO.FS.writeFile out (json.compress ++ "\n")

/-- In a thread of its own, because the size of the first thread's stack cannot be chosen everywhere. -/
def main (args : List String) : IO Unit := do
  match (← IO.asTask (prio := .dedicated) (run args)).get with
  | .ok () => IO.Process.exit 0
  | .error e =>
    IO.eprintln s!"Export.lean: {e}"
    IO.Process.exit 1
