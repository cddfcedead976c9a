"""The verdict on a checkpoint's rollouts names each fault with its numbers."""

import pytest

from lib.artifacts.problems import Problem
from lib.engines.base import Finish, GeneratedCompletion
from lib.evaluation import sampling
from lib.models.pretrained import load_tokenizer
from lib.planning.rollouts import RolloutGroup, diagnose
from lib.prompts import prompt_format, save_system
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


def test_groups_are_graded_and_rewarded_as_params_say(smoke, base, tmp_path, monkeypatch):
    """The engine answers 4 in the format's tags, and every other time nothing."""
    used_format = prompt_format(**smoke.prompt.rendering)
    right, requested = used_format.target(solution="", reference="4"), []

    class Knowing:
        tokenizer = load_tokenizer(base)

        def generate(self, prompts, sampling):
            requested.append(sampling)
            texts = (right, "no idea") * 3
            group = [GeneratedCompletion(text=text, token_ids=(), finish="eos") for text in texts]
            return [group for _ in prompts]

        def close(self):
            requested.append("closed")

    monkeypatch.setattr(sampling, "open_engine", lambda *names, **settings: Knowing())
    save_system(tmp_path, "")
    four = Problem.create(problem="2 + 2?", reference="4")
    reward = smoke.reward
    settings = reward.settings(max_completion_tokens=16)
    grading = Grading(reward.names, reward.weights, prompt_format=used_format, **settings)
    (group,) = sampling.sample_checkpoint(
        smoke, base, [four], base=tmp_path, grading=grading,
        num_completions=6, engine="transformers", batch_size=6,
    )  # fmt: skip
    assert [each.answer_ok for each in group] == [True, False] * 3
    assert group[0].reward > group[1].reward
    requested_sampling, closed = requested
    assert closed == "closed"
    assert requested_sampling.num_completions == 6
    assert requested_sampling.stop_strings == used_format.stop_strings
