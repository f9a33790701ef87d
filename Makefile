# Everything a developer runs. `make help` lists it; the first command sets up what it needs.

PYTHON ?= python3
# An index that carries PyTorch's CPU builds, for machines whose pip does not find one by itself.
TORCH_INDEX ?=
WORKERS ?= 2
# A test at a time to each worker, so that one which is slow, or hangs, holds no others.
SPREAD = -n $(WORKERS) --dist load --maxschedchunk 1
REQUESTS ?= 5000
SEEDS ?= 2000
SECONDS ?= 900
MODEL ?=
FROM ?= 0
COVERAGE_TESTS ?= tests/core tests/sim/test_golden.py
ARGS ?=

# Tests start hundreds of processes, each of which would compile the whole program anew.
export PYTHONDONTWRITEBYTECODE :=

VENV := .venv
RUN := $(VENV)/bin/python
PIP_SPEAKS := $(RUN) -m pip --disable-pip-version-check
PIP := $(PIP_SPEAKS) --quiet
CODE := $(wildcard octavo tests benchmarks)
PHASE := .ci/phase
# For .venv build/native, for .venv-newest build/native-newest.
NATIVE_BUILD := build/native$(VENV:.venv%=%)
NATIVE := $(shell find csrc -type f)

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup serve test test-console test-newest test-smollm2 test-speculation test-matrix test-ranks test-ray test-clients test-deploy test-llama test-docs docs test-gpu-blind test-vulkan check coverage format sim planted damage test-shapes soak hostile nightly overload restart serving-cost bench-core peers wheel sanitize test-amx test-arm lock clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# ---- set-up: one stamp for each step, so that a second run has nothing to do ----

setup: $(VENV)/.octavo $(VENV)/.torch ## create .venv and install everything pinned in requirements/

# Who asks, for messages that say what to type; what is missing is said before anything is installed.
ASKED := $(if $(filter .venv-serve,$(VENV)),serve,setup)

$(VENV)/.venv:
	@.ci/needs $(ASKED) $(PYTHON) venv
	@$(PHASE) "creating $(VENV) with $$($(PYTHON) --version)" $(PYTHON) -m venv --clear $(VENV)
	@touch $@

# What is installed before the engine is built: for all environments but that of `make serve` this.
PACKAGES := -r requirements/dev.txt
PACKAGES_ARE := the development tools

# What of the native engine is built: all, but for `make serve`, which leaves out what this machine cannot use.
NATIVE_PARTS :=
BUILDING := building the native engine (minutes, once)

# The environment of `make serve` installs what pyproject.toml asks for, which Python reads: hence the order.
$(VENV)/.dev: requirements/dev.txt $(VENV)/.venv $(if $(filter .venv-serve,$(VENV)),build/product.txt)
	@$(PHASE) "installing $(PACKAGES_ARE)" $(PIP_SPEAKS) install $(PACKAGES)
	@touch $@

$(VENV)/.octavo: pyproject.toml CMakeLists.txt $(NATIVE) $(VENV)/.dev
	@mkdir -p build
	@.ci/needs $(ASKED) $(RUN) compiler
	@$(VENV)/bin/cmake -S . -B $(NATIVE_BUILD) -G Ninja -DOCTAVO_IN_TREE=ON $(NATIVE_PARTS) \
	    -DCMAKE_MAKE_PROGRAM=$(abspath $(VENV)/bin/ninja) -DPython_EXECUTABLE=$(abspath $(RUN)) > $(NATIVE_BUILD).log
	@$(PHASE) "$(BUILDING)" $(VENV)/bin/cmake --build $(NATIVE_BUILD)
	@$(PHASE) "installing octavo, editable" $(PIP) install --no-build-isolation --editable .
	@# The path is enough. The hook beside it would lead every copy of the tree back to this one, and
	@# the tests that plant bugs in a copy would test the original.
	@sed -i.bak '/^import /d' $(VENV)/lib/python3*/site-packages/_editable_skbc_octavo.pth
	@touch $@

# On Linux pip's usual index has a PyTorch with several gigabytes of CUDA libraries beside it: look
# at what pip would fetch before it does, and at what was installed afterwards.
TORCH_INSTALL = $(PIP_SPEAKS) install $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) -r requirements/torch.txt
HAS_CUDA_LIBRARIES = import json, sys; raise SystemExit(any( \
    p["metadata"]["name"].startswith("nvidia") for p in json.load(open(sys.argv[1]))["install"]))
NOT_THE_CPU_BUILD = { echo "pip finds a PyTorch built for CUDA here; this set-up wants the CPU build, which is" \
    "much smaller. Name an index that carries it: make clean setup TORCH_INDEX=<address>" >&2; exit 1; }

$(VENV)/.torch: requirements/torch.txt $(VENV)/.dev
	@$(TORCH_INSTALL) --quiet --dry-run --report $(VENV)/torch.json
	@$(RUN) -c '$(HAS_CUDA_LIBRARIES)' $(VENV)/torch.json || $(NOT_THE_CPU_BUILD)
	@$(PHASE) "installing PyTorch's CPU build (once)" $(TORCH_INSTALL)
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

# ---- peers, to be compared with: each in an environment of its own under build/peers ----

PEERS := build/peers
LLAMA := $(PEERS)/llama.cpp

IK := $(PEERS)/ik_llama.cpp

PYTHON_PEERS := vllm zentorch openvino transformers sentence-transformers fastembed
peers: setup $(LLAMA)/llama-bench $(IK)/llama-bench $(PYTHON_PEERS:%=$(PEERS)/%/.done) ## install the engines that benchmarks/compare.py compares with

$(LLAMA)/llama-bench: requirements/peers/llama.txt
	@echo "building llama.cpp from the source that its Python package carries (ten minutes)"
	@rm -rf $(LLAMA) && mkdir -p $(LLAMA)
	@$(PIP) download --quiet --no-deps --no-build-isolation --no-binary :all: -d $(LLAMA) -r $<
	@tar xzf $(LLAMA)/*.tar.gz -C $(LLAMA) --strip-components=1
	@$(VENV)/bin/cmake -S $(LLAMA)/vendor/llama.cpp -B $(LLAMA)/build -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON \
	    -DLLAMA_CURL=OFF > $(PEERS)/llama.log
	@$(VENV)/bin/cmake --build $(LLAMA)/build --parallel $$(nproc) --target llama-bench llama-batched-bench llama-server llama-quantize >> $(PEERS)/llama.log
	@cd $(LLAMA) && ln -sf build/bin/llama-* .
	@touch $@

$(IK)/llama-bench: requirements/peers/ik.txt
	@echo "building ik_llama.cpp from the source that its Python package carries (ten minutes)"
	@rm -rf $(IK) && mkdir -p $(IK)
	@$(PIP) download --quiet --no-deps --no-build-isolation --no-binary :all: -d $(IK) -r $<
	@tar xzf $(IK)/*.tar.gz -C $(IK) --strip-components=1
	@# The package lacks the script that writes its version number, which nothing here reads.
	@mkdir -p $(IK)/vendor/ik_llama.cpp/common/cmake
	@printf 'set(BUILD_NUMBER 0)\nconfigure_file(common/build-info.cpp.in common/build-info.cpp)\n' \
	    > $(IK)/vendor/ik_llama.cpp/common/cmake/build-info-gen-cpp.cmake
	@# Flash attention for f16 and q8_0 caches alone: all pairs of types take half an hour.
	@$(VENV)/bin/cmake -S $(IK)/vendor/ik_llama.cpp -B $(IK)/build -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON \
	    -DGGML_IQK_FA_ALL_QUANTS=OFF -DLLAMA_CURL=OFF -DGGML_CURL=OFF > $(PEERS)/ik.log
	@$(VENV)/bin/cmake --build $(IK)/build --parallel $$(nproc) --target llama-bench llama-batched-bench llama-server >> $(PEERS)/ik.log
	@cd $(IK) && ln -sf build/bin/llama-* .
	@touch $@

$(PEERS)/%/.done: requirements/peers/%.txt
	@echo "installing $*"
	@$(PYTHON) -m venv --clear $(PEERS)/$*
	@# torch by name beside them, or pip takes a newer one, with CUDA, where a peer asks for any.
	@$(PEERS)/$*/bin/python -m pip install --quiet $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) \
	    $$(grep ^torch requirements/torch.txt) -r $<
	@# Their builds for CUDA do not load beside torch's for the CPU, and text needs none of them.
	@$(PEERS)/$*/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@

# ---- checks and tests ----

build/openai-1: requirements/openai-1.txt $(VENV)/.dev
	@echo "installing the openai client's version 1 into a directory of its own"
	@$(PIP) install --upgrade --target $@ -r requirements/openai-1.txt
	@touch $@

# Each of the first two keeps one processor busy. The tidy tests are in `check`.
test: setup build/openai-1 ## everything; the last line is pytest's own summary
	@$(MAKE) --no-print-directory check & check=$$!; \
	    $(MAKE) --no-print-directory coverage; coverage=$$?; \
	    wait $$check && exit $$coverage
	@$(RUN) -m pytest $(SPREAD) --ignore tests/tidy $(COVERAGE_TESTS:%=--covered %)

test-console: setup ## the console in a real Chromium, where there is one; its pictures are left in build/console
	@if command -v chromedriver >/dev/null; then $(RUN) -m pytest --quiet -o faulthandler_timeout=3600 tests/console/every_view.py; \
	else echo "no Chromium with its driver here (apt install chromium chromium-driver): test-console is skipped"; fi

test-newest: ## quick tests without PyTorch under the newest Python here, if it is newer than PYTHON
	@newest="$$(.ci/newest-python $(PYTHON))" || exit 1; \
	if [ -z "$$newest" ]; then echo "no Python newer than $(PYTHON) here: test-newest is skipped"; else \
	    $(MAKE) --no-print-directory VENV=.venv-newest PYTHON="$$newest" .venv-newest/.octavo \
	    && echo "running the quick tests under $$newest" \
	    && .venv-newest/bin/python -m pytest --quiet --no-torch -m "not slow" $(SPREAD) -r f; fi

test-smollm2: setup ## SmolLM2's text of fifty prompts against the reference (minutes)
	@$(RUN) -m pytest --quiet -o faulthandler_timeout=3600 tests/models/every_prompt.py

test-matrix: setup ## every request in every way, and all that `make test` tests in part, whole (minutes)
	@$(RUN) -m pytest --quiet --whole -m "matrix or sample" $(SPREAD) tests
	@$(RUN) -m pytest --quiet tests/server/matrix/every_cell.py

test-ranks: setup ## every kind of model as several ranks, stages and nodes: the bits are those of one process (minutes)
	@$(RUN) -m pytest --quiet tests/ranks tests/stages tests/nodes
	@$(RUN) -m pytest --quiet tests/ranks/every_kind.py tests/ranks/every_adapter.py tests/ranks/every_layout.py tests/stages/every_kind.py
	@$(RUN) -m pytest --quiet -rs tests/nodes/every_layout.py tests/nodes/every_cable.py

build/ray/.installed: requirements/ray.txt $(VENV)/.venv
	@echo "installing Ray into an environment of its own"
	@$(PYTHON) -m venv --clear build/ray
	@build/ray/bin/python -m pip --disable-pip-version-check --quiet install -r $<
	@# It sees the tests' packages behind its own.
	@$(RUN) -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
	    > "$$(build/ray/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/octavo.pth"
	@touch $@

test-ray: setup build/ray/.installed ## engines, stages and the application of Ray Serve on a cluster of two nodes, which loses one (minutes)
	@PYTHONPATH="$(CURDIR)" build/ray/bin/python -m pytest --quiet -W ignore -o faulthandler_timeout=3600 tests/serve_ray/every_engine.py
	@PYTHONPATH="$(CURDIR)" build/ray/bin/python -m pytest --quiet -W ignore -o faulthandler_timeout=3600 tests/serve_ray/every_stage.py
	@PYTHONPATH="$(CURDIR)" build/ray/bin/python -m pytest --quiet -W ignore -o faulthandler_timeout=3600 tests/serve_ray/every_replica.py

test-speculation: setup ## 5,000 mixed requests with each way to draft: all answers equal (an hour; REQUESTS=n for fewer)
	@$(RUN) -m tests.runner.speculate.mixed_requests --requests $(REQUESTS)

CLIENTS := anthropic cohere grpc huggingface-hub langchain-openai litellm lm-eval mistralai ollama openai openai-agents \
    opentelemetry pydantic-ai schemathesis sentence-transformers
CLIENT_STAMPS := $(CLIENTS:%=build/clients/%/.installed) build/clients/node/.installed

build/clients/%/.installed: requirements/clients/%.txt $(VENV)/.venv
	@echo "installing the client $* into an environment of its own"
	@$(PYTHON) -m venv --clear build/clients/$*
	@build/clients/$*/bin/python -m pip --disable-pip-version-check --quiet install \
	    $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) -r $<
	@touch $@

build/clients/node/.installed: requirements/clients/node/package.json requirements/clients/node/package-lock.json
	@command -v npm >/dev/null || { echo "the clients for node need node 20 or newer, with npm: install it" \
	    "first (nodejs.org, or your system's package)" >&2; exit 1; }
	@echo "installing the clients for node"
	@mkdir -p $(@D) && cp requirements/clients/node/package*.json $(@D)
	@cd $(@D) && npm ci --silent --no-audit --no-fund
	@touch $@

test-clients: setup $(CLIENT_STAMPS) ## other people's clients and schemathesis against real servers (minutes)
	@$(RUN) -m pytest --quiet -o faulthandler_timeout=3600 tests/clients/every_client.py

build/gpu-blind: requirements/gpu-blind.txt $(VENV)/.torch
	@echo "installing Triton, which compiles for cards that are not here (640 MB)"
	@$(PIP) install --upgrade --no-deps --target $@ -r requirements/gpu-blind.txt
	@touch $@

# Triton decides when it is imported whether its functions are interpreted or compiled.
GPU_BLIND := PYTHONPATH=build/gpu-blind TRITON_CACHE_DIR=build/gpu-blind/cache
# All of both legs, without the test that runs a part of each among others.
LEGS := tests/gpu_blind --ignore tests/gpu_blind/test_selection.py
test-gpu-blind: setup build/gpu-blind ## the kernels for cards, without one: interpreted, compiled, and executed as compiled (minutes)
	@TRITON_INTERPRET=1 $(GPU_BLIND) $(RUN) -m pytest --quiet --whole $(SPREAD) $(ARGS) $(LEGS)
	@$(GPU_BLIND) $(RUN) -m pytest --quiet --whole $(SPREAD) $(ARGS) $(LEGS)

VULKAN_TESTS := $(patsubst %,tests/vulkan/every_%.py,shader planted_bug step)
build/vulkan/.installed: requirements/vulkan.txt $(VENV)/.dev
	@echo "installing wgpu, which reaches Vulkan from Python"
	@$(PIP) install --upgrade --no-deps --target build/vulkan/site -r $<
	@touch $@

# The driver is looked for anew until there is one.
test-vulkan: setup build/vulkan/.installed ## the probe of Vulkan: shaders and SmolLM2 on Mesa's lavapipe, where it can be had (minutes)
	@if [ -e build/vulkan/lavapipe.json ] || .ci/vulkan-driver build/vulkan; then \
	    .ci/vulkan-run $(RUN) -m pytest --quiet -o faulthandler_timeout=3600 $(ARGS) $(VULKAN_TESTS); \
	else echo "test-vulkan is skipped"; fi

# A checkout of llama.cpp, whose tests of its server are run where they are.
LLAMA_CHECKOUT ?= $(LLAMA)/vendor/llama.cpp
test-llama: $(VENV)/.octavo ## llama.cpp's own tests of its server, against `octavo serve`: make test-llama LLAMA_CHECKOUT=… (half an hour)
	@$(RUN) -m tests.llama $(LLAMA_CHECKOUT) $(ARGS)

build/deploy: requirements/deploy.txt $(VENV)/.dev
	@echo "installing Helm and the schemas of Kubernetes into a directory of their own"
	@$(PIP) install --upgrade --target $@ -r requirements/deploy.txt
	@touch $@

test-deploy: setup build/deploy ## the chart, systemd's units and the image's files, by their own tools (minutes)
	@PYTHONPATH=build/deploy $(RUN) -m pytest --quiet -s -o faulthandler_timeout=3600 tests/deploy/every_file.py

test-docs: setup docs ## the site, and every command and program of the pages for users, typed by a reader (minutes)
	@$(RUN) -m pytest --quiet -o faulthandler_timeout=3600 tests/docs/every_diagram.py tests/docs/every_page.py

# In an environment of its own, without the product: the pages that are made from the code are files.
build/docs/.installed: requirements/docs.txt requirements/docs-diagrams.txt $(VENV)/.venv
	@$(PYTHON) -m venv --clear build/docs
	@$(PHASE) "installing mkdocs into build/docs" build/docs/bin/python -m pip --disable-pip-version-check --quiet install -r requirements/docs.txt
	@build/docs/bin/python -m pip --disable-pip-version-check --quiet install --no-deps --only-binary :all: --ignore-requires-python \
	    --target build/docs/diagrams -r requirements/docs-diagrams.txt
	@touch $@

docs: build/docs/.installed ## the documentation as a site, in build/site; refuses dead links and what loads from elsewhere
	@NO_MKDOCS_2_WARNING=1 build/docs/bin/mkdocs build --quiet --strict
	@build/docs/bin/python -m tests.docs.built_site build/site

check: $(VENV)/.octavo ## ruff, mypy, import contracts, the tidy rules
	@$(RUN) -m ruff check --quiet $(CODE)
	@$(RUN) -m ruff format --check --quiet $(CODE) || { echo "run: make format" >&2; exit 1; }
	@$(RUN) -m mypy $(CODE)
	@$(VENV)/bin/lint-imports --no-logo
	@$(RUN) -m pytest --quiet tests/tidy

coverage: $(VENV)/.octavo ## unit tests and golden worlds must reach each branch of the core
	@$(RUN) -m coverage run -m pytest --quiet -m "not slow" $(COVERAGE_TESTS)
	@$(RUN) -m coverage report

format: $(VENV)/.dev ## ruff format, and the fixes ruff is sure of
	@$(RUN) -m ruff check --fix --exit-zero --quiet $(CODE)
	@$(RUN) -m ruff format $(CODE)

# ---- programs ----

# The product alone, and what builds it, in an environment of its own: no PyTorch, no development tools.
# The versions are those of requirements/dev.txt. Where `make setup` has been run, its environment is used.
SERVE_VENV := $(if $(wildcard .venv/.octavo),.venv,.venv-serve)
BUILD_TOOLS := cmake ninja
PRODUCT := import tomllib; p = tomllib.load(open("pyproject.toml", "rb")); q = p["project"]; \
    print(*q["dependencies"], *q["optional-dependencies"]["hub"], *p["build-system"]["requires"], sep="\n")

build/product.txt: pyproject.toml
	@mkdir -p build
	@$(PYTHON) -c '$(PRODUCT)' > $@.part && printf '%s\n' $(BUILD_TOOLS) >> $@.part && mv $@.part $@

serve: ## serve a model on this machine (smollm2 unless told): make serve MODEL=… ARGS="--port 8001"
	@[ -e $(SERVE_VENV)/.octavo ] || .ci/needs serve $(PYTHON) venv compiler
ifeq ($(SERVE_VENV),.venv)
	@$(MAKE) --no-print-directory .venv/.octavo
else
	@$(MAKE) --no-print-directory VENV=$(SERVE_VENV) PACKAGES="-c requirements/dev.txt -r build/product.txt" \
	    PACKAGES_ARE="what Octavo needs" NATIVE_PARTS="-DOCTAVO_TIERS=native -DOCTAVO_TEST_MODULE=OFF -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=0" \
	    BUILDING="building the native engine for this processor (once)" $(SERVE_VENV)/.octavo
endif
	@exec $(SERVE_VENV)/bin/octavo serve $(MODEL) $(ARGS)

sim: $(VENV)/.octavo ## simulated worlds: make sim SEEDS=10000 FROM=0
	@$(RUN) -m tests.sim --seeds $(SEEDS) --from $(FROM)
	@$(RUN) -m tests.sim --kind groups --seeds $$(($(SEEDS) / 20 + 1)) --from $(FROM)

planted: $(VENV)/.octavo ## apply each planted bug; the simulator must catch every one
	@$(RUN) -m tests.sim --planted
	@$(RUN) -m pytest -q --whole tests/sim/groups -k planted

damage: $(VENV)/.octavo ## ten thousand damaged models: each loads, or is refused in one clear line
	@$(RUN) -m tests.damage

test-shapes: $(VENV)/.octavo ## random texts of a thousand random schemas, each judged by jsonschema: make test-shapes ARGS="--model smollm2"
	@$(RUN) -m tests.grammar.json_schema $(ARGS)

soak: $(VENV)/.octavo ## mixed load, leavers, kill -9 on a real server: make soak SECONDS=900 MODEL=smollm2
	@$(RUN) benchmarks/soak.py --seconds $(SECONDS) $(if $(MODEL),--model $(MODEL))

hostile: $(VENV)/.octavo ## 10,000 hostile requests beside 16 streams that they must not disturb: make hostile ARGS="--requests 500"
	@$(RUN) -m benchmarks.hostile $(if $(MODEL),--model $(MODEL)) $(ARGS)

# The quick ones first. Each must pass; what it prints is in build/nightly. About three hours on two cores.
NIGHTLY ?= test-newest test test-console test-matrix test-ranks test-ray test-speculation planted "sim:SEEDS=10000 FROM=$(FROM)" test-shapes damage test-smollm2 test-amx hostile \
    "soak:SECONDS=1800" test-clients test-deploy test-docs test-gpu-blind test-vulkan sanitize
nightly: setup ## every suite there is, one after the other, whatever fails; says how each ended (hours)
	@.ci/nightly $(NIGHTLY)

overload: $(VENV)/.octavo ## ten times what the server can do: rejections, goodput, shares; make overload ARGS="--seconds 60"
	@$(RUN) benchmarks/overload.py $(ARGS)

restart: setup ## kill -9 with 50 streams open: detection, going again, exactness; MODEL=smollm2
	@$(RUN) benchmarks/restart.py $(if $(MODEL),--model $(MODEL)) $(ARGS)

serving-cost: $(VENV)/.octavo ## what the server adds to the engine's own time, with 32 streams: make serving-cost ARGS="--rounds 15"
	@$(RUN) benchmarks/serving_cost.py $(if $(MODEL),--model $(MODEL)) $(ARGS)

bench-core: $(VENV)/.octavo ## what a step of the scheduler costs, as JSON
	@$(RUN) benchmarks/core_step.py --json

# The native tests with builds that check every access to memory, then every access by threads. The
# sanitizer's library, and libstdc++, whose exceptions it intercepts, must be loaded before Python.
SANITIZED_TESTS ?= tests/backends/native
sanitize: $(VENV)/.octavo ## the native engine's tests under ASan and UBSan, then under TSan (slow)
	@for kind in address,undefined thread; do \
	    out=build/sanitize-$${kind%,*}; library=lib$$(echo $$kind | cut -c 1)san.so; \
	    $(VENV)/bin/cmake -S . -B $$out -G Ninja -DOCTAVO_SANITIZE=$$kind \
	        -DPython_EXECUTABLE=$(CURDIR)/$(RUN) -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(VENV)/bin/ninja \
	        -DCMAKE_LIBRARY_OUTPUT_DIRECTORY=$(CURDIR)/$$out/octavo >/dev/null \
	    && $(VENV)/bin/cmake --build $$out \
	    && ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
	        LD_PRELOAD="$$($${CXX:-c++} -print-file-name=$$library) $$($${CXX:-c++} -print-file-name=libstdc++.so.6)" \
	        $(RUN) -m pytest -q -p no:cacheprovider --whole $(SANITIZED_TESTS) --native-from $$out/octavo \
	    || exit 1; \
	done

# The engine with the amx tier as its best one, whose tiles are emulated: no processor with AMX is needed.
test-amx: $(VENV)/.octavo ## the native engine's tests over the emulated AMX tier
	@$(VENV)/bin/cmake -S . -B build/amx -G Ninja -DOCTAVO_TEST_TIERS=ON -DPython_EXECUTABLE=$(CURDIR)/$(RUN) \
	    -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(VENV)/bin/ninja \
	    -DCMAKE_LIBRARY_OUTPUT_DIRECTORY=$(CURDIR)/build/amx/octavo >/dev/null
	@$(VENV)/bin/cmake --build build/amx
	@$(RUN) -m pytest -q -p no:cacheprovider --whole tests/backends/native --native-from build/amx/octavo $(ARGS)

# 64-bit ARM, emulated: Debian's Python and the pinned packages for ARM, run by qemu. The wheel is
# built by a cross compiler, with the modules that tests import beside it in the checkout.
ARM := build/arm
ARM_VERSION = $(patsubst python%,%,$(notdir $(wildcard $(ARM)/sysroot/usr/include/python3.*)))
ARM_INCLUDE = $(abspath $(wildcard $(ARM)/sysroot/usr/include/python3.*))
ARM_TESTS ?= tests/backends/native tests/confine/test_filter.py tests/observe/test_machine.py
# qemu does not apply limits of memory (RLIMIT_AS) to the programs that it runs.
ARM_WITHOUT = $(addprefix --deselect tests/backends/native/,test_team.py::test_several_threads_may_fail_at_once \
    test_team.py::test_threads_that_the_system_does_not_give_are_an_error \
    test_memory.py::test_a_step_without_memory_fails_and_the_next_are_exact)

$(ARM)/python: .ci/arm-sysroot
	@echo "fetching Debian's Python for ARM"
	@.ci/arm-sysroot $(ARM)
	@touch $@

$(ARM)/.site: requirements/dev.txt $(ARM)/python $(VENV)/.venv
	@echo "installing the development tools' builds for ARM"
	@rm -rf $(ARM)/site
	@$(PIP) install --target $(ARM)/site --no-deps --only-binary :all: --implementation cp \
	    --python-version $(ARM_VERSION) --platform manylinux2014_aarch64 \
	    $(patsubst %,--platform manylinux_2_%_aarch64,17 24 26 27 28 31 34 35 36) -r $<
	@touch $@

$(ARM)/.wheel: pyproject.toml CMakeLists.txt $(NATIVE) $(ARM)/.site
	@echo "building the native engine and the wheel for ARM"
	@rm -rf $(ARM)/dist $(ARM)/installed
	@PATH="$(abspath $(VENV)/bin):$$PATH" _PYTHON_HOST_PLATFORM=linux-aarch64 \
	    SETUPTOOLS_EXT_SUFFIX="$$($(ARM)/python -c 'import sysconfig as s; print(s.get_config_var("EXT_SUFFIX"))')" \
	    $(PIP) wheel --no-deps --no-build-isolation --wheel-dir $(ARM)/dist . \
	    -C build-dir=$(ARM)/native -C cmake.define.OCTAVO_IN_TREE=ON \
	    -C cmake.define.CMAKE_TOOLCHAIN_FILE=$(CURDIR)/csrc/aarch64.cmake \
	    -C cmake.define.CMAKE_CXX_FLAGS="-idirafter $(CURDIR)/$(ARM)/sysroot/usr/include" \
	    -C cmake.define.Python_EXECUTABLE=$(CURDIR)/$(ARM)/python -C cmake.define.Python_INCLUDE_DIR=$(ARM_INCLUDE)
	@$(RUN) -m zipfile --extract $(ARM)/dist/*.whl $(ARM)/installed
	@touch $@

test-arm: $(ARM)/.wheel ## the native engine's tests for 64-bit ARM under qemu (slow; needs g++-aarch64-linux-gnu and qemu-user)
	@cd $(ARM)/installed && PYTHONPATH=. ../python -c 'from octavo.backends.native import _native as n; print("the wheel runs", *n.tiers())'
	@PYTHONPATH=. $(ARM)/python -m pytest -q -o faulthandler_timeout=3600 -p no:cacheprovider --whole --no-torch $(ARM_WITHOUT) $(ARM_TESTS)

wheel: $(VENV)/.dev ## a wheel for this Python and kind of machine, in dist/
	@.ci/needs wheel $(RUN) compiler
	@rm -rf build/wheel && $(PHASE) "building the wheel" $(PIP_SPEAKS) wheel --no-deps --no-build-isolation --wheel-dir build/wheel .
	@mkdir -p dist && mv "$$($(RUN) -m tests.deploy.wheel build/wheel/*.whl)" dist/ && ls dist

clean: ## remove everything that was made, .venv included
	rm -rf .venv .venv-newest .venv-serve build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	rm -rf .coverage .coverage.* *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
