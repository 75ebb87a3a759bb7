# Saguaro: two commands matter, `make demo` and `make test`. Both set everything up first.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PORT   ?= 8000
PIP    := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt
# One process a core; a file's tests stay together, so that its fixtures are made once. The files' order is
# that of tests/conftest.py: the longest first.
SPREAD := -n auto --dist loadfile --no-loadscope-reorder
ENGINE_SOURCES := $(wildcard engine/*.py engine/include/*.h engine/src/*.[ch] engine/wasm/*.c)
ENGINE := builder/runtime/engine.wasm

.DEFAULT_GOAL := help
.PHONY: help demo pack serve test check lint bench clean

help:  ## Show this list.
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(VENV)/.base: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Saguaro needs Python 3.11 or newer; set PYTHON=python3.x")'
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	@echo 'setting up $(VENV) (packages to pack, serve and chat)'
	@$(PIP) hatchling ziglang editables
	@$(PIP) --no-build-isolation -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.base
	@echo 'setting up $(VENV) (the oracles and tools for tests; a few minutes)'
	@$(PIP) --no-build-isolation -e '.[dev]'
	@touch $@

$(ENGINE): $(ENGINE_SOURCES) | $(VENV)/.base
	$(BIN)/python engine/build.py
	@touch $@

pack: $(VENV)/.base $(ENGINE)  ## Pack the demo family into site/.
	$(BIN)/python -m builder pack --out site

serve: pack
	$(BIN)/python -m builder serve site --port $(PORT)

demo: serve  ## Pack the demo family and serve the chat page.

check: $(VENV)/.dev $(ENGINE) web/node_modules/.stamp lint  ## Lint, types and the fast tests (about a minute on 2 cores).
	$(BIN)/python -m pytest -q $(SPREAD) -m "not slow and not browser"

lint: $(VENV)/.dev web/node_modules/.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/node web/node_modules/typescript/bin/tsc --build web

web/node_modules/.stamp: web/package-lock.json $(VENV)/.dev
	PATH="$(CURDIR)/$(BIN):$$PATH" npm ci --silent --prefix web
	@touch $@

test: $(VENV)/.dev $(ENGINE) lint  ## Everything: lint, types, all tests (under 15 minutes on 2 cores).
	$(BIN)/python -m pytest -q $(SPREAD)

bench: $(VENV)/.dev $(ENGINE)  ## Measure; the figures in docs/ come from here.
	$(BIN)/python -m bench

clean:  ## Remove what was made (not .venv).
	rm -rf site .saguaro-cache dist build bench/out test-results builder/runtime/*.wasm
