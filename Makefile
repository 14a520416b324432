# The commands that people and CI share. PYTHON names the environment's interpreter.
PYTHON ?= .venv/bin/python
BIN = $(dir $(PYTHON))

.PHONY: check lint types imports test test-fast bench

check: lint types imports

lint:
	$(BIN)ruff format --check .
	$(BIN)ruff check .

types:
	$(BIN)mypy

# import-linter follows no links, and looks into the working directory first
imports:
	rm -rf build/imports && mkdir -p build && cp -RL .links build/imports
	cd build/imports && $(abspath $(BIN))/lint-imports --no-cache --config ../../pyproject.toml

test:
	$(PYTHON) -m pytest

bench:
	$(PYTHON) -m benchmarks.recall_quality --quick
	$(PYTHON) -m benchmarks.engine --quick
