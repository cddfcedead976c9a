"""GRPO on any model in one Python call, without stages and params.yaml."""

from pathlib import Path
from typing import Literal

from lib.artifacts.problems import Problem, read_problems, write_problems
from lib.models.runtime import configure
from lib.models.save import write_base
from lib.params import preset_params
from lib.params.data import KnownSource
from lib.params.schema import Params
from lib.problems.sources import read_source
from lib.prompts import prompt_format, save_prompt
from lib.prompts.saved import system_prompt as resolve_system_prompt
from lib.training.grpo import grpo_setup
from lib.training.phase.setup import Setup

GSM8K = {"train": "gsm8k_train", "test": "gsm8k"}
"""GSM8K's splits, by their names in lib/problems/known.yaml."""

PRESET = "s1-qwen2.5-0.5b"


def math_training_setup(
    model: str,
    *,
    params: Params | None = None,
    folder: Path = Path("data/scratch/math-grpo"),
    split: Literal["train", "test"] = "train",
    problems: Path | None = None,
    system_prompt: str | None = None,
    revision: str = "",
) -> Setup:
    """Build a GRPO trainer for `model` on GSM8K or on own problems, ready to start.

    Args:
        model: a model's folder, or its id on the Hub.
        params: settings of the run; None for those of `PRESET`.
        folder: gets the base model with its prompt (`base`), GSM8K's problems, and the trainer's
            output.
        split: of GSM8K, read from data/hub or fetched from the Hub.
        problems: a file in the format of `prepare`, in place of GSM8K.
        system_prompt: replaces `prompt.system` of params: the text itself, `file:<path>`, or
            `format` for the prompt format's own instructions. '' for none.
        revision: the model's commit on the Hub; '' for the commit in `params` if they name the same
            model.

    Raises:
        UserError: see `grpo_setup`; or the model or GSM8K is missing.
    """
    params = params or preset_params(PRESET)
    if model == params.model.name:
        revision = revision or params.model.revision
    configure(seed=params.seed, threads=params.torch_threads)
    if problems is None:
        source = KnownSource(known=GSM8K[split], limit="all")
        problems = folder / f"{source.known}.jsonl"
        # `read_source` yields (raw row, `Problem`), or (raw row, fault) for an invalid row.
        rows = (row for _, row in read_source(source))
        write_problems(problems, (row for row in rows if isinstance(row, Problem)))
    # The section `model` of params, with this model's name.
    section = params.model.model_copy(update={"name": model, "revision": revision})
    # `rendering`: the arguments of `prompt_format`, which `save_prompt` writes beside the model.
    base, rendering = folder / "base", params.prompt.rendering
    prompt = prompt_format(**rendering)
    # Writes the tokenizer and a pointer to the weights. An empty model name makes a new tiny model
    # instead: only this needs the problems and the seed.
    write_base(base, read_problems(problems), prompt_format=prompt, model=section, seed=params.seed)
    setting = params.prompt.system if system_prompt is None else system_prompt
    system = resolve_system_prompt(setting, prompt_format=prompt)
    save_prompt(base, system=system, rendering=rendering)
    return grpo_setup(
        params.model_copy(update={"model": section}),
        problems=problems,
        init=base,
        base=base,
        scratch=folder / "scratch",
    )
