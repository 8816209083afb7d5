# Every target first installs what it needs into .venv. Nothing is written outside this folder. Needs Python >= 3.11 with
# venv, and make.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMPS := $(VENV)/.stamps
CACHE  := $(CURDIR)/.cache
STORES := $(CACHE)/stores

export PIP_CACHE_DIR := $(CACHE)/pip
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export HOROLOGE_WORKER_CACHE ?= $(CACHE)/horologe
export HOROLOGE_PROFILER_STATE ?= $(CACHE)/horologe
export ORT_DISABLE_TELEMETRY := 1
# A process that finds its modules compiled starts in two thirds of the time, and tests start hundreds.
unexport PYTHONDONTWRITEBYTECODE

# Test processes. System tests wait for about half of their time, so two processes use one core.
TEST_PROCESSES ?= 4
# System tests take longest and start first, so that no process is left with one of them at the end.
TESTS := tests/system tests/sim $(filter-out tests/system tests/sim tests/compose tests/gpu tests/experiments \
  tests/__pycache__, $(patsubst %/,%,$(wildcard tests/*/)))

PROTOCOL := services/frontend/horologe_frontend/grpc/protocol

DISTRIBUTION := pyproject.toml experiments/pyproject.toml constraints.txt

.PHONY: help setup cuda demo up test test-experiments test-compiled test-stores check bench wheels dist docs clients protocol site clean
.DEFAULT_GOAL := help

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' Makefile

setup: $(STAMPS)/dev ## install everything for development
	@echo "ready: $(BIN)/horologe --help"

demo: $(STAMPS)/server ## serve the models in models/ and measure them, about 45 s
	@$(BIN)/horologe demo $(ARGS)

# Uninstalled first, because pip takes builds of the same version for the same.
cuda: $(STAMPS)/server ## replace ONNX Runtime and PyTorch in .venv by their builds for CUDA, several GB (docs/gpu.md)
	@$(BIN)/pip uninstall -q -y onnxruntime torch
	@$(BIN)/pip install -q -c constraints.txt -e '.[onnx-cuda,torch]'

up: $(STAMPS)/server ## serve the models in models/ until ^C
	@$(BIN)/horologe up --models models $(ARGS)

# Several processes share the cores: threads of a numerical library would only wait for each other.
test: export OPENBLAS_NUM_THREADS := 1
test: $(STAMPS)/dev ## test the server: all that needs neither a GPU nor root, about ten minutes on two cores
	@$(if $(strip $(ARGS)),$(BIN)/pytest -q $(ARGS),\
	  $(BIN)/pytest -q -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder -m "not alone and not compose" \
	    --durations 20 $(TESTS) && \
	  $(BIN)/pytest -q -m "alone or compose" --durations 10 tests/system tests/sim tests/compose)

test-experiments: export OPENBLAS_NUM_THREADS := 1
test-experiments: $(STAMPS)/dev ## test the experiments of the papers, about two minutes on two cores
	@$(BIN)/pytest -q -n $(TEST_PROCESSES) --dist loadfile --durations 10 tests/experiments $(ARGS)

test-compiled: export OPENBLAS_NUM_THREADS := 1
test-compiled: wheels ## build the wheels and test the compiled one, about five minutes on two cores
	@rm -rf build/compiled
	$(BIN)/pip install -q --no-deps --target build/compiled build/wheels/horologe-*-cp*.whl
	PYTHONPATH=build/compiled $(BIN)/pytest -q -n $(TEST_PROCESSES) --dist loadfile \
	  -m "not alone and not compose and not interpreted" tests/controller tests/cores tests/common/core tests/sim $(ARGS)

# In an environment of its own: botocore needs python-dateutil 2, and the package kubernetes 3 or later.
test-stores: export AZURITE := $(STORES)/node_modules/.bin
test-stores: $(STORES)/installed ## test models in S3, Google Cloud Storage, Azure and Hugging Face's hub, on local servers
	@$(STORES)/bin/python -m pytest -q -p no:schemathesis tests/gpu_worker/repository/test_stores.py $(ARGS)

check: $(STAMPS)/dev ## check style, types, import contracts, generated pages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy apps libs services tests experiments
	$(BIN)/lint-imports --no-cache
	@if [ -f docs/generate.py ]; then $(BIN)/python docs/generate.py --check; fi
	$(BIN)/python deploy/grafana/generate.py --check

bench: $(STAMPS)/dev ## run the benchmarks of benchmarks/README.md
	@$(BIN)/python benchmarks/spine.py $(ARGS)

wheels: $(STAMPS)/dev ## build the wheel for every platform, and the one with a compiled controller (needs a C compiler)
	@rm -rf build/wheels
	$(BIN)/pip wheel -q --no-deps -w build/wheels .
	HATCH_BUILD_HOOK_ENABLE_CUSTOM=true PIP_NO_BINARY=mypy $(BIN)/pip wheel -q --no-deps -w build/wheels .

dist: $(STAMPS)/dev ## build sdist, wheels, chart and SBOM in build/dist, with the time of the commit (needs a C compiler)
	@$(BIN)/python deploy/distribution.py $(ARGS)

docs: $(STAMPS)/dev ## write the generated pages and dashboards
	$(BIN)/python docs/generate.py
	$(BIN)/python deploy/grafana/generate.py

clients: $(STAMPS)/dev ## run clients of Triton and KServe, and write docs/clients.md
	HOROLOGE_WRITE_CLIENTS=1 $(BIN)/pytest -q tests/system/clients/test_clients.py

protocol: $(STAMPS)/dev ## compile the messages of gRPC from their .proto files
	$(BIN)/python -m grpc_tools.protoc -I $(PROTOCOL) --include_imports \
	  --descriptor_set_out=$(PROTOCOL)/descriptors.binpb $(PROTOCOL)/inference.proto

site: $(STAMPS)/site ## build the site of the documentation in build/site, and check its links
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build -q --strict

clean: ## remove the environment and every cache
	rm -rf $(VENV) .cache build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMPS)/venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; $(PYTHON) is $$($(PYTHON) -V 2>&1). Choose one: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { v=$$($(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
	    echo "$(PYTHON) cannot create environments. On Debian and Ubuntu: apt install python$$v-venv" >&2; exit 1; }
	@echo "creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/server: $(STAMPS)/venv $(DISTRIBUTION)
	@echo "installing the dependencies of the server (once; a minute or two)"
	@$(BIN)/pip install -q -c constraints.txt -e '.[server]'
	@touch $@

$(STAMPS)/dev: $(STAMPS)/venv $(DISTRIBUTION)
	@echo "installing the dependencies of development (once; a few minutes)"
	@$(BIN)/pip install -q -c constraints.txt -e '.[dev]' -e ./experiments
	@touch $@ $(STAMPS)/server

$(STORES)/installed: $(DISTRIBUTION)
	@echo "installing the stores' clients and local servers (once; a minute)"
	@$(PYTHON) -m venv $(STORES)
	@$(STORES)/bin/pip install -q -c constraints.txt -e '.[server,s3,gs,az,hf]' pytest pytest-timeout hypothesis onnx \
	  'moto[s3]==5.2.5' flask flask-cors gcp-storage-emulator==2026.7.19
	@npm install --silent --no-audit --no-fund --prefix $(STORES) azurite@3.35.0 || \
	  echo "npm could not install azurite: the test of Azure will be skipped" >&2
	@touch $@

$(STAMPS)/site: $(STAMPS)/venv $(DISTRIBUTION)
	@echo "installing the dependencies of the site (once; half a minute)"
	@$(BIN)/pip install -q -c constraints.txt mkdocs-material 'mkdocstrings[python]'
	@touch $@
