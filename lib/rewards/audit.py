"""Audit a reward before training on it: what earns as much as the right answer?

Each problem's reference is written as SFT would learn it, and so are completions that answer
nothing or something else. A policy finds whatever earns as much as the right answer.
"""

import dataclasses
import re
import time
from collections.abc import Callable, Sequence

from lib.artifacts.problems import Problem
from lib.prompts import PromptFormat
from lib.rewards.grading import Grading
from lib.rewards.rollout import Rollout
from reckon_verifier import is_equivalent

Attempt = Callable[[Problem, Problem, PromptFormat], tuple[str, str]]
"""(problem, another problem, format) -> (completion, the answer in it or '')."""


def _written(answer: str, problem: Problem, written_in: PromptFormat) -> tuple[str, str]:
    return written_in.target(solution=problem.solution, reference=answer), answer


ATTEMPTS: dict[str, Attempt] = {
    "nothing": lambda problem, other, form: ("", ""),
    "the problem, repeated": lambda problem, other, form: (problem.problem, ""),
    "only the format's tags": lambda problem, other, form: ("".join(form.marks), ""),
    "all numbers of the problem": lambda problem, other, form: (
        " ".join(re.findall(r"\d+", problem.problem)),
        "",
    ),
    "The answer is 5": lambda problem, other, form: ("The answer is 5", "5"),
    "a very long text": lambda problem, other, form: ("so we think again, " * 200, ""),
    "another problem's answer": lambda problem, other, form: _written(
        other.reference, problem, form
    ),
    "the answer, negated": lambda problem, other, form: _written(
        f"-({problem.reference})", problem, form
    ),
    "the answer and one": lambda problem, other, form: _written(
        f"{problem.reference}+1", problem, form
    ),
    "not the answer": lambda problem, other, form: _written(
        f"not {problem.reference}", problem, form
    ),
}
"""What a policy may write instead of the right answer."""


@dataclasses.dataclass(frozen=True)
class Audit:
    """What a reward gives.

    Attributes:
        best: the largest reward of a right answer.
        unlearnable: problems whose right answer earns less than `best`, with its reward.
        attempts: name of an attempt -> (mean reward, problems on which it earns as much as the
            right answer).
        is_stable: whether rewards do not depend on the order of the batch.
        seconds: wall time for each completion.
    """

    best: float
    unlearnable: list[tuple[Problem, float]]
    attempts: dict[str, tuple[float, list[Problem]]]
    is_stable: bool
    seconds: float

    @property
    def passed(self) -> bool:
        """True if nothing earns as much as the right answer, which always earns the most."""
        loopholes = [problems for _, problems in self.attempts.values() if problems]
        return not (self.unlearnable or loopholes) and self.is_stable


def audit(problems: Sequence[Problem], grading: Grading) -> Audit:
    """Score the right answers and all `ATTEMPTS` of some problems.

    Raises:
        UserError: a reward fails; names it and the completion.
    """
    form = grading.prompt_format

    def rollout(problem: Problem, text: str) -> Rollout:
        return grading.rollout(
            text,
            reference=problem.reference,
            problem=problem.problem,
            tags=problem.tags,
            # Some stacks count tokens; a word is one here.
            token_ids=range(len(text.split())),
            finish="stop",
        )

    right = [rollout(each, _written(each.reference, each, form)[0]) for each in problems]
    tries: list[tuple[str, int, Rollout]] = []
    for name, attempt in ATTEMPTS.items():
        for place, problem in enumerate(problems):
            text, answer = attempt(problem, problems[place - 1], form)
            if not answer or not is_equivalent(
                reference=problem.reference, answer=answer, problem=problem.problem
            ):
                tries.append((name, place, rollout(problem, text)))
    batch = [*right, *(each for _, _, each in tries)]
    start = time.perf_counter()
    grading.score(batch)
    seconds = (time.perf_counter() - start) / len(batch)
    rewards = [each.reward for each in batch]
    grading.score(batch[::-1])
    is_stable = rewards == [each.reward for each in batch]
    best = max(rewards[: len(right)])
    earned: dict[str, list[tuple[float, Problem | None]]] = {name: [] for name in ATTEMPTS}
    for (name, place, _), reward in zip(tries, rewards[len(right) :], strict=True):
        earned[name].append((reward, problems[place] if reward >= rewards[place] else None))
    return Audit(
        best,
        [(problem, x) for problem, x in zip(problems, rewards, strict=False) if x < best],
        {
            name: (
                sum(reward for reward, _ in values) / max(len(values), 1),
                [problem for _, problem in values if problem],
            )
            for name, values in earned.items()
        },
        is_stable,
        seconds,
    )
