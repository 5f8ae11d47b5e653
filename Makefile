# `make` lists the targets. Everything is set up on first use, in .venv; nothing is started or installed elsewhere.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# The lowest versions of everything, as pyproject.toml has them. FastAPI keeps included routers in another way since
# 0.137, so it is there twice. Warnings of old versions are ignored. Some have no wheels for Python 3.12.
OLDEST := .venv-oldest
OLDEST_TESTS := $(addprefix tests/,frameworks starlette fastapi flask django asgi wsgi cli dashboard metrics settings stores/lmdb \
	stores/redis stores/postgres together http/test_body.py http/test_region.py testing/test_clock.py testing/test_pytest_plugin.py docs/test_examples.py)
FASTAPI_137 := fastapi==0.137.0 starlette==0.46.0
FASTAPI_137_TESTS := tests/frameworks tests/starlette tests/fastapi
PYTEST_OLDEST = -m pytest -n $(WORKERS) --dist worksteal -m "not thorough" $(addprefix -W ignore:,:DeprecationWarning \
	:PendingDeprecationWarning Unclosed:ResourceWarning ::pydantic._internal._generate_schema)

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-fast cover test-all test-oldest topology lint check links audit bench pictures docs site docs-site package clean

# More arguments of pytest: make test ARGS="-k redis"
ARGS ?=

# Many tests wait for a server or a process, so more workers than cores finish sooner. Those of `test-fast` do not.
CORES := $(shell $(PYTHON) -c 'import os; print(os.cpu_count())')
WORKERS := $(shell $(PYTHON) -c 'print(max(4, $(CORES)))')
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

# Tests start many processes, which then need not compile everything again.
unexport PYTHONDONTWRITEBYTECODE

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

demo: $(STAMP) ## start a real server, send traffic to it, show which clients were rejected
	$(BIN)/ratelimit-mw demo

test: $(STAMP) ## run every test that may fail alone, with real servers
	$(PYTEST) -m "not thorough"

test-fast cover: WORKERS = $(CORES)
test-fast: $(STAMP) ## run the tests that need no servers or processes, with few random examples
	$(PYTEST) -m "not slow and not thorough" --hypothesis-profile=quick

cover: $(STAMP) ## run the tests of `make test-fast` with the coverage of the core: every line and branch of it is needed
	$(PYTEST) -m "not slow and not thorough" --hypothesis-profile=quick --cov --cov-report=term-missing:skip-covered

test-all: export DIFFERENTIAL_REQUESTS := 10000
test-all: export DIFFERENTIAL_TARGETS := 4000
test-all: $(STAMP) ## run all tests, with many random examples: for a release
	$(BIN)/python -m pip install --quiet --group bench
	$(PYTEST) --hypothesis-profile=full

test-oldest: $(OLDEST)/.installed $(OLDEST)-137/.installed ## run the tests of frameworks and extras with the lowest versions
	$(OLDEST)/bin/python $(PYTEST_OLDEST) $(OLDEST_TESTS)
	$(OLDEST)-137/bin/python $(PYTEST_OLDEST) $(FASTAPI_137_TESTS)

$(OLDEST)-137/.installed: VERSIONS := $(FASTAPI_137)
$(OLDEST)/.installed $(OLDEST)-137/.installed: pyproject.toml tests/support/lowest.py Makefile
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || \
		{ echo "The lowest versions go with Python 3.11; name one: make PYTHON=python3.11 ..." >&2; exit 1; }
	$(PYTHON) -m venv --clear $(@D)
	$(@D)/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	$(PYTHON) tests/support/lowest.py $(VERSIONS) > $(@D)/lowest.txt
	$(@D)/bin/python -m pip install --quiet --editable ".[all]" --group test --constraint $(@D)/lowest.txt
	@touch $@

topology: $(STAMP) ## change a Redis Cluster under load, and print the counts: over the limit, failed, refunded, lost
	$(BIN)/python -m pytest -q -s -m thorough tests/stores/redis/test_redis_topology.py

lint: $(STAMP) ## lint with insecure calls, format, words: before each commit
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/python docs/check_words.py

check: lint ## all of `make lint`, types, import rules, workflows
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/bug.yml .github/ISSUE_TEMPLATE/idea.yml

# Not a part of `make check`: it needs the network, and a new advisory is no defect of a change.
audit: $(STAMP) ## look for known vulnerabilities of all installed packages
	$(BIN)/python -m pip install --quiet --group audit
	$(BIN)/python -m pip_audit --skip-editable

bench: $(STAMP) ## compare with the peers, side by side in one run
	$(BIN)/python -m pip install --quiet --group bench
	$(BIN)/python -m benchmarks

pictures: $(STAMP) ## draw the picture of a replay: make pictures LOG=apache-combined.log.gz
	$(BIN)/ratelimit-mw replay examples/ratelimit.toml $(LOG) --plot docs/images/replay.svg

docs: $(STAMP) ## draw the pictures and write the generated parts of docs/ again
	$(BIN)/python docs/draw_algorithms.py
	$(BIN)/python docs/draw_request.py
	$(BIN)/python -m benchmarks.load --svg docs/images/load.svg > /dev/null
	$(BIN)/python docs/generate.py

site: $(STAMP) ## build the pages as a site in docs/_build/html; warnings and dead links are errors
	$(BIN)/python -m pip install --quiet --group docs
	$(BIN)/sphinx-build -W --keep-going --quiet -b html docs docs/_build/html

# Not a part of `.ci/run`: it needs the network, and a page of others that is gone is no defect of a change.
links: $(STAMP) ## look for dead links to other sites
	$(BIN)/python -m pip install --quiet --group docs
	$(BIN)/sphinx-build --quiet -b linkcheck docs docs/_build/links

docs-site: site ## open the site in a browser
	$(BIN)/python -m webbrowser docs/_build/html/index.html

package: $(STAMP) ## build the files of a release in dist/, and check them
	$(BIN)/python -m pip install --quiet --group package
	rm -rf dist
	$(BIN)/python -m build --quiet
	$(BIN)/twine check --strict dist/*

clean: ## remove .venv and caches
	rm -rf dist docs/_build $(VENV) $(OLDEST) $(OLDEST)-137 .venv-newest .coverage .hypothesis .mypy_cache .ruff_cache .pytest_cache
