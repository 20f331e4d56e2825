# The verbs of this repository; `make help` lists them. Each builds the environment it needs in .venv, once.

VENV ?= .venv
BIN := $(VENV)/bin
# The first Python that is new enough, unless PYTHON names one.
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
# With somebody watching, pip shows its progress: torch is large.
PIP_INSTALL := $(BIN)/python -m pip install $(shell test -t 2 || echo --quiet) --disable-pip-version-check -c constraints.txt
PROTOS := $(wildcard protos/forerun/v1/*.proto)

.DEFAULT_GOAL := help
.PHONY: help demo env test check proto bench bench-cpu clean

help: ## list the verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.run ## watch a real model answer through the three services, with and without speculation
	@$(BIN)/python -m forerun.cli.demo

env: $(VENV)/.dev ## build the environment only; then .venv/bin/forerun runs

test: $(VENV)/.dev ## run every test
	@$(BIN)/python -m pytest

check: $(VENV)/.dev ## lint, types, layers, protocol, Dockerfile
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/buf lint
	@if command -v hadolint >/dev/null; then echo hadolint Dockerfile; hadolint Dockerfile; fi

proto: $(VENV)/.dev ## generate forerun/v1 from protos/
	$(BIN)/python -m grpc_tools.protoc -I protos --python_out=. --pyi_out=. --grpc_python_out=. $(PROTOS)

bench: $(VENV)/.dev ## what the wire costs
	@$(BIN)/python -m benchmarks.wire

bench-cpu: $(VENV)/.dev ## forerun beside transformers on this machine's CPU, in float32 and bfloat16
	@$(BIN)/python -m benchmarks.cpu --dtype float32
	@$(BIN)/python -m benchmarks.cpu --dtype bfloat16

clean: ## remove caches and build outputs; `rm -rf .venv` removes the environment
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

# Environments. The stamps make the second time quick.

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "make: forerun needs Python 3.11 or newer; install it, or name it: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { echo "make: $(PYTHON) is not a Python 3.11 or newer" >&2; exit 1; }
	@echo "creating $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "make: $(PYTHON) cannot create environments; on Debian and Ubuntu install its -venv package" >&2; exit 1; }

$(VENV)/.run: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing forerun and what it runs on into $(VENV); torch takes a while the first time"
	@$(PIP_INSTALL) -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.run
	@echo "installing the development tools into $(VENV)"
	@$(PIP_INSTALL) -e '.[dev]'
	@touch $@
