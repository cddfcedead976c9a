"""Measure one checkpoint of the pipeline: completions to a file, their summary to the caller."""

import contextlib
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from lib.artifacts import read_jsonl, write_jsonl
from lib.engines.base import Engine
from lib.engines.open import open_engine
from lib.engines.policy import is_adapter
from lib.errors import UserError
from lib.evaluation.facts import evaluation_facts
from lib.evaluation.grading import Grading
from lib.evaluation.measure import CHUNK, Task, answer_tasks, ordered_rows, tasks_of
from lib.evaluation.metrics import summarise
from lib.evaluation.rewarding import chosen_rewards
from lib.evaluation.stream import rows_fingerprint, scratch_of
from lib.params.measuring import Evaluate
from lib.params.model import Model, Prompt
from lib.params.training import Reward
from lib.problems.schema import Problem, read_benchmarks
from lib.prompts import PromptFormat, prompt_format, saved_system, system_prompt


@dataclasses.dataclass(frozen=True)
class Measured:
    """Numbers by benchmark and mode (see `summarise`), and what they rest on."""

    summary: dict[str, dict[str, Any]]
    facts: dict[str, Any]


def measure_checkpoint(
    checkpoint: Path,
    *,
    completions: Path,
    base: Path,
    problems: Path,
    model: Model,
    prompt: Prompt,
    reward: Reward,
    evaluate: Evaluate,
    seed: int,
    other_format: str = "",
) -> Measured:
    """Let what `prepare`, `sft` or `grpo` wrote to `checkpoint` answer, and grade it.

    Args:
        completions: JSONL that gets one row per completion (see `graded_rows`).
        base: the weights that an adapter was trained on.
        problems: folder with one set of problems per benchmark.
        other_format: name of a prompt format to ask in instead of the trained one, on the first
            benchmark alone; '' for the trained one.
    """
    if other_format:
        prompt, evaluate = prompt.with_format(other_format), evaluate.of_first()
    sections = {"model": model, "prompt": prompt, "reward": reward, "evaluate": evaluate}
    settings = {name: section.model_dump(mode="json") for name, section in sections.items()}
    inputs = {"checkpoint": checkpoint, "base": base, "problems": problems}
    name = rows_fingerprint({**settings, "seed": seed, "name": checkpoint.name}, inputs=inputs)
    chosen = prompt_format(**prompt.rendering())
    engine = open_engine(
        evaluate.engine,
        checkpoint,
        base=base,
        model=model,
        batch_size=evaluate.batch_size,
    )
    system = saved_system(base)
    if other_format:
        engine.tokenizer.chat_template = chosen.chat_template
        system = system_prompt(prompt.system, prompt_format=chosen)
    with contextlib.closing(engine), scratch_of(name) as scratch:
        return measure(
            engine,
            read_benchmarks(problems, evaluate.benchmarks),
            label=checkpoint.name,
            system=system,
            evaluate=evaluate,
            grading=grading_by(reward, prompt_format=chosen, evaluate=evaluate),
            seed=seed,
            scratch=scratch,
            completions=completions,
            positions=positions_of(base if is_adapter(checkpoint) else checkpoint),
        )


def grading_by(reward: Reward, *, prompt_format: PromptFormat, evaluate: Evaluate) -> Grading:
    """The rewards of params, or none where they cannot read the format."""
    longest = evaluate.max_new_tokens
    try:
        rewards = chosen_rewards(reward, prompt_format=prompt_format, max_completion_tokens=longest)
    except UserError:
        return Grading(prompt_format=prompt_format, rewards=(), weights=())
    return Grading(prompt_format=prompt_format, rewards=rewards, weights=reward.weights)


def positions_of(folder: Path) -> int | None:
    """Tokens that prompt and completion may have together, as the model's config says."""
    config = AutoConfig.from_pretrained(folder).get_text_config(decoder=True)
    positions: int | None = getattr(config, "max_position_embeddings", None)
    return positions


def measure(
    engine: Engine,
    benchmarks: dict[str, list[Problem]],
    *,
    label: str,
    system: str,
    evaluate: Evaluate,
    grading: Grading,
    seed: int,
    scratch: Path,
    completions: Path,
    positions: int | None,
) -> Measured:
    """Let an engine answer, whatever its model is.

    Args:
        label: the name of the model in rows and on the progress bar.
        scratch: folder of what is done so far.
        completions: JSONL that gets the rows.
        positions: of the model, None where it sets no limit.

    Raises:
        UserError: a prompt is too long for the model, said before anything is generated.
    """
    tasks = list(
        tasks_of(
            engine,
            benchmarks,
            system=system,
            evaluate=evaluate,
            prompt_format=grading.prompt_format,
            seed=seed,
            batches_per_chunk=CHUNK.get(evaluate.engine, 1),
        )
    )
    _check_room(tasks, positions=positions)
    faults = answer_tasks(engine, tasks, grading=grading, folder=scratch, label=label)
    rows = ordered_rows(tasks, scratch)
    write_jsonl(completions, ({"checkpoint": label, **row} for row in rows))
    facts = evaluation_facts(
        engine=evaluate.engine,
        tokenizer=engine.tokenizer,
        prompt_format=grading.prompt_format,
        system=system,
        tasks=tasks,
        faults=faults,
    )
    return Measured(summarise(read_jsonl(completions)), facts)


def _check_room(tasks: Sequence[Task], *, positions: int | None) -> None:
    for task in tasks:
        longest = max(map(len, task.token_ids), default=0)
        if positions is not None and longest >= positions:
            place = next(i for i, ids in enumerate(task.token_ids) if len(ids) == longest)
            raise UserError(
                f"{task.benchmark}: problem {task.problems[place].id} has {longest} tokens as a "
                f"prompt, and the model has {positions} positions for prompt and completion; "
                "leave the problem out, or take a model with more"
            )
