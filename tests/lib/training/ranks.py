"""Training as one process or as several, for tests that compare them.

`python -m tests.lib.training.ranks STAGE FOLDER` (or torchrun with the same arguments) trains the
smoke preset with the changes of FOLDER/changes.json, from FOLDER/base, and writes what each rank
came to: FOLDER/<ranks>-<rank>.pt.
"""

import itertools
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainerCallback

from lib.artifacts.problems import read_problems
from lib.engines.base import GeneratedCompletion, Sampling
from lib.engines.policy import load_tokenizer
from lib.engines.runtime import configure
from lib.params import Params, preset_params
from lib.prompts import format_settings, prompt_format
from lib.training.grpo import build_grpo
from lib.training.phase.launch import check_world_size, num_processes
from lib.training.sft import build_sft
from tests.lib.training.runs import changed
from tests.lib.training.steps import letters, reward_with


class Script:
    """An engine whose completions depend on their prompt alone, so that all ranks draw the same."""

    def __init__(self, base: Path) -> None:
        self.tokenizer = load_tokenizer(base)
        self._versions = map(str, itertools.count(1))

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling
    ) -> list[list[GeneratedCompletion]]:
        """Between 2 and 10 tokens and the end."""
        return [
            [self._drawn(random.Random(f"{list(prompt)}/{number}")) for number in range(count)]
            for prompt in prompts
            for count in [sampling.num_completions]
        ]

    def sync(self, policy: Any) -> str:
        """Nothing to hold."""
        return next(self._versions)

    def close(self) -> None:
        """Nothing held."""

    def _drawn(self, draw: random.Random) -> GeneratedCompletion:
        end = self.tokenizer.eos_token_id
        drawn = draw.choices(range(20, 200), k=draw.randint(2, 10))
        return GeneratedCompletion(
            text=self.tokenizer.decode(drawn),
            token_ids=(*drawn, end),
            finish="eos",
            log_probs=(0.0,) * (len(drawn) + 1),
        )


class Gradients(TrainerCallback):
    """The gradients of the first optimiser step."""

    def __init__(self) -> None:
        self.first: dict[str, torch.Tensor] = {}

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not self.first:
            named = kwargs["model"].named_parameters()
            self.first = {
                name.removeprefix("module."): weight.grad.clone()
                for name, weight in named
                if weight.grad is not None
            }


def sft(folder: Path, params: Params) -> Trainer:
    return build_sft(
        list(read_problems(folder / "sft.jsonl")),
        base=folder / "base",
        prompt_format=prompt_format(**format_settings(params.prompt)),
        system="",
        sft=params.sft,
        model=params.model,
        seed=params.seed,
        scratch=folder / "scratch",
    )


def grpo(folder: Path, params: Params) -> Trainer:
    chosen = prompt_format(**format_settings(params.prompt))
    trainer = build_grpo(
        list(read_problems(folder / "grpo.jsonl")),
        init=folder / "base",
        base=folder / "base",
        prompt_format=chosen,
        system="",
        grpo=params.grpo,
        rollout=params.rollout,
        reward=params.reward,
        model=params.model,
        seed=params.seed,
        scratch=folder / "scratch",
    )
    trainer.roll_out_with(Script(folder / "base"), live=True)
    return reward_with(trainer, letters)


def main(stage: str, folder: Path) -> None:
    check_world_size()
    params = changed(preset_params("smoke"), json.loads((folder / "changes.json").read_text()))
    configure(seed=params.seed, threads=params.torch_threads)
    trainer = {"sft": sft, "grpo": grpo}[stage](folder, params)
    seen = Gradients()
    trainer.add_callback(seen)
    trainer.train()
    accelerator = trainer.accelerator
    torch.save(
        {
            "num_processes": accelerator.num_processes,
            "gradients": seen.first,
            "weights": dict(accelerator.unwrap_model(trainer.model).state_dict()),
            "losses": [point["loss"] for point in trainer.state.log_history if "loss" in point],
        },
        folder / f"{num_processes()}-{accelerator.process_index}.pt",
    )


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
