"""Measure one checkpoint of the pipeline: completions to a file, their summary to the caller."""

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

from lib.artifacts import read_jsonl, write_jsonl
from lib.engines.base import Engine
from lib.engines.open import open_engine
from lib.evaluation.facts import evaluation_facts
from lib.evaluation.grading import Grading
from lib.evaluation.measure import CHUNK, answer_tasks, ordered_rows, tasks_of
from lib.evaluation.metrics import summarise
from lib.evaluation.rewarding import chosen_rewards
from lib.evaluation.stream import fingerprint, scratch_of
from lib.params.schema import Evaluate, Model, Prompt, Reward
from lib.problems.benchmarks import read_benchmarks
from lib.problems.schema import Problem
from lib.prompts import prompt_format, saved_system


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
) -> Measured:
    """Let what `prepare`, `sft` or `grpo` wrote to `checkpoint` answer, and grade it.

    Args:
        completions: JSONL that gets one row per completion (see `graded_rows`).
        base: the weights that an adapter was trained on.
        problems: folder with one set of problems per benchmark.
    """
    sections = {"model": model, "prompt": prompt, "reward": reward, "evaluate": evaluate}
    settings = {name: section.model_dump(mode="json") for name, section in sections.items()}
    inputs = {"checkpoint": checkpoint, "base": base, "problems": problems}
    name = fingerprint({**settings, "seed": seed, "name": checkpoint.name}, inputs=inputs)
    chosen = prompt_format(**prompt.rendering())
    engine = open_engine(
        evaluate.engine,
        checkpoint,
        base=base,
        model=model,
        batch_size=evaluate.batch_size,
    )
    rewards = chosen_rewards(
        reward, prompt_format=chosen, max_completion_tokens=evaluate.max_new_tokens
    )
    with contextlib.closing(engine), scratch_of(name) as scratch:
        return measure(
            engine,
            read_benchmarks(problems, evaluate.benchmarks),
            label=checkpoint.name,
            system=saved_system(base),
            evaluate=evaluate,
            grading=Grading(prompt_format=chosen, rewards=rewards, weights=reward.weights),
            seed=seed,
            scratch=scratch,
            completions=completions,
        )


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
) -> Measured:
    """Let an engine answer, whatever its model is.

    Args:
        label: the name of the model in rows and on the progress bar.
        scratch: folder of what is done so far.
        completions: JSONL that gets the rows.
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
