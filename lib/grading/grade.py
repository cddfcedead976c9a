"""A completion becomes a graded one: what it answers, whether that is right, what it earns."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

from lib.artifacts.completions import UNGRADED, GeneratedCompletion, GradedCompletion
from lib.artifacts.problems import INSTRUCTION, MULTIPLE_CHOICE, Problem
from lib.prompts import Message, PromptFormat
from lib.verifier import Grade, grade, grade_choice

Rewarder = Callable[..., list[float]]


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


def grade_completions(
    problem: Problem,
    prompt: Sequence[Message],
    completions: Sequence[GeneratedCompletion],
    *,
    grading: Grading,
) -> Iterator[GradedCompletion]:
    """Each completion of `problem` with its grade, in their order."""
    count = len(completions)
    columns = {
        "prompts": [prompt] * count,
        "completions": [[{"role": "assistant", "content": c.text}] for c in completions],
        "completion_ids": [list(c.token_ids) for c in completions],
        "reference": [problem.reference] * count,
        "problem": [problem.problem] * count,
    }
    scores = {reward.__name__: reward(**columns) for reward in grading.rewards}
    for number, completion in enumerate(completions):
        rewards = {name: values[number] for name, values in scores.items()}
        verdict = _grade(completion.text, problem=problem, prompt_format=grading.prompt_format)
        reasoning = grading.prompt_format.parse(completion.text).reasoning or ""
        yield GradedCompletion(
            sample=number,
            problem_id=problem.id,
            problem=problem.problem,
            reference=problem.reference,
            subject=problem.subject,
            level=problem.level,
            tags=problem.tags,
            completion=completion.text,
            answer=verdict.answer,
            format_ok=verdict.format_ok,
            answer_ok=verdict.answer_ok,
            strict_ok=verdict.strict_ok,
            label=verdict.label,
            decided_by=verdict.decided_by,
            reasoning_present=bool(reasoning),
            reasoning_chars=len(reasoning),
            equations=reasoning.count("="),
            num_tokens=len(completion.token_ids),
            truncated=completion.truncated,
            rewards=rewards,
            reward=sum(
                weight * value
                for weight, value in zip(grading.weights, rewards.values(), strict=True)
            ),
        )


def _grade(text: str, *, problem: Problem, prompt_format: PromptFormat) -> Grade:
    if INSTRUCTION in problem.tags:
        form = prompt_format.parse(text).format_ok
        return Grade(None, form, False, False, f"{form:d}0", UNGRADED)
    if MULTIPLE_CHOICE in problem.tags:
        return grade_choice(text, reference=problem.reference, prompt_format=prompt_format)
    return grade(
        text, reference=problem.reference, prompt_format=prompt_format, problem=problem.problem
    )
