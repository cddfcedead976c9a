"""One completion to one graded row: what it answers, whether that is right, what it earns."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from lib.engines.base import Completion
from lib.problems.adapters import INSTRUCTION, MULTIPLE_CHOICE
from lib.problems.schema import Problem
from lib.prompts import Message, PromptFormat
from lib.verifier import Grade, grade, grade_choice

Rewarder = Callable[..., list[float]]

UNGRADED = "not graded"
"""What decided an instruction's grade: nothing, a judge compares such completions elsewhere."""


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


def graded_rows(
    problem: Problem,
    prompt: Sequence[Message],
    completions: Sequence[Completion],
    *,
    grading: Grading,
) -> Iterator[dict[str, Any]]:
    """One row per completion of `problem`, in the order drawn."""
    scores = _score(prompt, completions, problem=problem, grading=grading)
    for number, (completion, rewards) in enumerate(zip(completions, scores, strict=True)):
        weighted = zip(grading.weights, rewards.values(), strict=True)
        yield {
            "sample": number,
            **_problem_fields(problem),
            **_completion_fields(completion, problem=problem, grading=grading),
            "rewards": rewards,
            "reward": sum(weight * value for weight, value in weighted),
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
    verdict = _grade(completion.text, problem=problem, prompt_format=grading.prompt_format)
    reasoning = grading.prompt_format.parse(completion.text).reasoning or ""
    return {
        "completion": completion.text,
        "answer": verdict.answer,
        "format_ok": verdict.format_ok,
        "answer_ok": verdict.answer_ok,
        "strict_ok": verdict.strict_ok,
        "label": verdict.label,
        "decided_by": verdict.decided_by,
        "reasoning_present": bool(reasoning),
        "reasoning_chars": len(reasoning),
        "equations": reasoning.count("="),
        "num_tokens": len(completion.token_ids),
        "truncated": completion.truncated,
    }


def _grade(text: str, *, problem: Problem, prompt_format: PromptFormat) -> Grade:
    if INSTRUCTION in problem.tags:
        form = prompt_format.parse(text).format_ok
        return Grade(None, form, False, False, f"{form:d}0", UNGRADED)
    judge = grade_choice if MULTIPLE_CHOICE in problem.tags else grade
    return judge(text, reference=problem.reference, prompt_format=prompt_format)


def _score(
    prompt: Sequence[Message],
    completions: Sequence[Completion],
    *,
    problem: Problem,
    grading: Grading,
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
