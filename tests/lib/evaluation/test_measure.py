"""Every completion becomes one graded row, and rows become rates with errors and n."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lib.engines.base import Completion, Sampling
from lib.engines.policy import load_tokenizer
from lib.evaluation.measure import Grading, answer_benchmarks
from lib.evaluation.metrics import headline, summarise
from lib.params import Params
from lib.problems.schema import Problem
from lib.prompts import prompt_format
from lib.verifier.rewards import build_rewards

WORKING_OUT = prompt_format("working_out")
PROBLEMS = [
    Problem.create(problem="What is 1 + 2?", reference="3", subject="sums", level=1),
    Problem.create(problem="What is 2 + 2?", reference="4", subject="sums", level=2, tags=("new",)),
]
RIGHT = "1 + 2 = 3<end_working_out><SOLUTION>3</SOLUTION>"
WRONG = "<end_working_out><SOLUTION>9</SOLUTION>"
LOOSE = "I think it is 3"
SILENT = ""


class ScriptedEngine:
    """Gives the first problem `first` and the second `second`, in the order of draws."""

    def __init__(self, base: Path, first: Sequence[str], second: Sequence[str]) -> None:
        self.tokenizer = load_tokenizer(base)
        self.scripts = (first, second)
        self.asked: list[Sampling] = []

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling
    ) -> list[list[Completion]]:
        self.asked.append(sampling)
        drawn = [script[: sampling.num_completions] for script in self.scripts]
        return [
            [Completion(text=t, token_ids=tuple(range(len(t))), finish="eos") for t in texts]
            for texts in drawn
        ]


@pytest.fixture
def rows(smoke: Params, base: Path) -> list[dict[str, Any]]:
    grading = Grading(
        prompt_format=WORKING_OUT,
        rewards=build_rewards(("format", "answer"), prompt_format=WORKING_OUT),
        weights=(0.25, 1.0),
    )
    engine = ScriptedEngine(base, [RIGHT, LOOSE], [WRONG, SILENT])
    return list(
        answer_benchmarks(
            engine,
            {"held_out": PROBLEMS},
            system="",
            evaluate=smoke.evaluate,
            grading=grading,
            seed=0,
        )
    )


def test_rows_come_in_the_order_of_benchmark_mode_problem_and_draw(
    rows: list[dict[str, Any]],
) -> None:
    order = [(row["mode"], row["reference"], row["sample"]) for row in rows]
    assert order == [
        ("greedy", "3", 0),
        ("greedy", "4", 0),
        ("sampled", "3", 0),
        ("sampled", "3", 1),
        ("sampled", "4", 0),
        ("sampled", "4", 1),
    ]


def test_a_row_says_what_was_answered_and_what_it_earned(rows: list[dict[str, Any]]) -> None:
    right = rows[0]
    assert (right["answer"], right["label"], right["equations"]) == ("3", "11", 1)
    assert right["rewards"] == {"format": 1.0, "answer": 1.0}
    assert right["reward"] == 1.25
    wrong = rows[1]
    assert (wrong["answer"], wrong["label"], wrong["reasoning_present"]) == ("9", "10", False)
    assert wrong["reward"] == 0.25


def test_a_right_answer_outside_the_tags_counts_as_an_answer_but_earns_nothing(
    rows: list[dict[str, Any]],
) -> None:
    loose = rows[3]
    assert (loose["completion"], loose["label"]) == (LOOSE, "01")


def test_rates_stand_beside_their_error_and_n(rows: list[dict[str, Any]]) -> None:
    metrics = summarise(rows)["held_out"]
    greedy, sampled = metrics["greedy"], metrics["sampled"]
    assert (greedy["answer_accuracy"], greedy["n"]) == (0.5, 2)
    assert greedy["answer_accuracy_se"] == pytest.approx(0.5)
    assert greedy["format_accuracy"] == 1.0
    assert greedy["mean_reward"] == pytest.approx(0.75)
    assert (sampled["pass_at_1"], sampled["pass_at_2"]) == (0.5, 0.5)
    assert [sampled[f"class_{label}"] for label in ("00", "01", "10", "11")] == [0.25] * 4


def test_breakdowns_cover_level_subject_and_tag(rows: list[dict[str, Any]]) -> None:
    greedy = summarise(rows)["held_out"]["greedy"]
    assert {level: group["n"] for level, group in greedy["by_level"].items()} == {"1": 1, "2": 1}
    assert greedy["by_subject"]["sums"]["answer_accuracy"] == 0.5
    assert greedy["by_tag"]["new"]["answer_accuracy"] == 0.0


def test_one_problem_has_no_standard_error_rather_than_a_false_one(
    rows: list[dict[str, Any]],
) -> None:
    assert "answer_accuracy_se" not in summarise(rows)["held_out"]["greedy"]["by_level"]["1"]


def test_the_headline_is_one_line_that_can_be_grepped(rows: list[dict[str, Any]]) -> None:
    assert list(headline("grpo", summarise(rows))) == [
        "evaluate checkpoint=grpo benchmark=held_out "
        "n=2 format=100.0% greedy=50.0% pass@1=50.0% pass@2=50.0%"
    ]


@pytest.mark.parametrize("name", ["r1_zero", "working_out"])
def test_completions_stop_where_the_prompt_format_says(
    smoke: Params, base: Path, name: str
) -> None:
    chosen, engine = prompt_format(name), ScriptedEngine(base, [RIGHT, LOOSE], [WRONG, SILENT])
    rows = answer_benchmarks(
        engine,
        {"held_out": PROBLEMS},
        system="",
        evaluate=smoke.evaluate,
        grading=Grading(prompt_format=chosen, rewards=(), weights=()),
        seed=0,
    )
    list(rows)
    assert [sampling.stop_strings for sampling in engine.asked] == [chosen.stop_strings] * 2
