"""How hard problems are for a checkpoint: the share of its completions that are right."""

import dataclasses
from collections.abc import Iterator, Sequence

from lib.artifacts.problems import Problem
from lib.engines.base import Engine, Sampling, encode
from lib.problems.difficulty import PassRate, count_passes
from lib.prompts import PromptFormat
from lib.verifier import grade


def measure_pass_rates(
    engine: Engine,
    problems: Sequence[Problem],
    *,
    prompt_format: PromptFormat,
    system: str,
    sampling: Sampling,
) -> dict[str, PassRate]:
    """Pass rates by content hash, of `sampling.num_completions` completions for each problem.

    Args:
        sampling: its stop strings are replaced by those of `prompt_format`.
    """
    sampling = dataclasses.replace(sampling, stop_strings=prompt_format.stop_strings)
    prompts = [prompt_format.prompt(problem.problem, system=system) for problem in problems]
    completions = engine.generate(encode(engine.tokenizer, prompts), sampling)

    def verdicts() -> Iterator[tuple[str, bool]]:
        for problem, group in zip(problems, completions, strict=True):
            for completion in group:
                graded = grade(
                    completion.text,
                    reference=problem.reference,
                    prompt_format=prompt_format,
                    problem=problem.problem,
                )
                yield problem.id, graded.answer_ok

    return count_passes(verdicts())
