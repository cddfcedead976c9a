"""Public sets as they are, from the folder that RECKON_SHARED names."""

import os
import re
from pathlib import Path

import pytest

from lib.problems.adapters import MULTIPLE_CHOICE
from lib.problems.assemble import GatherRules, Ingredient, gather
from lib.problems.decontaminate import index_benchmark
from lib.problems.rows import RowFault
from lib.problems.schema import Problem
from lib.problems.sources import Source, read_problems_of

SHARED = os.environ.get("RECKON_SHARED", "")
RAW = Path(SHARED or "/nonexistent") / "data"

if not RAW.is_dir():
    pytest.skip(
        f"real sets: RECKON_SHARED={SHARED!r} does not name a folder with `data` in it",
        allow_module_level=True,
    )

SETS = [
    ("gsm8k/train.jsonl", "table", 7473),
    ("gsm8k/test.jsonl", "table", 1319),
    ("math500", "table", 500),
    ("aime24", "table", 30),
    ("amc23", "table", 40),
    ("minerva", "table", 272),
    ("olympiadbench", "olympiadbench", 675),
    ("mmlu", "mmlu", 848),
]


def _read(name, adapter="table"):
    source = Source(at=RAW / name, adapter=adapter)
    return [problem for _, problem in read_problems_of(source, raw=RAW)]


def _ingredient(name):
    source = Source(at=RAW / name)
    return Ingredient(label=name, rows=lambda: read_problems_of(source, raw=RAW))


@pytest.mark.parametrize(("name", "adapter", "count"), SETS)
def test_every_row_of_every_set_gives_a_problem_with_a_reference(name, adapter, count):
    found = _read(name, adapter)
    assert [fault for fault in found if isinstance(fault, RowFault)] == []
    assert len(found) == count
    assert all(problem.problem and problem.reference for problem in found)


@pytest.mark.parametrize("name", ["gsm8k/train.jsonl", "gsm8k/test.jsonl"])
def test_gsm8k_answers_are_numbers_and_workings_have_no_marks(name):
    for problem in _read(name):
        assert re.fullmatch(r"-?\d+(\.\d+)?", problem.reference), problem
        assert problem.solution
        assert "<<" not in problem.solution
        assert "####" not in problem.solution


def test_worked_sets_keep_their_workings():
    assert all(problem.solution for problem in _read("aime24"))
    # A few of Minerva's solutions are the boxed answer alone.
    assert sum(bool(problem.solution) for problem in _read("minerva")) == 259


def test_amc_answers_are_whole_numbers_though_stored_as_floats():
    assert all(re.fullmatch(r"-?\d+", problem.reference) for problem in _read("amc23"))


def test_math500_difficulty_is_the_level():
    assert {problem.level for problem in _read("math500")} == {1, 2, 3, 4, 5}


def test_mmlu_subjects_are_the_files_and_answers_letters():
    problems = _read("mmlu", "mmlu")
    assert {problem.subject for problem in problems} == {
        "abstract_algebra",
        "college_mathematics",
        "elementary_mathematics",
        "high_school_mathematics",
    }
    assert {problem.reference for problem in problems} == set("ABCD")
    assert all(problem.tags == (MULTIPLE_CHOICE,) for problem in problems)


RULES = GatherRules(
    bad_rows="error",
    needs_solution=True,
    needs_reference=True,
    near_duplicate_similarity=1.0,
    numeric_only=True,
    correct_only=False,
)


def test_gsm8k_train_shares_8_grams_with_its_test_set(tmp_path):
    questions = [problem.problem for problem in _read("gsm8k/test.jsonl")]
    made = gather(
        "sft",
        [_ingredient("gsm8k/train.jsonl")],
        RULES,
        benchmarks=[index_benchmark("gsm8k_test", questions, size=8)],
        cache=tmp_path,
    )
    assert made.overlaps["gsm8k_test"].metrics() == {
        "train_rows": 94,
        "benchmark_rows": 80,
        "benchmark_size": 1319,
    }
    assert made.drops.counts == {"contaminated": 94}


def test_a_test_question_planted_in_the_training_set_is_found(tmp_path):
    questions = [problem.problem for problem in _read("gsm8k/test.jsonl")]
    rows = _read("gsm8k/train.jsonl")[:200]
    planted = Problem.create(
        problem=f"Please solve this.  {questions[700].upper()}", reference="1", solution="So 1."
    )
    source = Ingredient(
        label="planted", rows=lambda: ((None, problem) for problem in [*rows, planted])
    )
    made = gather(
        "sft",
        [source],
        RULES,
        benchmarks=[index_benchmark("gsm8k_test", questions, size=8)],
        cache=tmp_path,
    )
    assert planted.id not in {problem.id for problem in made.table}
