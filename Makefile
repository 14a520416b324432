# The commands that people and CI share. The first use makes .venv.
PYTHON ?= python3
BIN = .venv/bin

.PHONY: demo test quick full check lint types imports docs bench gate broker registry release

demo: .venv
	$(BIN)/recallflow demo

test: .venv
	$(BIN)/python -m pytest

quick: .venv
	$(BIN)/python -m pytest --quick

full: .venv
	$(BIN)/python -m pytest --full

check: lint types imports docs

lint: .venv
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: .venv
	$(BIN)/mypy
	$(BIN)/mypy --strict benchmarks tests tools examples/agent_loop examples/year_of_logs
	cd examples/chat_service && MYPYPATH=../.. ../../$(BIN)/mypy --strict .

imports: .venv
	$(BIN)/lint-imports --no-cache

# the site, into build/site: a broken link or anchor is an error
docs: .venv
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

bench: .venv
	$(BIN)/python -m benchmarks.recall_quality --quick
	$(BIN)/python -m benchmarks.engine --quick

# processor time against the last landed commit
gate: .venv
	$(BIN)/python -m benchmarks.gate

# archives for PyPI, out of the last commit: make release REPOSITORY=https://… (docs/how-to/upgrading.md)
release: .venv
	$(BIN)/python -m tools.release --repository '$(REPOSITORY)'

# a real Kafka broker by hand, elsewhere with PORT=9093, with a login with SASL=oauthbearer or SASL=scram
broker: PORT ?= 9092
broker: .venv
	@$(BIN)/python -m tools.broker --port $(PORT) $(if $(SASL),--sasl $(SASL))

# a schema registry in memory, elsewhere with PORT=8082
registry: PORT ?= 8081
registry: .venv
	@$(BIN)/python -m tools.registry --port $(PORT)

.venv:
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet -e '.[all,dev]'
