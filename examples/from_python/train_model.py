"""Train a model on GSM8K by a preset's GRPO, without a stage or params.yaml."""

from pathlib import Path

from lib.params import preset_params
from lib.training.from_model import math_training_setup
from lib.training.phase.setup import run_training

setup = math_training_setup(
    "data/models/export",
    split="train",
    params=preset_params("smoke"),
    folder=Path("data/scratch/mine"),
)
curve = run_training(setup, to=Path("data/scratch/mine/model"))
print(len(curve), curve[-1]["reward"])
