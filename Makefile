# Every target works on a new machine with Python 3.11+, a C compiler and make.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV  := .venv
RUN   := $(VENV)/bin
STAMP := $(VENV)/.synced
# Duration of the trouble of `make soak`.
SOAK_SECONDS ?= 600
# uv from PATH, or from PyPI in a private environment. The Python of the system does not change.
UV    := $(or $(shell command -v uv),.tools/uv/bin/uv)

.PHONY: help setup demo test soak peers e2e cluster image install lint format proto docs bench clean

help: ## list the targets
	@grep -hE '^[a-z0-9]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(STAMP) ## create .venv with all dependencies

.tools/uv/bin/uv:
	@python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "gpuslice requires Python 3.11 or newer as python3 (found: $$(python3 --version 2>&1))" >&2; exit 1; }
	@python3 -m venv .tools/uv || { echo "python3 cannot create virtual environments: install its venv module (Debian: apt-get install python3-venv) or put uv on PATH" >&2; exit 1; }
	@.tools/uv/bin/pip install --quiet --disable-pip-version-check uv

$(STAMP): pyproject.toml uv.lock $(wildcard sim/pyproject.toml sim/hatch_build.py) $(shell find sim/native -type f 2>/dev/null) | $(filter .tools/%,$(UV))
	@$(UV) sync --frozen --quiet --compile-bytecode
	@touch $@

demo: setup ## run a simulated GPU node with slices (needs no GPU, no cluster)
	@$(RUN)/gpuslice demo

test: setup ## run unit and node tests
	@$(RUN)/pytest -n 4 --dist worksteal -q

peers: setup ## test with NVIDIA's own programs on the simulated driver (needs root and Go; builds are cached)
	@$(RUN)/pytest -q -rs tests/peers

e2e: setup ## test on a real Kubernetes on this machine (needs root and Go; builds are cached)
	@$(RUN)/pytest -n 2 --dist loadgroup --no-loadscope-reorder -q tests/cluster

soak: setup ## trouble of every kind at once on a simulated node, for SOAK_SECONDS (needs root)
	@$(RUN)/python -m tests.soak --seconds $(SOAK_SECONDS) $(if $(SEED),--seed $(SEED))

cluster: setup ## run a real cluster with two simulated GPU nodes until Ctrl-C (needs root and Go)
	@$(RUN)/python -m tests.cluster.harness $(NODES)

image: setup ## build the container image as one file in dist/ (IMAGE=registry/name:tag PUSH=1 pushes it)
	@$(RUN)/python -m deploy.image $(if $(IMAGE),--name='$(IMAGE)') $(if $(PUSH),--push) $(if $(PLAIN_HTTP),--plain-http)

install: setup ## apply the manifests with IMAGE=registry/name:tag (PROGRAM=agent NESTED=host DRY_RUN=1)
	@$(RUN)/python -m deploy.install --image='$(IMAGE)' $(if $(PROGRAM),--program='$(PROGRAM)') $(if $(NESTED),--nested='$(NESTED)') $(if $(DRY_RUN),--dry-run)

lint: setup ## run ruff, mypy --strict and import contracts
	@$(RUN)/ruff format --check -q . || { echo "run: make format" >&2; exit 1; }
	@$(RUN)/ruff check -q .
	@$(RUN)/mypy
	@$(RUN)/lint-imports >/dev/null || $(RUN)/lint-imports

format: setup ## format the code and apply automatic fixes
	@$(RUN)/ruff format -q . && $(RUN)/ruff check -q --fix .

proto: setup ## generate the Python code of the kubelet APIs
	@cd src && ../$(RUN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. gpuslice/kubelet/api/*.proto

docs: setup ## generate the parts of docs/ that follow from the source
	@$(RUN)/python docs/generate.py

bench: setup ## measure this plugin and NVIDIA's in one run
	@env -u PYTHONDONTWRITEBYTECODE $(RUN)/python -m compileall -q src sim/src
	@$(RUN)/python bench/plugin.py --update docs/benchmarks.md

clean: ## remove all files that other targets create here
	@rm -rf $(VENV) .tools build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache sim/src/gpuslice_sim/_native
	@find src sim tests bench deploy -name __pycache__ -prune -exec rm -rf {} +
