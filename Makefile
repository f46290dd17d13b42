# Everything lives in .venv; nothing else on the machine is changed, except that root's `setup` installs Debian's
# python3-venv and root's `test` what tests start (Slurm, Postgres, Chromium) when it is missing.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest
RUN := $(PYTEST) --numprocesses=2 --dist=loadgroup --no-loadscope-reorder --durations=20
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
SEEN_BEFORE := --ignore=tests/test_import_direction.py --ignore=tests/test_readme.py
TORCH := $(shell grep '^torch==' constraints.txt)
# Tests start hundreds of processes: where nothing compiled may be kept, each would compile these sources anew.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: setup demo gallery gpu servers test test-fast nightly mutants parity-full licences check format lint types imports readme docs clean

setup: .venv/.trainer

# torch first and alone: asked for by another package, pip may take a build with several GB of CUDA.
.venv/.trainer: setup.cfg constraints.txt
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { \
	  if [ "$$(id -u)" = 0 ]; then apt-get update -qq && apt-get install -y -qq python3-venv; \
	  else echo 'python3-venv is missing: run "apt-get install python3-venv" as root'; exit 1; fi; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear .venv
	@echo 'Installing torch, then Parlay and what it needs, into .venv (about three minutes)'
	@$(PIP) install --constraint constraints.txt '$(TORCH)'
	@$(PIP) install --constraint constraints.txt --editable '.[trainer]'
	@touch $@

.venv/.dev: .venv/.trainer
	@$(PIP) install --constraint constraints.txt --editable '.[trainer,dev]'
	@touch $@

# Trainers of others that tests run for real; apart, since `make demo` needs none and they may grow to hundreds of MB.
.venv/.trainers: .venv/.dev
	@$(PIP) install --constraint constraints.txt --editable '.[trainer,dev,trainers]'
	@touch $@

demo: .venv/.trainer
	@$(BIN)/parlay run search_spaces/searches/quickstart.yaml

# Each of the five systems scaled down, trained on this machine; docs/gallery.md.
gallery: .venv/.trainer
	@$(BIN)/python -m benchmarks.gallery --page docs/gallery.md

# Predicted against measured layouts on this machine's GPU, in at most eight minutes: docs/cost_model.md. GPU_PYTHON is an
# interpreter with a torch for the GPU, numpy, PyYAML, and torchtitan and torchao for two cases; without one, .venv's.
gpu: $(if $(GPU_PYTHON),,.venv/.trainers)
	@$(or $(GPU_PYTHON),$(BIN)/python) -m benchmarks.gpu

servers: .venv/.dev
	@$(BIN)/python -m tests.servers

# One run: what a test shares a server with, or a file, it shares a worker with (tests/conftest.py).
# `test` leaves out walks over every crash point, fault, layout, engine or server that there is; `check` has them.
test: .venv/.trainers servers
	@$(RUN) -m 'not walks and not nightly'

test-fast: .venv/.dev
	@$(RUN) -m 'not processes and not walks and not nightly and not slow'

# What needs many minutes for a promise that seldom breaks, step by step; a second run goes on after the last step.
nightly: .venv/.trainers servers
	@$(BIN)/python -m tests.nightly

# Small faults, each put into the code for itself: which ones do the tests notice? docs/mutants.md
mutants: .venv/.dev
	@$(BIN)/python -m tests.mutants $(MUTANTS)

# Every combination of the layouts that decide how a model is cut, against a plain GPT: about 85 minutes;
# docs/parity.md.
parity-full: .venv/.trainers
	@$(BIN)/python -m tests.trials.train.parity_table

# Name, version and licence of all that Parlay and work on it need; docs/security.md. Of a whole text the first line.
licences: .venv/.dev
	@$(BIN)/python -m piplicenses --with-system --ignore-packages parlay | sed -n 's/^ \([^ ].*[^ ]\) *$$/\1/p'

# The gate: .ci/run calls this and nothing else. Skips must be on tests/allowed_skips.txt.
check: .venv/.trainers servers format lint types imports readme
	@PARLAY_GATE=1 $(RUN) $(SEEN_BEFORE) -m 'not nightly'

format: .venv/.dev
	@$(BIN)/ruff format --check .

lint: .venv/.dev
	@$(BIN)/ruff check .

types: .venv/.dev
	@$(BIN)/mypy

imports: .venv/.dev
	@$(PYTEST) -q tests/test_import_direction.py

readme: .venv/.dev
	@$(PYTEST) -q tests/test_readme.py

# docs/contract.md: a table for each object that Parlay prints or writes.
docs: .venv/.dev
	@$(BIN)/python -m tests.contract.page

clean:
	@rm -rf .venv build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
