# The commands that people and CI share. The first use makes .venv.
PYTHON ?= python3
BIN = .venv/bin

.PHONY: demo test check lint types imports bench broker

demo: .venv
	$(BIN)/recallflow demo

test: .venv
	$(BIN)/python -m pytest

check: lint types imports

lint: .venv
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: .venv
	$(BIN)/mypy
	MYPYPATH=.links $(BIN)/mypy --strict benchmarks tests

# import-linter follows no links, and looks into the working directory first
imports: .venv
	rm -rf build/imports && mkdir -p build && cp -RL .links build/imports
	cd build/imports && $(CURDIR)/$(BIN)/lint-imports --no-cache --config $(CURDIR)/pyproject.toml

bench: .venv
	$(BIN)/python -m benchmarks.recall_quality --quick
	$(BIN)/python -m benchmarks.engine --quick

# a real Kafka broker by hand; then: recallflow topics create
broker: .venv
	$(BIN)/python -m benchmarks.broker --port 9092

.venv:
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet -e '.[all,dev]'
