# `make` lists the targets. Everything is set up on first use, in .venv; nothing is started or installed elsewhere.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# The lowest versions that are supported, and the tests that prove it. What is deprecated in them is theirs.
OLDEST := starlette==0.40.0 fastapi==0.115.3
OLDEST_TESTS := tests/test_starlette*.py tests/test_fastapi*.py

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-oldest check bench docs clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

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

test-oldest: .venv-oldest/.installed ## run the tests of frameworks with the lowest versions supported
	.venv-oldest/bin/python -m pytest -W ignore::DeprecationWarning -W ignore::PendingDeprecationWarning $(OLDEST_TESTS)

.venv-oldest/.installed: pyproject.toml Makefile
	$(PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	.venv-oldest/bin/python -m pip install --quiet --editable ".[all]" --group test $(OLDEST)
	@touch $@

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
	rm -rf $(VENV) .venv-oldest .coverage .hypothesis .mypy_cache .ruff_cache .pytest_cache
