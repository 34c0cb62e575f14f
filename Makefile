# Set-up is part of every target: a machine with Python 3.11+, make and Java 17 needs nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV := $(shell command -v uv 2>/dev/null || echo .tools/bin/uv)
WORKERS := -n 3 --dist loadfile --no-loadscope-reorder
.DEFAULT_GOAL := help
.PHONY: help setup servers demo test lint unit crash equal bench burst clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

.tools/bin/uv:
	@echo "==> uv is not installed: putting it into .tools"
	@$(PYTHON) -m venv .tools
	@.tools/bin/python -m pip install --quiet --disable-pip-version-check uv

$(VENV)/.ready: pyproject.toml uv.lock $(if $(filter .tools/%,$(UV)),.tools/bin/uv)
	@echo "==> packages of the lock file into $(VENV)"
	@$(UV) sync --frozen --all-groups --compile-bytecode --python "$$($(PYTHON) -c 'import sys; print(sys.executable)')"
	@touch $@

setup: $(VENV)/.ready ## Virtual environment, packages, jars of the connector and the Kafka broker
	@echo "==> jars of the connector and the Kafka broker"
	@$(BIN)/headrace jars fetch kafka

servers: $(VENV)/.ready
	@echo "==> jars of the connector and every server that the tests start"
	@$(BIN)/headrace jars fetch --dev

demo: setup ## Kafka to DuckDB, exactly once, while the pipeline is being killed
	@$(BIN)/headrace demo

# Three at a time on two cores, file by file: most of a test is waiting for a server or a JVM. In their order, the slow
# ones first: by themselves the workers would leave files of few tests, which are the slow ones, for the end.
# Of each kill matrix a sample, by a seed that is printed: `make test SEED=…` takes the same one, `make crash` all of it.
test: lint servers ## Everything CI runs: lint, types, import rules, the tests with samples of the kill matrices
	@$(BIN)/python -m pytest $(WORKERS) --sample $(if $(SEED),--seed $(SEED))

lint: $(VENV)/.ready ## Lint, format, strict types, import rules
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

unit: $(VENV)/.ready ## The unit tests: no server, under a minute
	@$(BIN)/python -m pytest -n 2 tests/unit

crash: servers ## All kill tests, then 30 kills more of every sink and store
	@$(BIN)/python -m pytest tests/crash tests/connectors/test_store_outages.py $(WORKERS) $(if $(SEED),--seed $(SEED))
	@$(BIN)/python -m tests.crash.long $(if $(SEED),--seed $(SEED))

equal: servers ## The same 100,000 events into every sink, compared row by row
	@HEADRACE_EVENTS=100000 $(BIN)/python -m pytest tests/connectors/test_every_sink.py --durations=0

# What Headrace is compared with, in an environment of its own: it needs another confluent-kafka.
.tools/quix/.ready: $(VENV)/.ready
	@echo "==> Quix Streams into .tools/quix"
	@$(UV) venv --quiet --clear --python $(BIN)/python .tools/quix
	@$(UV) pip install --quiet --python .tools/quix/bin/python quixstreams==3.28.1
	@touch $@

bench: servers .tools/quix/.ready ## Side-by-side benchmarks; writes benchmarks/results.json
	@$(BIN)/python -m benchmarks

burst: setup ## A burst into a slow sink, drawn for the documentation
	@$(UV) run --frozen --with matplotlib==3.10.0 python -m benchmarks.burst --picture docs/images/burst.svg

clean: ## Remove what the targets made in this folder
	@rm -rf $(VENV) .tools .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist
