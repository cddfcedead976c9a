r"""The verifier under the names and argument orders of math-verify and TRL.

math-verify's order is `verify(gold, target)`, which is `is_equivalent(reference=gold,
answer=target)`: the reference comes first in both. Their options have no effect here.
"""

from collections.abc import Sequence
from typing import Any

from reckon_verifier.equivalence import is_equivalent, reference_problem
from reckon_verifier.extract import as_text, extract_answer

Message = dict[str, Any]


def parse(text: str, *_: object, **__: object) -> list[str]:
    r"""Return [answer] of a text, [] without one, as math-verify: `so \boxed{5}.` -> ["5"].

    A text without an answer that is readable as a whole, "no solution", is the answer itself.
    """
    answer = extract_answer(text)
    if answer is None and reference_problem(text) is None:
        answer = text.strip()
    return [] if answer is None else [answer]


def verify(
    gold: str | Sequence[str], target: str | Sequence[str], *_: object, **__: object
) -> bool:
    """Return True if any of `target` equals any of `gold`, the reference, as math-verify."""
    golds, targets = ([side] if isinstance(side, str) else side for side in (gold, target))
    return any(is_equivalent(reference=one, answer=two) for one in golds for two in targets)


def accuracy_reward(
    completions: Sequence[str | Sequence[Message]], solution: Sequence[str], **kwargs: Any
) -> list[float | None]:
    """Return 1.0 for each right completion and 0.0 for others, as TRL's `accuracy_reward`.

    None, which TRL leaves out, for a solution that no answer could be compared with.

    Args:
        completions: texts, or chats, of which the last message counts.
        solution: references, bare or boxed in a solution, or after `####`.
        kwargs: of TRL's other columns only `problem` is used, which `is_equivalent` takes.
    """
    problems = kwargs.get("problem") or [None] * len(completions)
    rewards: list[float | None] = []
    for completion, text, problem in zip(completions, solution, problems, strict=True):
        reference = text.rpartition("####")[2]
        if reference_problem(reference):
            rewards.append(None)
            continue
        answer = extract_answer(_content(completion))
        rewards.append(float(is_equivalent(reference=reference, answer=answer, problem=problem)))
    return rewards


def _content(completion: str | Sequence[Message]) -> str:
    """Return the text of a completion; of a chat its last message's, whose parts are joined."""
    if isinstance(completion, str):
        return completion
    return as_text(completion[-1].get("content")) if completion else ""
