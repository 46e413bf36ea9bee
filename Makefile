# The commands every newcomer and CI use. Each one sets up what it needs first.
.PHONY: help setup setup-tests demo test check conformance bench soak clean

help:
	@echo "make demo         set up, then run the main job end to end on embedded defaults"
	@echo "make test         set up, then run the whole test suite"
	@echo "make check        format, lint, types, import rules, unit and contract tests"
	@echo "make conformance  requirement table: proven / total per document (UPDATE=1 adds new proofs)"
	@echo "make bench        all benchmarks, each against its peer or floor (ONLY=\"audit framing\")"
	@echo "make soak         use a daemon hard and kill it again and again (SOAK_S=600 seconds)"
	@echo "make setup        system packages, .venv, pinned Python packages"
	@echo "make clean        remove build output and caches (keeps .venv)"

setup:
	@scripts/setup

setup-tests:
	@scripts/setup --tests

demo: setup
	@.venv/bin/python scripts/demo

test: setup-tests
	@scripts/test

check: setup-tests
	@scripts/check

conformance: setup-tests
	@.venv/bin/python scripts/conformance.py $(if $(UPDATE),--update)

bench: setup-tests
	@.venv/bin/python scripts/bench.py $(ONLY)

soak: setup-tests
	@SOAK_S=$(or $(SOAK_S),600) .venv/bin/python scripts/soak.py

clean:
	@rm -rf build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache .coverage
	@find src tests benchmarks scripts -name __pycache__ -type d -prune -exec rm -rf {} +
