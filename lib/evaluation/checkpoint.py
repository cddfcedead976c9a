"""Measure one checkpoint of the pipeline: completions to a file, their summary to the caller."""

import contextlib
from pathlib import Path
from typing import Any

from lib.artifacts import read_jsonl, write_jsonl
from lib.engines.open import open_engine
from lib.evaluation.measure import Grading, answer_benchmarks
from lib.evaluation.metrics import summarise
from lib.evaluation.rewarding import chosen_rewards
from lib.params.schema import Evaluate, Model, Prompt, Reward
from lib.problems.benchmarks import read_benchmarks
from lib.prompts import prompt_format, saved_system


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
) -> dict[str, dict[str, Any]]:
    """Metrics (see `summarise`) of what `prepare`, `sft` or `grpo` wrote to `checkpoint`.

    Args:
        completions: JSONL that gets one row per completion (see `answer_benchmarks`).
        base: the weights that an adapter was trained on.
        problems: folder with one set of problems per benchmark.
    """
    benchmarks = read_benchmarks(problems, evaluate.benchmarks)
    chosen = prompt_format(**prompt.rendering())
    engine = open_engine(
        evaluate.engine,
        checkpoint,
        base=base,
        model=model,
        batch_size=evaluate.batch_size,
        label=f"evaluate {checkpoint.name}",
    )
    grading = Grading(
        prompt_format=chosen,
        rewards=chosen_rewards(
            reward, prompt_format=chosen, max_completion_tokens=evaluate.max_new_tokens
        ),
        weights=reward.weights,
    )
    with contextlib.closing(engine):
        rows = answer_benchmarks(
            engine,
            benchmarks,
            system=saved_system(base),
            evaluate=evaluate,
            grading=grading,
            seed=seed,
        )
        write_jsonl(completions, ({"checkpoint": checkpoint.name, **row} for row in rows))
    return summarise(read_jsonl(completions))
