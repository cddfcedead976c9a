"""One run of a trainer, with a clock on each of its parts."""

import contextlib
import dataclasses
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback
from trl import GRPOTrainer

from lib.engines.policy import load_policy, load_tokenizer
from lib.grading.rewards import rewards_of
from lib.params import Params
from lib.problems.schema import Problem
from lib.prompts import prompt_format
from lib.trainers.grpo import build_grpo, grpo_arguments, grpo_dataset

PARTS = ("generation", "forward", "backward", "reward", "sync", "rest")


@dataclasses.dataclass
class Measured:
    """CPU seconds of each step and of its parts, and what was learned."""

    steps: list[float] = dataclasses.field(default_factory=list)
    parts: dict[str, float] = dataclasses.field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    rewards: list[float] = dataclasses.field(default_factory=list)
    gradients: dict[str, Tensor] = dataclasses.field(default_factory=dict)
    rollouts: Any = None


@contextlib.contextmanager
def opened(
    kind: str, start: Path, problems: list[Problem], params: Params
) -> Iterator[GRPOTrainer]:
    """The trainer of reckon, or TRL's with transformers' `generate`, on the same everything."""
    chosen = prompt_format(params.prompt.format)
    with tempfile.TemporaryDirectory() as scratch:
        settings = {
            "grpo": params.grpo,
            "rollout": params.rollout,
            "reward": params.reward,
            "model": params.model,
            "seed": params.seed,
            "scratch": Path(scratch),
        }
        if kind == "reckon":
            yield build_grpo(
                problems, init=start, base=start, prompt_format=chosen, system="", **settings
            )
        else:
            yield GRPOTrainer(
                model=load_policy(start, base=start, settings=params.model),
                args=grpo_arguments(**settings),
                reward_funcs=rewards_of(
                    params.reward,
                    prompt_format=chosen,
                    max_completion_tokens=params.rollout.max_new_tokens,
                ),
                train_dataset=grpo_dataset(problems, prompt_format=chosen, system=""),
                processing_class=load_tokenizer(start),
            )


def measured(trainer: GRPOTrainer, *, injected: Any = None) -> Measured:
    """Train, and time it.

    Args:
        injected: what the trainer's first generation is to give, instead of generating.
    """
    found = Measured()
    clock = _Clock(found)
    if injected is not None:
        trainer._generate = lambda prompts: injected
    else:
        trainer._generate = _remembering(trainer._generate, found)
    for part, owner, name in (
        ("generation", trainer, "_generate"),
        ("reward", trainer, "_calculate_rewards"),
        ("forward", trainer, "compute_loss"),
        ("backward", trainer.accelerator, "backward"),
    ):
        setattr(owner, name, clock.timed(part, getattr(owner, name)))
    if hasattr(trainer, "rollouts"):
        trainer.rollouts.sync_weights = clock.timed("sync", trainer.rollouts.sync_weights)
    trainer.add_callback(_Steps(found))
    trainer.train()
    found.parts["generation"] -= found.parts["sync"]
    found.parts["rest"] = sum(found.steps) - sum(found.parts.values())
    found.rewards = [e["reward"] for e in trainer.state.log_history if "reward" in e]
    return found


def _remembering(generate: Callable[..., Any], found: Measured) -> Callable[..., Any]:
    def remembered(prompts: Any) -> Any:
        result = generate(prompts)
        found.rollouts = found.rollouts or result
        return result

    return remembered


class _Clock:
    def __init__(self, found: Measured) -> None:
        self.found = found

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            begun = time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                self.found.parts[part] += time.process_time() - begun

        return run


class _Steps(TrainerCallback):
    def __init__(self, found: Measured) -> None:
        self.found = found
        self.begun = 0.0

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.begun = time.process_time()

    def on_pre_optimizer_step(self, *_: Any, model: torch.nn.Module, **__: Any) -> None:
        if not self.found.gradients:
            self.found.gradients = {n: p.grad.clone() for n, p in model.named_parameters()}

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.found.steps.append(time.process_time() - self.begun)
