# Two commands matter: `make sweep` (the farm at work on this machine) and `make test`. Everything lives in .venv/.
# Variables: PYTHON=python3.12 picks the interpreter; PYTEST="-k agent -x" adds pytest options; SWEEP="--json" adds sweep options.

.DEFAULT_GOAL := help
.PHONY: help sweep test test-slow check lab lab-sweep lab-gpus lock docs wheel clean

PYTEST ?=
SWEEP ?=
FARM = .venv/bin/farm
PY = .venv/bin/python

help: ## Say what there is to make
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

sweep: ## Sweep the shipped inventory: this machine, small models, every GPU precision; prints the matrix
	@PYTHON="$(PYTHON)" tools/bootstrap.sh run
	@$(FARM) sweep --inventory inventory.yaml --demo $(SWEEP)

test: ## Set up software GPUs and services, then run every test but the slow ones
	@PYTHON="$(PYTHON)" tools/bootstrap.sh dev
	@tools/lab.sh
	@$(PY) -m pytest -m "not slow" --timeout 600 $(PYTEST)

test-slow: ## Run the tests that take minutes
	@PYTHON="$(PYTHON)" tools/bootstrap.sh dev
	@tools/lab.sh
	@$(PY) -m pytest -m slow --timeout 1800 $(PYTEST)

check: ## Lint, types and import directions
	@PYTHON="$(PYTHON)" tools/bootstrap.sh dev
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy
	@$(PY) -m pytest -q tests/test_imports.py

lab: ## Start two emulated phones and an SSH host, print their inventory; ends with Ctrl-C
	@PYTHON="$(PYTHON)" tools/bootstrap.sh dev
	@tools/lab.sh
	@$(PY) -m tests.lab.box

lab-sweep: ## Start that lab, sweep the demo models over all of it, print the mixed matrix
	@PYTHON="$(PYTHON)" tools/bootstrap.sh dev
	@tools/lab.sh
	@$(PY) -m tests.lab.box --sweep $(MODELS)

lab-gpus: ## Put llvmpipe, SwiftShader and the test services on this machine (apt where root)
	@tools/lab.sh

lock: ## Write the lock files anew from pyproject.toml
	@tools/lock.sh

docs: ## Write the README's matrix and the command pages from real runs
	@PYTHON="$(PYTHON)" tools/bootstrap.sh dev
	@$(PY) tools/refresh_readme.py

wheel: ## Build the wheel into dist/
	@PYTHON="$(PYTHON)" tools/bootstrap.sh dev
	@$(PY) -m pip --disable-pip-version-check wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .

clean: ## Remove what make made here (.venv, .lab, caches); runs/ stays
	rm -rf .venv .lab build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
