"""The study's numbers are paired per seed, and its mean is over seeds."""

import math
from typing import Any

import pytest

from lib.report.inputs import GradedCompletion
from lib.report.study import SeedRun, study_markdown, study_metrics


def completions(right: list[bool]) -> list[GradedCompletion]:
    """One greedy and one sampled completion per problem; the last problem is an unseen one."""
    return [
        GradedCompletion(
            checkpoint="x",
            benchmark="held_out",
            mode=mode,
            problem_id=str(number),
            sample=0,
            problem="?",
            reference="1",
            subject="",
            level=1,
            tags=("unseen_equations",) if number >= 2 else (),
            completion="",
            answer="1",
            format_ok=True,
            answer_ok=answer_ok,
            strict_ok=answer_ok,
            reasoning_present=False,
            reasoning_chars=0,
            equations=0,
            label="11",
            decided_by="exact",
            rewards={},
            reward=0.0,
            num_tokens=1,
            truncated=False,
        )
        for mode in ("greedy", "sampled")
        for number, answer_ok in enumerate(right)
    ]


def metrics(right: list[bool]) -> dict[str, Any]:
    share = sum(right) / len(right)
    sampled = {"num_samples": 8, "pass_at_1": share, "pass_at_8": share, "mean_equations": 1.5}
    greedy = {"format_accuracy": 1.0, "answer_accuracy": share}
    return {"held_out": {"greedy": greedy, "sampled": sampled}}


def seed_run(seed: int, **right: list[bool]) -> SeedRun:
    return SeedRun(
        seed=seed,
        metrics={name: metrics(of) for name, of in right.items()},
        completions={name: completions(of) for name, of in right.items()},
    )


@pytest.fixture
def study() -> dict[str, Any]:
    none, half, most = [False] * 4, [True, False] * 2, [True, True, True, False]
    runs = [
        seed_run(0, sft=none, grpo=half, control=none),
        seed_run(1, sft=none, grpo=most, control=half),
    ]
    return study_metrics(runs, benchmark="held_out")


def test_each_seed_is_compared_with_its_own_start_and_control(study: dict[str, Any]) -> None:
    assert study["seed_0"]["sft_to_grpo"]["greedy_answer_accuracy"]["difference"] == 0.5
    assert study["seed_1"]["sft_to_grpo"]["greedy_answer_accuracy"]["difference"] == 0.75
    assert study["seed_1"]["control_to_grpo"]["sampled_pass_at_1"]["difference"] == 0.25


def test_the_mean_is_over_seeds_with_an_interval_of_its_own(study: dict[str, Any]) -> None:
    mean = study["mean"]["sft_to_grpo"]["greedy_answer_accuracy"]
    assert (mean["difference"], mean["num_seeds"]) == (0.625, 2)
    n = study["seed_0"]["sft_to_grpo"]["greedy_answer_accuracy"]["n"]
    # Two seeds, 0.5 and 0.75: se 0.125, t(0.975, df 1) 12.706; a gain and a loss among 2n problems.
    reach = math.hypot(12.706 * 0.125, 1.96 * math.sqrt(2) / (2 * n + 2))
    assert mean["low"] == pytest.approx(0.625 - reach, abs=1e-3)


def test_unseen_problems_are_counted_apart(study: dict[str, Any]) -> None:
    unseen = study["seed_1"]["unseen"]
    assert (unseen["n"], unseen["before"], unseen["after"]) == (2, 0.0, 0.5)


def test_the_page_shows_every_seed_and_says_what_the_control_is(study: dict[str, Any]) -> None:
    page = study_markdown(study, control="SFT for 7 epochs")
    assert "the control is SFT for 7 epochs" in page
    assert "| seed 1 | grpo | 100.0 | 75.0 | 75.0 | 75.0 | 1.50 |" in page
    assert "+62.5" in page
