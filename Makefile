# The commands every newcomer and CI use. Each one sets up what it needs first.
.PHONY: help setup setup-tests demo docs guest-packages test test-root check lint conformance reachability mutate bench soak fuzz lock audit clean

help:
	@echo "make demo         set up, then play the main job end to end (FAST=1: no set-up when there is one)"
	@echo "make test         set up, then run the whole test suite"
	@echo "make test-root    as root, after make test: the tests that need root (users, cgroups, devices)"
	@echo "make check        format, lint, types, import rules, unit and contract tests"
	@echo "make lint         the same without the tests"
	@echo "make conformance  requirement table: proven / total per document (UPDATE=1 adds new proofs)"
	@echo "make reachability what is written or declared and not reached (UPDATE=1 shortens the list)"
	@echo "make mutate       break a line for each of ROWS=200 rows by SEED=1 and say whose tests do not"
	@echo "                  notice (ONLY=\"PH-WIRE SC-TOK-06\": these areas and rows; RESUME=1: what"
	@echo "                  was noticed and is unchanged is not tried again)"
	@echo "make docs         write the made parts of docs/reference anew, from the code"
	@echo "make guest-packages  the SDKs and ash-sb as packages of their own, in build/guest (OUT=dist)"
	@echo "make bench        all benchmarks, each against its peer or floor (ONLY=\"audit framing\";"
	@echo "                  DOCS=1 rewrites the performance page, QUICK=1 only shows that all works)"
	@echo "make soak         use a daemon hard and kill it again and again (SOAK_S=600 seconds)"
	@echo "make fuzz         attacks and faults in all combinations, then random ones (FUZZ_S=600 seconds,"
	@echo "                  at least once through; FUZZ_SEED=7: the same again)"
	@echo "make lock         write the lock files and the bill of materials anew (UPGRADE=1: newest versions)"
	@echo "make audit        compare the locked versions with advisories (ADVISORIES=all.zip of osv.dev)"
	@echo "make setup        system packages, .venv, pinned Python packages"
	@echo "make clean        remove build output and caches (keeps .venv)"

setup:
	@scripts/setup

lock: setup
	@scripts/lock $(if $(UPGRADE),--upgrade)

audit: setup
	@.venv/bin/python scripts/supply_chain.py audit $(ADVISORIES)

setup-tests:
	@scripts/setup --tests

demo:
	@$(if $(FAST),[ -x .venv/bin/kaged ] || )scripts/setup
	@.venv/bin/python scripts/demo

docs: setup
	@.venv/bin/python scripts/docs.py

guest-packages: setup-tests
	@.venv/bin/python scripts/guest_packages.py $(OUT)

test: setup-tests
	@scripts/test

# No set-up of its own: run with sudo, it must not fill an ordinary user's checkout with root's files.
test-root:
	@[ -x .venv/bin/pytest ] || { echo "run this first, as yourself: make setup-tests"; exit 1; }
	@scripts/test --root

check: setup-tests
	@scripts/check

lint: setup-tests
	@scripts/check --no-tests

conformance: setup-tests
	@.venv/bin/python scripts/conformance.py $(if $(UPDATE),--update)

reachability: setup-tests
	@.venv/bin/python scripts/report_reachability.py $(if $(UPDATE),--update)

mutate: setup-tests
	@.venv/bin/python scripts/mutate.py --rows $(or $(ROWS),200) --seed $(or $(SEED),1) $(if $(RESUME),--resume) $(ONLY)

bench: setup-tests
	@.venv/bin/python scripts/bench.py $(if $(DOCS),--docs) $(if $(QUICK),--quick) $(ONLY)

soak: setup-tests
	@SOAK_S=$(or $(SOAK_S),600) .venv/bin/python scripts/soak.py

fuzz: setup-tests
	@FUZZ_S=$(or $(FUZZ_S),600) FUZZ_SEED=$(FUZZ_SEED) scripts/fuzz

clean:
	@rm -rf build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache .coverage
	@find src tests benchmarks scripts -name __pycache__ -type d -prune -exec rm -rf {} +
