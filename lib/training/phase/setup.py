"""A training run that is ready and has not started: what `python` code asks for, and stages too."""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import Trainer

from lib.artifacts.problems import Problem
from lib.engines.policy import save_policy
from lib.params.schema import Params
from lib.prompts import prompt_format, saved_system
from lib.rewards.functions import RewardFn
from lib.training.phase.tracking import curve_points
from lib.training.phase.wandb_run import WandbRun


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setup:
    """A trainer, what it learns from, and what it is rewarded for.

    Attributes:
        problems: none in DPO, which learns from pairs.
        rewards: with TRL's signature, in the order of `reward.weights`; in GRPO alone.
    """

    trainer: Trainer
    problems: Sequence[Problem] = ()
    rewards: Sequence[RewardFn] = ()


def prompt_settings(params: Params, base: Path) -> dict[str, Any]:
    """How problems are put to the model: the prompt format, and the system prompt of `base`."""
    return {
        "prompt_format": prompt_format(**params.prompt.rendering),
        "system": saved_system(base),
    }


def run_training(setup: Setup, *, to: Path | None = None) -> list[dict[str, float]]:
    """Train to the end; the curve, a point per logged step. An open W&B run gets it too.

    It is the trainer's plain road: what stages add (resuming, validation, outputs of the DAG) is
    `lib.training.phase.run.run_phase`.

    Args:
        to: folder for the checkpoint; None saves nothing.
    """
    # Imported by whoever opened a run.
    wandb = sys.modules.get("wandb")
    if wandb and wandb.run is not None:
        tracking = WandbRun(setup.trainer, mode="disabled", settings={}, name="")
        setup.trainer.add_callback(tracking)
    setup.trainer.train()
    if to and setup.trainer.is_world_process_zero():
        save_policy(setup.trainer.model, setup.trainer.processing_class, to)
    return curve_points(setup.trainer.state)
