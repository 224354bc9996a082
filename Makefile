# Everything a developer or CI runs. It installs into .venv here and touches nothing else.
#
#   make serve      the bundled model on http://127.0.0.1:8000   (ARGS="--port 9000" adds flags)
#   make check      formatting, lint, types, import contracts, fast tests
#   make test       check, and the tests that start processes or take long
#   make test-full  test, and the slow ones
#   make proto      regenerate segue/v1 from proto/
#   make bench      list the measurements; make bench NAME=engine ARGS="--json FILE" runs one

PYTHON ?= python3
ARGS ?=
NAME ?=
# How many processes share the types and the tests. Those that start processes wait for them most of the time.
PROCESSES ?= 2
# What a module's text says is worked out once, not by every process that a test starts.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
INSTALLED := .venv/installed
TORCH := $(shell grep '^torch==' constraints.txt)
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet --quiet

.PHONY: serve check lint test test-full test-fast test-long test-cluster test-slow proto bench
.DEFAULT_GOAL := check

serve: $(INSTALLED)
	@$(BIN)/segue serve $(ARGS)

check: lint test-fast

test: check test-long test-cluster

test-full: test test-slow

lint: $(INSTALLED)
	@echo "== format and lint" && $(BIN)/ruff format --check --quiet . && $(BIN)/ruff check --quiet .
	@echo "== import contracts" && $(BIN)/lint-imports --no-logo
	@echo "== types" && $(BIN)/mypy --num-workers $(PROCESSES)

test-fast: $(INSTALLED)
	@echo "== fast tests" && $(BIN)/pytest --quiet --numprocesses $(PROCESSES) --dist loadscope -m "not slow and not cluster and not long" $(ARGS)

test-long: $(INSTALLED)
	@echo "== tests that take long" && $(BIN)/pytest --quiet --numprocesses $(PROCESSES) -m "long and not cluster and not slow" $(ARGS)

test-cluster: $(INSTALLED)
	@echo "== tests that start processes" && $(BIN)/pytest --quiet --numprocesses $(PROCESSES) --dist loadscope -m "cluster and not slow" $(ARGS)

test-slow: $(INSTALLED)
	@echo "== slow tests" && $(BIN)/pytest --quiet --numprocesses $(PROCESSES) -m "slow and not cluster" $(ARGS)
	@echo "== slow tests that start processes" && $(BIN)/pytest --quiet -m "slow and cluster" $(ARGS)

proto: $(INSTALLED)
	@$(BIN)/python proto/generate.py

bench: $(INSTALLED)
	@$(BIN)/python -m benchmarks $(NAME) $(ARGS)

# torch comes first and alone: what follows then finds it, instead of choosing a build of its own.
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("Segue needs Python 3.11 or newer; set PYTHON=..." if sys.version_info < (3, 11) else 0)'
	@test -x $(BIN)/python || { echo "== making .venv"; $(PYTHON) -m venv .venv; }
	@echo "== installing $(TORCH) (the largest part by far, some minutes)" && $(PIP) install -c constraints.txt $(TORCH)
	@echo "== installing the rest" && $(PIP) install -c constraints.txt -e '.[dev]'
	@touch $@
