"""Trainers on the smoke model, with varying rewards, for tests of real steps."""

import copy
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import TrainerCallback

from lib.artifacts.problems import Problem, write_problems
from lib.params import Params
from lib.params.model import Model
from lib.params.training import Grpo, Reward, RolloutSampling
from lib.training.grpo import grpo_setup
from lib.training.grpo.policy_gradient import PolicyGradientTrainer
from lib.training.grpo.scoring import MicroBatch
from lib.training.sft import sft_setup

NO_CLIPPING = 1e9


def plain_grpo(
    problems: Sequence[Problem],
    base: Path,
    params: Params,
    scratch: Path,
    *,
    init: Path | None = None,
    **sections: Any,
) -> PolicyGradientTrainer:
    """Build a GRPO trainer of `params` with other `sections`."""
    write_problems(scratch / "problems.jsonl", problems)
    return grpo_setup(
        params.model_copy(update=sections),
        problems=scratch / "problems.jsonl",
        init=init or base,
        base=base,
        scratch=scratch,
    ).trainer


def plain_sft(
    problems: Sequence[Problem], base: Path, params: Params, scratch: Path, **sections: Any
) -> Any:
    """Build an SFT trainer of `params` with other `sections`."""
    write_problems(scratch / "problems.jsonl", problems)
    changed = params.model_copy(update=sections)
    return sft_setup(
        changed, problems=scratch / "problems.jsonl", base=base, scratch=scratch
    ).trainer


def build(
    problems: Sequence[Problem],
    base: Path,
    params: Params,
    scratch: Path,
    *,
    model: Model,
    init: Path | None = None,
    stop: str = "t",
    rollout: dict[str, Any] | None = None,
    reward: dict[str, Any] | None = None,
    **grpo: Any,
) -> PolicyGradientTrainer:
    """Build a trainer of the smoke preset with changes, one micro-batch a step.

    Args:
        stop: stop string, '' for none; with the default the untrained model soon ends most
            completions, and runs into the limit with some.
    """
    whole = params.grpo.prompts_per_step * params.grpo.group_size
    unsaved = {"save_steps": 0, "keep_checkpoints": 0}
    changes = {"micro_batch_size": whole, "max_grad_norm": NO_CLIPPING, **unsaved, **grpo}
    trainer = plain_grpo(
        problems,
        base,
        params,
        scratch,
        init=init,
        model=model,
        grpo=Grpo.model_validate({**params.grpo.model_dump(), **changes}),
        rollout=RolloutSampling.model_validate({**params.rollout.model_dump(), **(rollout or {})}),
        reward=Reward.model_validate({**params.reward.model_dump(), **(reward or {})}),
    )
    if isinstance(trainer, PolicyGradientTrainer):
        trainer.sampling = dataclasses.replace(
            trainer.sampling, stop_strings=(stop,) if stop else ()
        )
    return trainer


def letters(completions: list[Any], **columns: Any) -> list[float]:
    """Reward the share of letters: it varies with an untrained model."""
    texts = [completion[0]["content"] for completion in completions]
    return [sum(map(str.isalpha, text)) / max(len(text), 1) for text in texts]


def varying(completions: list[Any], **columns: Any) -> list[float]:
    """Reward rows by their number: rewards differ in every group, for any completions."""
    return [float(number % 4) for number in range(len(completions))]


def nothing(completions: list[Any], **columns: Any) -> list[float]:
    return [0.0] * len(completions)


def reward_with(trainer: Any, *functions: Any) -> Any:
    """Put functions in the places of the preset's two, in our trainer or TRL's."""
    trainer.reward_funcs[:] = [*functions, nothing][:2]
    return trainer


class Steps(TrainerCallback):
    """Batches, gradients and weights of all optimiser steps."""

    def __init__(self, trainer: PolicyGradientTrainer) -> None:
        self.trainer = trainer
        self.batches: list[MicroBatch] = []
        self.gradients: list[dict[str, Tensor]] = []
        self.weights: list[dict[str, Tensor]] = []
        inner = trainer.compute_loss

        def remembered(model: Any, inputs: dict[str, MicroBatch], **kwargs: Any) -> Tensor:
            # Copied before the loss, which adds the old policy's log-probs.
            self.batches.append(copy.copy(inputs["batch"]))
            return inner(model, inputs, **kwargs)

        trainer.compute_loss = remembered
        trainer.add_callback(self)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        moved = {n: p for n, p in self.trainer.model.named_parameters() if p.grad is not None}
        self.gradients.append({name: p.grad.clone() for name, p in moved.items()})
        self.weights.append({name: p.detach().clone() for name, p in moved.items()})
