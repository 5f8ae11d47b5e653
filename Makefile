# `make` lists the targets. Everything is set up on first use, in .venv; nothing is started or installed elsewhere.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help setup demo test check bench docs clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; name one: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --editable ".[all]" --group test --group check
	@touch $@

setup: $(STAMP) ## create .venv with everything that development needs

demo: $(STAMP) ## start a real server, play real traffic at it, show who was served and who refused
	$(BIN)/ratelimit-mw demo

test: $(STAMP) ## run all tests, with coverage
	$(BIN)/python -m pytest --cov --cov-report=term

check: $(STAMP) ## types, lint, format, import rules
	$(BIN)/mypy
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports

bench: $(STAMP) ## compare with the peers, side by side in one run
	$(BIN)/python -m pip install --quiet --group bench
	$(BIN)/python -m benchmarks

docs: $(STAMP) ## draw the pictures and write the generated parts of docs/ again
	$(BIN)/python docs/draw_algorithms.py
	$(BIN)/python docs/generate.py

clean: ## remove .venv and caches
	rm -rf $(VENV) .coverage .hypothesis .mypy_cache .ruff_cache .pytest_cache
