"""GRPO on a model as it is, in one call from Python: no stage and no params.yaml before it."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from datasets import Dataset

from lib.artifacts.problems import Problem, read_problems, write_problems
from lib.engines.pretrained import write_base
from lib.engines.runtime import configure
from lib.params import preset_params
from lib.params.data import KnownSource
from lib.params.schema import Params
from lib.problems.sources import read_source
from lib.prompts import prompt_format, save_prompt, system_prompt
from lib.rewards.functions import RewardFn
from lib.training.grpo import grpo_setup
from lib.training.phase.setup import Setup

GSM8K = {"train": "gsm8k_train", "test": "gsm8k"}
"""Names in known.yaml."""

PRESET = "s1-qwen2.5-0.5b"


@dataclasses.dataclass(frozen=True, kw_only=True)
class MathSetup(Setup):
    """A `Setup` that answers to the names of S1's `MathTrainingSetup` too."""

    @property
    def dataset(self) -> Dataset:
        """`prompt`, chat messages, with `reference_answer` and `reference_solution`."""
        rows = getattr(self.trainer, "problems", None) or self.trainer.train_dataset
        names = ("prompt", "reference_answer", "reference_solution")
        return Dataset.from_list([{name: row[name] for name in names} for row in rows])

    @property
    def reward_funcs(self) -> Sequence[RewardFn]:
        """`rewards`."""
        return self.rewards

    @property
    def grpo_args(self) -> dict[str, Any]:
        """The trainer's arguments."""
        return dict(self.trainer.args.to_dict())

    @property
    def artifacts(self) -> Setup:
        """What `run_training` takes: all of it."""
        return self


def math_training_setup(
    model: str,
    *,
    params: Params | None = None,
    folder: Path = Path("data/scratch/math-grpo"),
    split: Literal["train", "test"] = "train",
    revision: str = "",
) -> MathSetup:
    """The GRPO of `params` on `model`, ready to start.

    Args:
        model: a folder that holds one, or an id on the Hub, whose commit is `revision`, or
            that of `params` where they name the same model.
        params: S1's where none are given.
        folder: gets the model's tokenizer with its prompt (`base`), and what the trainer writes.
        split: of GSM8K, from data/hub or from the Hub.

    Raises:
        UserError: as `grpo_setup`, or there is no such model, or GSM8K cannot be had.
    """
    params = params or preset_params(PRESET)
    if model == params.model.name:
        revision = revision or params.model.revision
    configure(seed=params.seed, threads=params.torch_threads)
    source = KnownSource(known=GSM8K[split], limit="all")
    problems = folder / f"{source.known}.jsonl"
    rows = (row for _, row in read_source(source))
    write_problems(problems, (row for row in rows if isinstance(row, Problem)))
    named = params.model.model_copy(update={"name": model, "revision": revision})
    base, rendering = folder / "base", params.prompt.rendering
    prompt = prompt_format(**rendering)
    write_base(base, read_problems(problems), prompt_format=prompt, model=named, seed=params.seed)
    system = system_prompt(params.prompt.system, prompt_format=prompt)
    save_prompt(base, system=system, rendering=rendering)
    setup = grpo_setup(
        params.model_copy(update={"model": named}),
        problems=problems,
        init=base,
        base=base,
        scratch=folder / "scratch",
    )
    return MathSetup(**vars(setup))
