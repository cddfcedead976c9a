"""Train the pipeline's checkpoint by the GRPO of params.yaml, without a stage."""

from pathlib import Path

from lib.models.runtime import configure
from lib.params import load_params
from lib.training.grpo import grpo_setup
from lib.training.phase.setup import run_training

params = load_params()
configure(seed=params.seed, threads=params.torch_threads)
setup = grpo_setup(
    params,
    problems=Path("data/problems/grpo.jsonl"),
    init=Path("data/models/sft"),
    base=Path("data/models/base"),
    scratch=Path("data/scratch/mine"),
)
print(len(setup.problems), [reward.__name__ for reward in setup.rewards])
curve = run_training(setup, to=Path("data/scratch/mine/model"))
print(curve[-1]["reward"])
