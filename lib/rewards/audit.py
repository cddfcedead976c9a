"""Audit a reward before training on it: what earns as much as the right answer?

Each problem's reference is written as SFT would learn it, and so are completions that answer
nothing or something else. A policy finds whatever earns as much as the right answer.
"""

import dataclasses
import functools
import re
import time
from collections.abc import Iterator, Sequence
from statistics import fmean

from lib.artifacts.problems import Problem
from lib.prompts import PromptFormat
from lib.rewards.grading import Grading
from lib.rewards.rollout import Rollout
from reckon_verifier import is_equivalent
from reckon_verifier.wrong import changes


def attempts(
    problem: Problem, other: Problem, written_in: PromptFormat, number: int
) -> Iterator[tuple[str, str]]:
    """Yield name and text of what a policy may write instead of the right answer."""
    written = functools.partial(written_in.target, solution=problem.solution)
    yield "nothing", ""
    yield "the problem, repeated", problem.problem
    yield "only the format's tags", "".join(written_in.marks)
    yield "all numbers of the problem", " ".join(re.findall(r"\d+", problem.problem))
    yield "a very long text", "so we think again, " * 200
    is_right = functools.partial(
        is_equivalent, reference=problem.reference, problem=problem.problem
    )
    if not is_right(answer="5"):
        yield "The answer is 5", "The answer is 5"
    if not is_right(answer=other.reference):
        yield "another problem's answer", written(reference=other.reference)
    for kind, answer, is_completion in changes(problem.reference, problem.problem, number):
        yield kind, answer if is_completion else written(reference=answer)


@dataclasses.dataclass(frozen=True)
class Audit:
    """What a reward gives.

    Attributes:
        best: the largest reward of a right answer.
        unlearnable: problems whose right answer earns less than `best`, with its reward.
        attempts: name of an attempt -> (mean reward, those that earn as much as the right answer).
        is_stable: whether rewards do not depend on the order of the batch.
        seconds: wall time for each completion.
    """

    best: float
    unlearnable: list[tuple[Problem, float]]
    attempts: dict[str, tuple[float, list[Rollout]]]
    is_stable: bool
    seconds: float

    @property
    def passed(self) -> bool:
        """True if nothing earns as much as the right answer, which always earns the most."""
        loopholes = [each for _, each in self.attempts.values() if each]
        return not (self.unlearnable or loopholes) and self.is_stable


def audit(problems: Sequence[Problem], grading: Grading) -> Audit:
    """Score the right answers, and `attempts` at each problem.

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

    batch = [
        rollout(each, form.target(solution=each.solution, reference=each.reference))
        for each in problems
    ]
    tries: list[tuple[str, int]] = []
    for place, problem in enumerate(problems):
        for name, text in attempts(problem, problems[place - 1], form, place):
            tries.append((name, place))
            batch.append(rollout(problem, text))
    start = time.perf_counter()
    grading.score(batch)
    seconds = (time.perf_counter() - start) / len(batch)
    rewards = [each.reward for each in batch]
    best = max(rewards[: len(problems)])
    earned: dict[str, list[tuple[float, Rollout | None]]] = {}
    for (name, place), each in zip(tries, batch[len(problems) :], strict=True):
        loophole = each if each.reward >= rewards[place] else None
        earned.setdefault(name, []).append((each.reward, loophole))
    grading.score(batch[::-1])
    return Audit(
        best,
        [(problem, x) for problem, x in zip(problems, rewards, strict=False) if x < best],
        {
            name: (fmean(reward for reward, _ in values), [each for _, each in values if each])
            for name, values in earned.items()
        },
        rewards == [each.reward for each in batch],
        seconds,
    )
