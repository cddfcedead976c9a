"""One completion graded: form and answer, each on its own."""

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

from lib.prompts.base import PromptFormat
from lib.verifier.equivalence import compare
from lib.verifier.extract import extract_answer, last_boxed, parse_mmlu_letter
from lib.verifier.normalize import normalize
from lib.verifier.tree import MAX_ANSWER_CHARS, MAX_COMPLETION_CHARS


@dataclasses.dataclass(frozen=True)
class Grade:
    """What a completion is worth, form and answer scored independently.

    Attributes:
        answer: the answer that was extracted, None where there is none.
        format_ok: the completion has the required form as a whole.
        answer_ok: the extracted answer equals the reference, inside the marks or not.
        strict_ok: the completion has the required form as a whole, and what stands in the place
            of the answer equals the reference.
        label: format digit, then answer digit: "11" both, "10" form alone, "01", "00".
        decided_by: the step that decided the answer (docs/verifier.md lists them).
    """

    answer: str | None
    format_ok: bool
    answer_ok: bool
    strict_ok: bool
    label: str
    decided_by: str


def grade(
    completion: str, *, reference: str, prompt_format: PromptFormat, problem: str | None = None
) -> Grade:
    """Grade one completion against the right answer.

    A right answer outside the format's marks counts as right (`extract_answer` falls back on
    boxes, other tags, "the answer is …" and the last number), so that the report can tell a model
    that cannot solve from one that cannot format. A reward that wants both asks for label "11".

    Args:
        problem: text of the problem, see `is_equivalent`.
    """
    return _grade(
        completion,
        answer=extract_answer(completion, prompt_format=prompt_format),
        strict=_marked(completion, prompt_format),
        reference=reference,
        prompt_format=prompt_format,
        problem=problem,
    )


def grade_choice(completion: str, *, reference: str, prompt_format: PromptFormat) -> Grade:
    """`grade` for multiple choice: the answer is a letter, in the format's place or outside it.

    Args:
        reference: the right letter.
    """
    marked = _marked(completion, prompt_format)
    strict = marked and parse_mmlu_letter(marked)
    return _grade(
        completion,
        answer=strict if marked else parse_mmlu_letter(completion),
        strict=strict,
        reference=reference,
        prompt_format=prompt_format,
    )


def _grade(
    completion: str,
    *,
    answer: str | None,
    strict: str | None,
    reference: str,
    prompt_format: PromptFormat,
    problem: str | None = None,
) -> Grade:
    format_ok = has_form(completion, prompt_format=prompt_format)
    verdict = compare(reference=reference, answer=answer, problem=problem)
    in_place = (
        verdict
        if strict == answer
        else compare(reference=reference, answer=strict, problem=problem)
    )
    return Grade(
        answer=answer,
        format_ok=format_ok,
        answer_ok=verdict.equal,
        strict_ok=format_ok and in_place.equal,
        label=f"{format_ok:d}{verdict.equal:d}",
        decided_by=verdict.decided_by,
    )


def _marked(completion: str, prompt_format: PromptFormat) -> str | None:
    """What stands where the format wants the answer, a box inside it opened; None for nothing."""
    marked = prompt_format.parse(completion[-MAX_COMPLETION_CHARS:]).answer
    return marked and (last_boxed(marked) or marked)


_EMPTY_COMMAND = re.compile(r"\\[a-zA-Z]+\s*\{\s*\}")


def has_form(completion: str, *, prompt_format: PromptFormat) -> bool:
    """Whether a completion has the required form, around an answer that says something.

    Were empty marks a form, or marks around a full stop, a policy could earn for the frame only.
    """
    parsed = prompt_format.parse(completion)
    if not parsed.format_ok:
        return False
    answer = _EMPTY_COMMAND.sub("", normalize((parsed.answer or "")[:MAX_ANSWER_CHARS]))
    return any(map(str.isalnum, answer))


def r1_zero_reward_fn(
    response: str,
    ground_truth: str | float | Sequence[Any],
    fast: bool = True,
    *,
    problem: str | None = None,
) -> dict[str, float]:
    """Format and answer reward of the course that this contract comes from.

    Args:
        response: completion of a prompt that ends inside `<think>`.
        ground_truth: the right answer; of several given, one suffices.
        fast: decide by text, numbers, structure and numerical identity alone; False also asks the
            symbolic worker.
        problem: text of the problem, see `is_equivalent`.

    Returns:
        `format_reward` 1.0 when `</think> <answer>` and `</answer>` occur, `answer_reward` 1.0
        when moreover the answer is right, `reward` 1.0 only when both are.
    """
    if "</think> <answer>" not in response or "</answer>" not in response:
        return {"format_reward": 0.0, "answer_reward": 0.0, "reward": 0.0}
    inside = response.rpartition("<answer>")[2].partition("</answer>")[0]
    answer = last_boxed(inside) if "\\boxed" in inside else inside
    references = [ground_truth] if isinstance(ground_truth, str | float | int) else ground_truth
    right = any(
        compare(reference=str(reference), answer=answer, problem=problem, thorough=not fast).equal
        for reference in references
    )
    return {"format_reward": 1.0, "answer_reward": float(right), "reward": float(right)}
