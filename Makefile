# Every target first installs what it needs into .venv, once.
#
#   make demo        run examples/flights: Ray, Raylog and Spark on this machine, nothing else to install
#   make pipelines   run examples/pipelines: five pipelines on the flights of a year, with Spark and Ray Data
#   make test        linters, types, import rule, then every level of tests (what .ci/run calls); a file whose cluster
#                    tests failed runs once more, alone, and is reported as unstable if it passes then. Long
#                    files come first: make test PYTEST_ARGS=--note-durations notes how long each takes
#   make test-long   only what make test leaves out, because a quicker test there covers the subject: pipelines, kills
#                    under Spark, hosts over ssh, MariaDB, Prometheus, and more (docs/testing.md): before a release,
#                    and after a change of constraints.txt or of what these tests use
#   make lint        only the checks, without the tests
#   make simulate    only the simulator: make simulate SEEDS=1000 PROFILE=default, or PROFILE=all EVENTS=100000000; one
#                    failing seed with fewer features: make simulate PROFILE=whole-everything SEED=7 SEEDS=1
#                    FEATURES=queues,delays; a seed that fails is run again and again with less, until nothing more can be
#                    left out, and its story printed (SHRINK=20000000 takes more events for that search, SHRINK=0 none)
#   make chaos       inject faults under load (processes, Ray nodes, the network, transactions): make chaos MINUTES=2 SEED=1
#                    relays of the outbox, their database and leaders: make chaos MINUTES=20 CHAOS_ARGS="--only outbox"
#                    services without Ray through a day of a cluster on hosts: make chaos CHAOS_ARGS="--only day"
#                    transactions, queues, delays, TTL, outbox and topics created again, all at once:
#                    make chaos MINUTES=60 CHAOS_ARGS="--only everything"
#                    the same clients at rest, what each process uses: make chaos MINUTES=120 CHAOS_ARGS="--only soak"
#   make readers     read topics with Ray Data, Spark and columns while workers and leaders are killed, records deleted,
#                    bits flipped and tokens end: make readers TRIALS=200 SEED=1; READERS_ARGS=--virtual in one process
#   make hostile     interrupt, cancel and misuse clients at every step of their calls, in a quarter of an hour on two
#                    cores; make test does so at a few steps. What it covers: tests/cluster/hostile/__init__.py
#   make wakes       what ten thousand wakes leave in each process, in half an hour on two idle cores;
#                    make wakes WAKES=1000
#   make chaos-figures     measure the time until partitions have a leader again
#   make simulate-planted  plant bugs and print which profile of the simulator catches each; make simulate-notes notes
#                    which seed does so soonest, by which make test chooses one bug for each rule: after a change of what
#                    the seeds draw
#   make bench       the benchmarks, peers side by side; make bench QUICK=1 takes ten minutes at most, and
#                    make bench BENCH_ARGS="--only produce,latency" a part of them; python -m benchmarks --help lists
#                    others: two checkouts in pairs, delays, queues, partitions at rest, and more
#   make native      compile the eight hot modules with mypyc, where there is a C compiler; optional; make bench does
#                    it first, and rm -r raylog/_native (or RAYLOG_COMPILED=0) reverts it
#   make wheel       build a wheel into dist/, with the versions it was tested with (cluster.yaml installs it)
#   make constraints write constraints.txt from what is installed in .venv
#   make clean       remove caches and builds; make distclean removes .venv as well

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:

VENV ?= .venv
PY := $(VENV)/bin/python
PYTHON ?=
SEEDS ?= 200
PROFILE ?= default
EVENTS ?= 0
FEATURES ?=
SHRINK ?=
LIMITS ?=
MINUTES ?= 2
SEED ?= 1
CHAOS_ARGS ?=
TRIALS ?= 50
READERS_ARGS ?=
PYTEST_ARGS ?=
PIPELINES_ARGS ?=
# Processes that run tests side by side: cluster tests wait more than they compute. 0 runs all in one process. From three
# on, the last one has only what may take longer (tests/workers.py): for more cores. On two the suite ends minutes earlier
# with three, and a test or two then have to run again.
WORKERS ?= 2
WAKES ?= 10000
QUICK ?=
BENCH_ARGS ?=
export QUICK

# Folders that may not exist are looked up.
CHECKED := raylog actors base client core data outbox protocol rpc spark storage pyspark_raylog tools tests $(wildcard examples benchmarks)

PACKAGES := raylog actors base client core data outbox protocol rpc spark storage

.PHONY: demo pipelines test test-long lint compiled native ruff types imports simulate simulate-planted simulate-notes chaos chaos-figures bench conformance constraints import-tree readers hostile wakes wheel clean distclean

demo: $(VENV)/.installed-demo compiled
	$(PY) -m examples.flights

pipelines: $(VENV)/.installed-demo compiled
	$(PY) -m examples.pipelines $(PIPELINES_ARGS)

test: lint compiled
	$(PY) -m tests.repeated -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m 'not long' $(PYTEST_ARGS)

test-long: $(VENV)/.installed-test compiled
	$(PY) -m tests.repeated -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m long $(PYTEST_ARGS)

lint: ruff types imports

# As pip does when it installs a wheel. Each replica is a process, and where the environment prevents Python from
# writing bytecode (PYTHONDONTWRITEBYTECODE), each would compile the same modules again: an eighth of a second of CPU.
compiled: $(VENV)/bin/python
	@$(PY) -m compileall -q $(PACKAGES)

# Detects changed sources, and reports what is missing when it cannot compile.
native: $(VENV)/.installed-test
	@RAYLOG_COMPILED=0 $(PY) -m tools.native

ruff: $(VENV)/.installed-test
	$(PY) -m ruff check $(CHECKED)
	$(PY) -m ruff format --check $(CHECKED)

types: $(VENV)/.installed-test import-tree
	$(PY) -m mypy $(addprefix -p ,raylog pyspark_raylog tools tests $(wildcard examples benchmarks))

# import-linter puts the current folder first on its search path, so it runs in a tree laid out as installed.
imports: $(VENV)/.installed-test import-tree
	cd build/import-tree && $(abspath $(VENV))/bin/lint-imports --config $(CURDIR)/pyproject.toml

import-tree: $(VENV)/.installed-test
	@$(PY) tools/import_tree.py > /dev/null

simulate: $(VENV)/.installed-test
	$(PY) -m tests.simulation --seeds $(SEEDS) --seed $(SEED) --profile $(PROFILE) --events $(EVENTS) --features '$(FEATURES)' \
	    $(if $(SHRINK),--shrink $(SHRINK)) $(if $(LIMITS),--limits '$(LIMITS)')

chaos: $(VENV)/.installed-test compiled
	$(PY) -m tests.chaos --minutes $(MINUTES) --seed $(SEED) $(CHAOS_ARGS)

readers: $(VENV)/.installed-test compiled
	$(PY) -m tests.readers --trials $(TRIALS) --seed $(SEED) $(READERS_ARGS)

hostile: $(VENV)/.installed-test compiled
	RAYLOG_HOSTILE_POINTS=all $(PY) -m pytest --timeout 1800 tests/cluster/hostile $(PYTEST_ARGS)
chaos-figures: $(VENV)/.installed-test compiled
	$(PY) -m tests.chaos.figures $(CHAOS_ARGS)

wakes: $(VENV)/.installed-test compiled
	$(PY) -m tools.wakes --wakes $(WAKES)

simulate-planted: $(VENV)/.installed-test
	$(PY) -m tests.simulation --planted

simulate-notes: $(VENV)/.installed-test
	$(PY) -m tests.simulation --note

bench: $(VENV)/.installed-bench compiled native
	@$(PY) -m compileall -q benchmarks
	$(PY) -m benchmarks $(BENCH_ARGS)

conformance: $(VENV)/.installed-bench compiled
	$(PY) -m tests.conformance $(CONFORMANCE_ARGS)

constraints: $(VENV)/.installed-test
	$(PY) tools/constraints.py > constraints.txt.new
	mv constraints.txt.new constraints.txt

wheel: $(VENV)/.installed-test
	rm -rf dist build/lib build/bdist.*
	$(PY) -m pip wheel --quiet --no-deps --wheel-dir dist .
	cp constraints.txt dist/

# PYTHON=/path/to/python chooses an interpreter; otherwise the version that constraints.txt was made with comes first.
$(VENV)/bin/python:
	@for name in $(or $(PYTHON),python3.11 python3.12 python3.13 python3); do \
	    if "$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null; then found="$$name"; break; fi; \
	done; \
	if [ -z "$${found:-}" ]; then \
	    echo "Raylog needs Python 3.11 or newer, and none was found: install one, or run make PYTHON=/path/to/python3.11." >&2; \
	    exit 1; \
	fi; \
	"$$found" -m venv $(VENV) || { echo "Python cannot make an environment: install its venv module (Debian: python3-venv)." >&2; exit 1; }

# The stamp is older than pyproject.toml or constraints.txt exactly when a new installation is needed.
$(VENV)/.installed-%: pyproject.toml constraints.txt | $(VENV)/bin/python
	@$(PY) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "The environment $(VENV) has a Python older than 3.11: remove it with make distclean and try again." >&2; exit 1; }
	@echo "Installing Raylog and its extra '$*' into $(VENV); this takes one to two minutes, once."
	$(PY) -m pip install --quiet --progress-bar on --disable-pip-version-check -c constraints.txt -e '.[$*]'
	@touch $@

clean:
	rm -rf build dist raylog/_native *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV)
