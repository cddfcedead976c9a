"""Let a checkpoint answer benchmarks, greedily and by sampling, and grade every completion."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from lib.engines.base import Completion, Engine, Sampling, encode
from lib.params.schema import Evaluate
from lib.problems.schema import Problem
from lib.prompts import PromptFormat
from lib.verifier import grade

Rewarder = Callable[..., list[float]]
GREEDY, SAMPLED = "greedy", "sampled"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Grading:
    """How completions are scored.

    Attributes:
        rewards: reward functions with TRL's signature.
        weights: one for each of them.
    """

    prompt_format: PromptFormat
    rewards: Sequence[Rewarder]
    weights: Sequence[float]


def samplings(
    evaluate: Evaluate, *, stop_strings: tuple[str, ...], seed: int
) -> dict[str, Sampling]:
    """The two ways in which every benchmark is answered."""
    return {
        GREEDY: Sampling(
            num_completions=1,
            max_new_tokens=evaluate.max_new_tokens,
            temperature=0.0,
            stop_strings=stop_strings,
            seed=seed,
        ),
        SAMPLED: Sampling(
            num_completions=evaluate.num_samples,
            max_new_tokens=evaluate.max_new_tokens,
            temperature=evaluate.temperature,
            top_p=evaluate.top_p,
            stop_strings=stop_strings,
            seed=seed,
        ),
    }


def answer_benchmarks(
    engine: Engine,
    benchmarks: Mapping[str, Sequence[Problem]],
    *,
    system: str,
    evaluate: Evaluate,
    grading: Grading,
    seed: int,
) -> Iterator[dict[str, Any]]:
    """One row per completion, ordered by benchmark, mode, problem and draw."""
    modes = samplings(evaluate, stop_strings=grading.prompt_format.stop_strings, seed=seed)
    for benchmark, problems in benchmarks.items():
        prompts = [grading.prompt_format.prompt(p.problem, system=system) for p in problems]
        for mode, sampling in modes.items():
            completions = engine.generate(encode(engine.tokenizer, prompts), sampling)
            for problem, prompt, drawn in zip(problems, prompts, completions, strict=True):
                scores = _score(prompt, drawn, problem=problem, grading=grading)
                for number, (completion, rewards) in enumerate(zip(drawn, scores, strict=True)):
                    yield {
                        "benchmark": benchmark,
                        "mode": mode,
                        "sample": number,
                        **_problem_fields(problem),
                        **_completion_fields(completion, problem=problem, grading=grading),
                        "rewards": rewards,
                        "reward": sum(
                            weight * value
                            for weight, value in zip(grading.weights, rewards.values(), strict=True)
                        ),
                    }


def _problem_fields(problem: Problem) -> dict[str, Any]:
    return {
        "problem_id": problem.id,
        "problem": problem.problem,
        "reference": problem.reference,
        "subject": problem.subject,
        "level": problem.level,
        "tags": list(problem.tags),
    }


def _completion_fields(
    completion: Completion, *, problem: Problem, grading: Grading
) -> dict[str, Any]:
    verdict = grade(
        completion.text, reference=problem.reference, prompt_format=grading.prompt_format
    )
    reasoning = grading.prompt_format.parse(completion.text).reasoning or ""
    return {
        "completion": completion.text,
        "answer": verdict.answer,
        "format_ok": verdict.format_ok,
        "answer_ok": verdict.answer_ok,
        "label": verdict.label,
        "decided_by": verdict.decided_by,
        "reasoning_present": bool(reasoning),
        "reasoning_chars": len(reasoning),
        "equations": reasoning.count("="),
        "num_tokens": len(completion.token_ids),
        "truncated": completion.truncated,
    }


def _score(
    prompt: Any, completions: Sequence[Completion], *, problem: Problem, grading: Grading
) -> list[dict[str, float]]:
    """Each completion's value of each reward, through the signature that TRL calls."""
    columns = {
        "prompts": [prompt] * len(completions),
        "completions": [[{"role": "assistant", "content": c.text}] for c in completions],
        "completion_ids": [list(c.token_ids) for c in completions],
        "reference": [problem.reference] * len(completions),
    }
    values = {reward.__name__: reward(**columns) for reward in grading.rewards}
    return [
        {name: scores[index] for name, scores in values.items()}
        for index in range(len(completions))
    ]
