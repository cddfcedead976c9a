"""GRPO as one process or as several, for comparison."""

import itertools
import json
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from transformers import TrainerCallback

from lib.artifacts.problems import read_problems
from lib.engines.base import GeneratedCompletion, Sampling
from lib.engines.policy import load_tokenizer
from lib.engines.runtime import configure
from lib.params import preset_params
from lib.training.phase.launch import check_world_size
from lib.training.phase.warning_signs import GAP
from tests.lib.training.runs import changed
from tests.lib.training.sharded import CONFIG, fsdp_environment, shard_on_cpu
from tests.lib.training.steps import letters, plain_grpo, reward_with


def scripted(prompt: Sequence[int], number: int, end: int) -> tuple[int, ...]:
    """Make a completion from prompt and place in the group only: 2 to 10 tokens, then `end`."""
    draw = random.Random(f"{list(prompt)}/{number}")
    return (*draw.choices(range(20, 200), k=draw.randint(2, 10)), end)


class Script:
    """Engine of scripted completions: all ranks and trainers get the same."""

    def __init__(self, base: Path) -> None:
        self.tokenizer = load_tokenizer(base)
        self._versions = map(str, itertools.count(1))

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling
    ) -> list[list[GeneratedCompletion]]:
        numbers = range(sampling.num_completions)
        return [[self._completion(prompt, number) for number in numbers] for prompt in prompts]

    def sync(self, policy: Any) -> str:
        return next(self._versions)

    def close(self) -> None: ...

    def _completion(self, prompt: Sequence[int], number: int) -> GeneratedCompletion:
        ids = scripted(prompt, number, self.tokenizer.eos_token_id)
        text = self.tokenizer.decode(ids, skip_special_tokens=True)
        return GeneratedCompletion(
            text=text, token_ids=ids, finish="eos", log_probs=(0.0,) * len(ids)
        )


class Gradients(TrainerCallback):
    """Gradients and completions of the first optimiser step."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.first: dict[str, torch.Tensor] = {}
        self.completions: list[tuple[int, ...]] = []

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not self.first:
            named = kwargs["model"].named_parameters()
            self.first = {
                n.removeprefix("module."): whole(p.grad) for n, p in named if p.grad is not None
            }
            self.completions = [each.token_ids for each in getattr(self.trainer, "rollouts", ())]


def whole(weight: Any) -> torch.Tensor:
    return weight.full_tensor() if isinstance(weight, DTensor) else weight.clone()


def main(folder: Path, way: str = "") -> None:
    """Train the smoke preset with the changes of FOLDER/changes.json, from FOLDER/base.

    Writes each rank's result to FOLDER/<ranks>-<rank>.pt. Completions are scripted; with a `way`,
    `shards` or `whole`, they are those of params' engine, and the weights are cut across the ranks
    by FSDP2 or not.
    """
    check_world_size()
    if way == "shards":
        os.environ.update(fsdp_environment(CONFIG))
        shard_on_cpu()
    params = changed(preset_params("smoke"), json.loads((folder / "changes.json").read_text()))
    configure(seed=params.seed, threads=params.torch_threads)
    problems, base = list(read_problems(folder / "grpo.jsonl")), folder / "base"
    # Each rank writes its problems: not over a file that another is reading.
    scratch = folder / f"scratch-{os.environ.get('RANK', 0)}"
    trainer = reward_with(plain_grpo(problems, base, params, scratch), letters)
    if not way:
        trainer.roll_out_with(Script(base), live=True)
    seen = Gradients(trainer)
    trainer.add_callback(seen)
    trainer.train()
    accelerator = trainer.accelerator
    state = accelerator.unwrap_model(trainer.model).state_dict()
    result = {
        "gradients": seen.first,
        "weights": {name: whole(weight) for name, weight in state.items()},
        "completions": seen.completions,
        "gaps": [
            entry[f"{GAP}/mean"] for entry in trainer.state.log_history if f"{GAP}/mean" in entry
        ],
    }
    ranks, rank = accelerator.num_processes, accelerator.process_index
    torch.save(result, folder / f"{ranks}-{rank}.pt")
