# Everything a developer runs. `make help` lists it; the first command sets up what it needs.

PYTHON ?= python3
# An index that carries PyTorch's CPU builds, for machines whose pip does not find one by itself.
TORCH_INDEX ?=
WORKERS ?= 2
SEEDS ?= 2000
SECONDS ?= 900
MODEL ?=
FROM ?= 0
COVERAGE_TESTS ?= tests/core

VENV := .venv
RUN := $(VENV)/bin/python
PIP := $(RUN) -m pip --disable-pip-version-check --quiet
CODE := $(wildcard octavo tests benchmarks)

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup test test-smollm2 check coverage format sim planted soak overload restart bench-core lock clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# ---- set-up: one stamp for each step, so that a second run has nothing to do ----

setup: $(VENV)/.octavo $(VENV)/.torch ## create .venv and install everything pinned in requirements/

$(VENV)/.venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	    found="$$($(PYTHON) --version 2>/dev/null)" || found="not there, or does not start"; \
	    echo "Octavo needs Python 3.11 or newer; '$(PYTHON)' is $${found:-older}." \
	         "Name another one: make setup PYTHON=python3.12" >&2; exit 1; }
	@echo "creating $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv --clear $(VENV) || { \
	    echo "Python could not create a virtual environment. On Debian and Ubuntu the module" \
	         "is a package of its own: apt install python3-venv" >&2; exit 1; }
	@touch $@

$(VENV)/.dev: requirements/dev.txt $(VENV)/.venv
	@echo "installing the development tools"
	@$(PIP) install -r requirements/dev.txt
	@touch $@

$(VENV)/.octavo: pyproject.toml $(VENV)/.dev
	@echo "installing octavo, editable"
	@$(PIP) install --no-build-isolation --editable .
	@touch $@

# On Linux pip's usual index has a PyTorch with several gigabytes of CUDA libraries beside it: look
# at what pip would fetch before it does, and at what was installed afterwards.
TORCH_INSTALL = $(PIP) install $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) -r requirements/torch.txt
HAS_CUDA_LIBRARIES = import json, sys; raise SystemExit(any( \
    p["metadata"]["name"].startswith("nvidia") for p in json.load(open(sys.argv[1]))["install"]))
NOT_THE_CPU_BUILD = { echo "pip finds a PyTorch built for CUDA here; this set-up wants the CPU build, which is" \
    "much smaller. Name an index that carries it: make clean setup TORCH_INDEX=<address>" >&2; exit 1; }

$(VENV)/.torch: requirements/torch.txt $(VENV)/.dev
	@echo "installing PyTorch's CPU build (the slowest step, once)"
	@$(TORCH_INSTALL) --dry-run --report $(VENV)/torch.json
	@$(RUN) -c '$(HAS_CUDA_LIBRARIES)' $(VENV)/torch.json || $(NOT_THE_CPU_BUILD)
	@$(TORCH_INSTALL)
	@$(RUN) -W ignore -c 'import torch; raise SystemExit(torch.version.cuda is not None)' || $(NOT_THE_CPU_BUILD)
	@touch $@

lock: ## pin anew what requirements/*.in asks for (then read the diff)
	rm -rf build/lock && $(PYTHON) -m venv build/lock
	build/lock/bin/python -m pip install --quiet -r requirements/dev.in --editable .
	{ echo "# Made by 'make lock' from dev.in: every package, every version."; \
	  build/lock/bin/python -m pip freeze --exclude-editable; } > requirements/dev.txt
	build/lock/bin/python -m pip install --quiet -r requirements/torch.in $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
	{ echo "# Made by 'make lock' from torch.in: every package that dev.txt does not already pin."; \
	  build/lock/bin/python -m pip freeze --all --exclude pip --exclude octavo | sed 's/^\(torch==[^+]*\)+.*/\1/' \
	  | grep -vxFf requirements/dev.txt; } > requirements/torch.txt

# ---- checks and tests ----

build/openai-1: requirements/openai-1.txt $(VENV)/.dev
	@echo "installing the openai client's version 1 into a directory of its own"
	@$(PIP) install --upgrade --target $@ -r requirements/openai-1.txt
	@touch $@

test: setup build/openai-1 check coverage ## everything; the last line is pytest's own summary
	@$(RUN) -m pytest -n $(WORKERS) --dist load --maxschedchunk 1

test-smollm2: setup ## SmolLM2's text of fifty prompts against the reference (minutes)
	@$(RUN) -m pytest --quiet tests/models/every_prompt.py

check: $(VENV)/.octavo ## ruff, mypy, import contracts, the tidy rules
	@$(RUN) -m ruff check --quiet $(CODE)
	@$(RUN) -m ruff format --check --quiet $(CODE) || { echo "run: make format" >&2; exit 1; }
	@$(RUN) -m mypy $(CODE)
	@$(VENV)/bin/lint-imports --no-logo
	@$(RUN) -m pytest --quiet tests/tidy

coverage: $(VENV)/.octavo ## the unit tests of the core must reach each of its branches
	@$(RUN) -m coverage run -m pytest --quiet -m "not slow" $(COVERAGE_TESTS)
	@$(RUN) -m coverage report

format: $(VENV)/.dev ## ruff format, and the fixes ruff is sure of
	@$(RUN) -m ruff check --fix --exit-zero --quiet $(CODE)
	@$(RUN) -m ruff format $(CODE)

# ---- programs ----

sim: $(VENV)/.octavo ## simulated worlds: make sim SEEDS=10000 FROM=0
	@$(RUN) -m tests.sim --seeds $(SEEDS) --from $(FROM)

planted: $(VENV)/.octavo ## apply each planted bug; the simulator must catch every one
	@$(RUN) -m tests.sim --planted

soak: $(VENV)/.octavo ## mixed load, leavers, kill -9 on a real server: make soak SECONDS=900 MODEL=smollm2
	@$(RUN) benchmarks/soak.py --seconds $(SECONDS) $(if $(MODEL),--model $(MODEL))

overload: $(VENV)/.octavo ## ten times what the server can do, for a minute: rejections, goodput, memory
	@$(RUN) benchmarks/overload.py

restart: setup ## kill -9 with 50 streams open: detection, going again, exactness; MODEL=smollm2
	@$(RUN) benchmarks/restart.py $(if $(MODEL),--model $(MODEL))

bench-core: $(VENV)/.octavo ## what a step of the scheduler costs, as JSON
	@$(RUN) benchmarks/core_step.py --json

clean: ## remove everything that was made, .venv included
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	rm -rf .coverage .coverage.* *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
