"""GRPO as one process or as several, for comparison."""

import itertools
import os
import random
from collections.abc import Sequence
from pathlib import Path

import torch

from lib.artifacts.problems import read_problems
from lib.engines.base import GeneratedCompletion, Sampling
from lib.models.pretrained import load_tokenizer
from lib.models.runtime import configure
from lib.rewards.rollout import Rollout
from lib.training.phase.launch import check_world_size
from lib.training.phase.warning_signs import GAP
from tests.lib.training.runs import read_changes
from tests.lib.training.sharded import CONFIG, fsdp_environment, shard_on_cpu
from tests.lib.training.steps import Gradients, letters, plain_grpo, reward_with, train, whole


def scripted(prompt: Sequence[int], number: int, end: int) -> tuple[int, ...]:
    """Make a completion from prompt and place in the group only: 2 to 10 tokens, then `end`."""
    draw = random.Random(f"{list(prompt)}/{number}")
    return (*draw.choices(range(20, 200), k=draw.randint(2, 10)), end)


class Script:
    """Engine of scripted completions: all ranks and trainers get the same."""

    def __init__(self, base: Path):
        self.tokenizer = load_tokenizer(base)
        self._versions = map(str, itertools.count(1))

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling
    ) -> list[list[GeneratedCompletion]]:
        numbers = range(sampling.num_completions)
        return [[self._completion(prompt, number) for number in numbers] for prompt in prompts]

    def sync(self, policy) -> str:
        return next(self._versions)

    def rest(self) -> None:
        pass

    def close(self): ...

    def _completion(self, prompt: Sequence[int], number: int) -> GeneratedCompletion:
        ids = scripted(prompt, number, self.tokenizer.eos_token_id)
        text = self.tokenizer.decode(ids, skip_special_tokens=True)
        return GeneratedCompletion(
            text=text, token_ids=ids, finish="eos", log_probs=(0.0,) * len(ids)
        )


def partly(completions, problem, **columns) -> list[float]:
    """Reward letters, and all completions of every third problem equally."""
    rewards = letters(completions)
    return [0.5 * (len(text) % 3 == 0) or one for text, one in zip(problem, rewards, strict=True)]


def main(folder: Path, way: str = ""):
    """Train the smoke preset with the changes of FOLDER/changes.json, from FOLDER/base.

    Writes each rank's result to FOLDER/<ranks>-<rank>.pt. Completions are scripted; with a `way`,
    `shards` or `whole`, they are those of params' engine, and the weights are cut across the ranks
    by FSDP2 or not.
    """
    check_world_size()
    if way == "shards":
        os.environ.update(fsdp_environment(CONFIG))
        shard_on_cpu()
    params = read_changes(folder)
    configure(seed=params.seed, threads=params.torch_threads)
    problems, base = list(read_problems(folder / "grpo.jsonl")), folder / "base"
    # Each rank writes its problems: not over a file that another is reading.
    scratch = folder / f"scratch-{os.environ.get('RANK', 0)}"
    Rollout.answer_ok = property(lambda each: sum(each.token_ids) % 3 == 0)
    trainer = reward_with(plain_grpo(problems, base, params, scratch), partly)
    if not way:
        trainer.roll_out_with(Script(base), live=True)
    seen = Gradients(trainer)
    points = train(trainer)
    accelerator = trainer.accelerator
    state = accelerator.unwrap_model(trainer.model).state_dict()
    result = {
        "gradients": seen.gradients[0],
        "weights": {name: whole(weight) for name, weight in state.items()},
        "completions": seen.completions[0],
        "all_gradients": seen.gradients,
        "all_completions": seen.completions,
        "gaps": [point[f"{GAP}/mean"] for point in points if f"{GAP}/mean" in point],
    }
    ranks, rank = accelerator.num_processes, accelerator.process_index
    torch.save(result, folder / f"{ranks}-{rank}.pt")
