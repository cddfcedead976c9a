"""The verdict on a checkpoint's rollouts names each fault with its numbers."""

import pytest

from lib.artifacts.problems import Problem
from lib.engines.base import Finish, GeneratedCompletion
from lib.planning.rollouts import RolloutGroup, diagnose
from lib.prompts import prompt_format
from lib.rewards.grading import Grading
from lib.training.phase.warning_signs import Limits

FORMAT = prompt_format("working_out")
LIMITS = Limits(lowest=0.0, highest=1.25, max_new_tokens=48)
WRITTEN = FORMAT.marks[1:]
GRADING = Grading(weights=[1.0], prompt_format=FORMAT)
PROBLEM = Problem.create(problem="What is 1 + 1?", reference="2")


def group(
    *texts: str, totals: tuple[float, ...] = (0.25, 1.25), finish: Finish = "eos"
) -> RolloutGroup:
    completions = [
        GeneratedCompletion(text=text, token_ids=tuple(map(ord, text)), finish=finish)
        for text in texts
    ]
    rewards = [totals[number % len(totals)] for number in range(len(texts))]

    def reward(**columns: object) -> list[float]:
        return rewards

    GRADING.rewards = [reward]
    rollouts = GRADING.judge(completions, problem=PROBLEM.problem, reference=PROBLEM.reference)
    GRADING.score(rollouts)
    return rollouts


def judged(*groups: RolloutGroup) -> list[str]:
    return diagnose(groups, written=WRITTEN, limits=LIMITS, temperature=0.2)


def answers(*values: int) -> list[str]:
    return [FORMAT.target(solution="", reference=str(value)) for value in values]


@pytest.mark.parametrize(
    ("rollouts", "words"),
    [
        (group(*answers(1, 2, 3, 4, 5)), ["nothing stands in the way of GRPO"]),
        (group(*answers(1, 1)), ["2 completions of a problem are too few"]),
        (group(*answers(1, 1, 1, 1, 2)), ["4 of 5 completions identical"]),
        (group("<SOLUTION>1", "<end_working_out><SOLUTION>2", "3", "4", "5"), ["</SOLUTION>"]),
        (
            group(*answers(1, 2, 3, 4, 5), totals=(0.0,), finish="length"),
            ["max_new_tokens=48", "minimum: mean 0 of 0 ... 1.25", "equal within every group"],
        ),
    ],
)
def test_a_verdict_names_each_fault_with_its_numbers(rollouts, words):
    for fault, word in zip(judged(rollouts), words, strict=True):
        assert word in fault
