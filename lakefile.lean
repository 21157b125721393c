import Lake

open Lake DSL

package witcert

/- The Core layer needs nothing but Lean: `lake -R -Kcore=true build WitCertCore` does not fetch Mathlib. -/
meta if get_config? core = none then
require mathlib from git "https://github.com/leanprover-community/mathlib4" @ "v4.28.0"

/-- Algebra over an abstract ordered field with an exponential; imports Lean's own library only. -/
lean_lib WitCertCore where
  srcDir := "formal"
  roots := #[`WitCert.Core]

/-- The same at the real numbers, with analysis and probability from Mathlib. -/
@[default_target]
lean_lib WitCert where
  srcDir := "formal"
  roots := #[`WitCert]

/-- Writes what the compiled modules state, as JSON. -/
lean_exe statements where
  srcDir := "formal"
  root := `Export
  supportInterpreter := true
