"""Completions are generated, resumed and graded one by one."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any
from unittest.mock import Mock

import pytest

from lib.artifacts.completions import GradedCompletion
from lib.artifacts.problems import INSTRUCTION, MULTIPLE_CHOICE, Problem
from lib.core.errors import UserError
from lib.evaluation.completions import complete, complete_checkpoint, samplings
from lib.grading.grade import grade_rows
from lib.grading.metrics import summarise
from lib.models.pretrained import load_tokenizer
from lib.params import Params
from lib.params.model import Override
from lib.prompts import prompt_format
from lib.prompts.formats import conversation
from tests.conftest import read_jsonl
from tests.lib.evaluation.scripted import ScriptedEngine

WORKING_OUT = prompt_format("working_out")
PROBLEMS = [
    Problem.create(problem="What is 1 + 2?", reference="3", subject="sums", level=1),
    Problem.create(problem="What is 2 + 2?", reference="4", subject="sums", level=2, tags=("new",)),
]
RIGHT = "1 + 2 = 3<end_working_out><SOLUTION>3</SOLUTION>"
WRONG = "<end_working_out><SOLUTION>9</SOLUTION>"
LOOSE = "I think it is 3"
SILENT = ""


SCRIPTS = {"1 + 2": [RIGHT, LOOSE], "2 + 2": [WRONG, SILENT]}


@pytest.fixture
def engine_of(base):
    """Build an engine with fixed completions."""
    return functools.partial(ScriptedEngine, load_tokenizer(base))


@pytest.fixture
def answer(smoke, engine_of, tmp_path):
    """Generate rows of completions in smoke's modes, or with other settings of `evaluate`."""

    def answered(problems=PROBLEMS, *, by=SCRIPTS, folder="whole", **evaluate):
        complete(
            by if isinstance(by, ScriptedEngine) else engine_of(by),
            {"held_out": problems},
            label="grpo",
            prompt_format=WORKING_OUT,
            system="",
            evaluate=smoke.evaluate.model_copy(update=evaluate),
            seed=0,
            scratch=tmp_path / folder,
            completions=tmp_path / folder / "completions.jsonl",
        )
        return read_jsonl(tmp_path / folder / "completions.jsonl")

    return answered


def graded(
    smoke: Params, rows: Sequence[Mapping[str, Any]], **reward: object
) -> list[GradedCompletion]:
    """Grade rows as the stage does, with other settings of `reward`."""
    changed = smoke.reward.model_copy(update=reward)
    return list(grade_rows(rows, reward=changed))


@pytest.fixture
def rows(smoke, answer):
    return graded(smoke, answer())


def test_rows_come_by_benchmark_mode_problem_and_draw(rows):
    order = [f"{row.mode} {row.reference} {row.sample}" for row in rows]
    sampled = ["sampled 3 0", "sampled 3 1", "sampled 4 0", "sampled 4 1"]
    assert order == ["greedy 3 0", "greedy 4 0", *sampled]


def test_a_row_says_what_was_answered_and_what_it_earned(rows):
    right = rows[0]
    assert (right.answer, right.label, right.equations) == ("3", "11", 1)
    assert right.rewards == {"format": 1.0, "answer": 1.0}
    assert right.reward == 1.25
    wrong = rows[1]
    assert (wrong.answer, wrong.label, wrong.reasoning_present) == ("9", "10", False)
    assert wrong.reward == 0.25


def test_an_override_holds_for_its_benchmark_only(smoke):
    own = Override(
        benchmark="harder",
        greedy=False,
        num_samples=5,
        temperature=0.6,
        top_p=0.9,
        max_new_tokens=8,
    )
    evaluate = smoke.evaluate.model_copy(update={"overrides": (own,)})
    harder, held_out = (
        samplings(evaluate.decoding_of(name), prompt_format=prompt_format("r1_zero"), seed=0)
        for name in ("harder", "held_out")
    )
    assert list(harder) == ["sampled"]
    sampled = harder["sampled"]
    assert (sampled.num_completions, sampled.temperature, sampled.top_p) == (5, 0.6, 0.9)
    assert (sampled.max_new_tokens, sampled.stop_strings) == (8, ("</answer>",))
    assert list(held_out) == ["greedy", "sampled"]
    assert held_out["sampled"].num_completions == smoke.evaluate.num_samples


def test_a_stopped_run_resumes_and_ends_the_same(engine_of, answer):
    whole_engine, resumed, stopped = (engine_of(SCRIPTS, last=last) for last in (-1, -1, 2))
    whole = answer(by=whole_engine, batch_size=2)
    assert len(whole_engine.calls) == 3
    with pytest.raises(KeyboardInterrupt):
        answer(by=stopped, batch_size=2, folder="cut")
    assert answer(by=resumed, batch_size=2, folder="cut") == whole
    assert stopped.calls + resumed.calls == whole_engine.calls


def test_a_stopped_run_starts_anew_with_other_threads_and_not_with_another_list(
    smoke, tmp_path, monkeypatch
):
    settings = []
    fingerprint = Mock(side_effect=lambda decisive, **_: settings.append(decisive) or 1 / 0)
    monkeypatch.setattr("lib.evaluation.completions.rows_fingerprint", fingerprint)
    paths = dict.fromkeys(("completions", "base", "problems"), tmp_path)
    listed = smoke.evaluate.model_copy(update={"checkpoints": ("grpo",)})
    for changes in ({"torch_threads": 1}, {"torch_threads": 2}, {"evaluate": listed}):
        params = smoke.model_copy(update={"torch_threads": 1} | changes)
        with pytest.raises(ZeroDivisionError):
            complete_checkpoint(tmp_path, params=params, **paths)
    assert settings[0] == settings[2] != settings[1]


def test_a_too_long_problem_is_refused_or_wrong_and_counted(smoke, engine_of, tmp_path, capsys):
    long = Problem.create(problem="What is 2 + 2? " * 20, reference="4", subject="a")
    engine = engine_of({"1 + 2": [RIGHT, RIGHT]}, positions=60)
    run = functools.partial(
        complete,
        engine,
        {"held_out": [PROBLEMS[0], long]},
        label="x",
        prompt_format=WORKING_OUT,
        system="",
        evaluate=smoke.evaluate,
        seed=0,
        completions=tmp_path / "completions.jsonl",
    )
    with pytest.raises(UserError, match=f"problem {long.id} has .* 60 positions"):
        run(scratch=tmp_path / "refused")
    assert engine.calls == []
    facts = run(scratch=tmp_path, long_is_wrong=True)
    stderr = capsys.readouterr().err
    assert stderr.count(long.id) == 1
    assert facts["sampling"]["held_out"]["greedy"]["num_too_long"] == 1
    rows = read_jsonl(tmp_path / "completions.jsonl")
    numbers = summarise(graded(smoke, rows))["held_out"]
    assert numbers["greedy"]["n"] == numbers["sampled"]["n"] == 2
    assert numbers["greedy"]["answer_accuracy"] == numbers["sampled"]["pass_at_1"] == 0.5


def test_a_letter_is_graded_as_a_choice(smoke, answer):
    problem = Problem.create(
        problem="Which is it?", reference="B", subject="algebra", tags=(MULTIPLE_CHOICE,)
    )
    script = ["The correct answer is B.", "<end_working_out><SOLUTION>(B)</SOLUTION>"]
    rows = graded(smoke, answer([problem], by={"Which": script}))
    assert [(row.answer, row.answer_ok, row.strict_ok) for row in rows[1:]] == [
        ("B", True, False),
        ("B", True, True),
    ]


def test_a_completion_that_nothing_can_judge_has_no_accuracy(smoke, answer):
    problem = Problem.create(problem="Write a poem.", reference="", tags=(INSTRUCTION,))
    rows = graded(smoke, answer([problem], by={"poem": ["Roses", "Violets"]}))
    metrics = summarise(rows)["held_out"]
    assert {row.decided_by for row in rows} == {"not graded"}
    assert metrics["greedy"]["mean_response_tokens"] == 5
    assert not {"answer_accuracy", "class_00", "by_level"} & set(metrics["greedy"])
    assert "pass_at_1" not in metrics["sampled"]


def test_a_row_holds_what_grading_needs_and_no_grade(answer):
    row = answer()[0]
    assert row["prompt"] == conversation(PROBLEMS[0].problem, system="")
    assert (row["completion"], row["finish"]) == (RIGHT, "eos")
    assert len(row["token_ids"]) == row["num_tokens"] == len(RIGHT)
    assert row["prompt_format"]["name"] == "working_out"
    assert row["sampling"]["temperature"] == 0
    assert not {"answer", "answer_ok", "reward", "rewards"} & set(row)


def test_other_weights_change_the_reward_and_nothing_else(smoke, answer):
    completions = answer()
    before, after = graded(smoke, completions), graded(smoke, completions, weights=(2.0, 3.0))
    assert (before[0].reward, after[0].reward) == (1.25, 5.0)
    assert [dataclasses.replace(row, reward=0.0) for row in before] == [
        dataclasses.replace(row, reward=0.0) for row in after
    ]


def test_a_row_is_read_by_the_tags_that_it_names(smoke, answer):
    rows = answer(PROBLEMS[:1], by={"1 + 2": ["x</t><a>3</a>"] * 2})
    form = {"name": "working_out", "tags": ["<t>", "</t>", "<a>", "</a>"]}
    assert {row.label for row in graded(smoke, rows)} == {"00"}
    assert {row.label for row in graded(smoke, [{**r, "prompt_format": form} for r in rows])} == {
        "11"
    }
