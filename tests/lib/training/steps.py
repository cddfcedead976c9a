"""Trainers on the smoke model, with varying rewards, for tests of real steps."""

import copy
import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import TrainerCallback

from lib.artifacts.problems import Problem, write_problems
from lib.engines.base import GeneratedCompletion
from lib.engines.transformers import TransformersEngine
from lib.params import Params
from lib.params.model import Model
from lib.training.grpo import grpo_setup
from lib.training.grpo.batching import MicroBatch
from lib.training.grpo.policy_gradient import PolicyGradientTrainer
from lib.training.phase.tracking import curve_points
from lib.training.sft import sft_setup

NO_CLIPPING = 1e9


def plain_grpo(
    problems: Sequence[Problem],
    base: Path,
    params: Params,
    scratch: Path,
    *,
    init: Path | None = None,
    **sections,
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


def plain_sft(problems: Sequence[Problem], base: Path, params: Params, scratch: Path, **sections):
    """Build an SFT trainer of `params` with other `sections`."""
    write_problems(scratch / "problems.jsonl", problems)
    changed = params.model_copy(update=sections)
    return sft_setup(
        changed, problems=scratch / "problems.jsonl", base=base, scratch=scratch
    ).trainer


def with_changes(section: BaseModel, changes: Mapping[str, Any]) -> Any:
    """Return a section of params with changes, validated."""
    return type(section).model_validate({**section.model_dump(), **changes})


def build(
    problems: Sequence[Problem],
    base: Path,
    params: Params,
    scratch: Path,
    *,
    model: Model,
    init: Path | None = None,
    stop: str | None = "t",
    rollout: dict[str, Any] | None = None,
    reward: dict[str, Any] | None = None,
    **grpo,
) -> PolicyGradientTrainer:
    """Build a trainer of the smoke preset with changes, one micro-batch a step.

    Args:
        stop: stop string, '' for none, None for the format's; with the default the untrained model
            soon ends most completions, and runs into the limit with some.
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
        grpo=with_changes(params.grpo, changes),
        rollout=with_changes(params.rollout, rollout or {}),
        reward=with_changes(params.reward, reward or {}),
    )
    if isinstance(trainer, PolicyGradientTrainer) and stop is not None:
        trainer.sampling = dataclasses.replace(
            trainer.sampling, stop_strings=(stop,) if stop else ()
        )
    return trainer


def letters(completions: list[Any], **columns) -> list[float]:
    """Reward the share of letters: it varies with an untrained model."""
    texts = [completion[0]["content"] for completion in completions]
    return [sum(map(str.isalpha, text)) / max(len(text), 1) for text in texts]


def varying(completions: list[Any], **columns) -> list[float]:
    """Reward rows by their number: rewards differ in every group, for any completions."""
    return [float(number % 4) for number in range(len(completions))]


def nothing(completions: list[Any], **columns) -> list[float]:
    return [0.0] * len(completions)


def reward_with(trainer, *functions):
    """Put functions in the places of the preset's two, in our trainer or TRL's."""
    trainer.reward_funcs[:] = [*functions, nothing][:2]
    return trainer


def train(trainer) -> list[dict[str, float]]:
    """Train to the end, and return the points of the curve."""
    trainer.train()
    return curve_points(trainer.state)


class EditingEngine(TransformersEngine):
    """Engine: changes the fields of each completion, by its number in the request."""

    def __init__(
        self, trainer: PolicyGradientTrainer, edit: Callable[[int, GeneratedCompletion], Any]
    ):
        super().__init__(trainer.model, trainer.processing_class, batch_size=16)
        self.edit = edit

    def generate(self, *args) -> list[list[GeneratedCompletion]]:
        numbers = itertools.count()
        return [
            [dataclasses.replace(row, **self.edit(next(numbers), row)) for row in group]
            for group in super().generate(*args)
        ]


def completion_logits(model, batch: MicroBatch) -> Tensor:
    """Compute [B, T, V] logits over the completions."""
    ids = torch.cat([batch.prompt_ids, batch.completion_ids], 1)
    seen = torch.cat([batch.prompt_mask, batch.completion_mask], 1)
    length = batch.completion_ids.shape[1]
    return model(input_ids=ids, attention_mask=seen).logits[:, -length - 1 : -1]


def completion_log_probs(logits: Tensor, batch: MicroBatch) -> Tensor:
    """Return [B, T] log-probs of the completions' tokens."""
    return logits.log_softmax(-1).gather(-1, batch.completion_ids.unsqueeze(-1)).squeeze(-1)


def whole(weight) -> Tensor:
    """Copy a tensor, gathered if it is cut across ranks."""
    return weight.full_tensor() if isinstance(weight, DTensor) else weight.detach().clone()


class Gradients(TrainerCallback):
    """Gradients and completions of each optimiser step, of our trainer or TRL's."""

    def __init__(self, trainer):
        self.trainer = trainer
        self.gradients: list[dict[str, Tensor]] = []
        self.completions: list[list[Sequence[int]]] = []
        trainer.add_callback(self)

    def on_pre_optimizer_step(self, args, state, control, model, **kwargs):
        grads = {n.removeprefix("module."): p.grad for n, p in model.named_parameters()}
        self.gradients.append({n: whole(grad) for n, grad in grads.items() if grad is not None})
        rollouts = getattr(self.trainer, "rollouts", ())
        self.completions.append([rollout.token_ids for rollout in rollouts])


class Steps(Gradients):
    """Batches, gradients and weights of all optimiser steps, and the curve of `train`."""

    def __init__(self, trainer: PolicyGradientTrainer):
        super().__init__(trainer)
        self.batches: list[MicroBatch] = []
        self.weights: list[dict[str, Tensor]] = []
        self.points: list[dict[str, float]] = []
        inner = trainer.compute_loss

        def remembered(model, inputs, **kwargs):
            # Copied before the loss, which adds the old policy's log-probs.
            self.batches.append(copy.copy(inputs["batch"]))
            return inner(model, inputs, **kwargs)

        trainer.compute_loss = remembered

    def on_pre_optimizer_step(self, args, state, control, model, **kwargs):
        super().on_pre_optimizer_step(args, state, control, model)
        weights = dict(model.named_parameters())
        self.weights.append({name: whole(weights[name]) for name in self.gradients[-1]})


def train_steps(trainer: PolicyGradientTrainer) -> Steps:
    """Train to the end, and return its steps."""
    steps = Steps(trainer)
    steps.points = train(trainer)
    return steps
