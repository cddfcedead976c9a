"""Adapters turn a public set's rows into problems; the rows here are synthetic."""

import pytest

from lib.artifacts.problems import INSTRUCTION, MULTIPLE_CHOICE
from lib.params.data import ADAPTERS as NAMES
from lib.problems.adapters import ADAPTERS, CSV_NAMES
from lib.problems.rows import RowFault, read_csv_rows


def _convert(adapter, fields):
    return ADAPTERS[adapter](fields, {})


CASES = {
    "math keeps subject and level": (
        "table",
        {
            "problem": "What is $1+1$?",
            "level": "Level 1",
            "type": "Prealgebra",
            "solution": "It is $\\boxed{2}$.",
        },
        {"reference": "2", "subject": "Prealgebra", "level": 1},
    ),
    "math_jsonl takes no truth from the response": (
        "math_jsonl",
        {"prompt": "What is 1+1?", "response": "Add: \\boxed{2}. ", "ground_truth": "3"},
        {"problem": "What is 1+1?", "reference": "3", "solution": "Add: \\boxed{2}. "},
    ),
    "math_jsonl unpacks an r1_zero prompt": (
        "math_jsonl",
        {
            "prompt": "A conversation between User and Assistant. They talk.\n"
            "User: What is 1+1?\nAssistant: <think>",
            "response": " One and one. </think> <answer> 2 </answer>",
        },
        {
            "problem": "What is 1+1?",
            "solution": " One and one. </think> <answer> 2 </answer>",
            "reference": "",
        },
    ),
    "open_math_reasoning loses the model's think marks": (
        "open_math_reasoning",
        {
            "problem": "What is 1+1?",
            "generated_solution": "<think>\nOne and one.\n</think>\nSo \\boxed{2}.",
            "expected_answer": "2",
            "problem_type": "has_answer_extracted",
        },
        {"reference": "2", "subject": "", "solution": "One and one.\n\nSo \\boxed{2}."},
    ),
    "mmlu from the Hub counts options from zero": (
        "mmlu",
        {"question": "1+1?", "subject": "algebra", "choices": ["1", "2", "3", "4"], "answer": 1},
        {"reference": "B", "subject": "algebra", "tags": (MULTIPLE_CHOICE,)},
    ),
    "olympiadbench's answers are joined": (
        "olympiadbench",
        {
            "question": "Which?",
            "final_answer": ["$2$", "$3$"],
            "solution": ["Both work."],
            "subfield": "Algebra",
            "unit": None,
        },
        {"reference": "$2$, $3$", "solution": "Both work.", "subject": "Algebra"},
    ),
    "alpaca_eval's instructions have no right answer": (
        "alpaca_eval",
        {"dataset": "helpful_base", "instruction": "Name a fruit.", "output": "A pear."},
        {
            "problem": "Name a fruit.",
            "reference": "",
            "subject": "helpful_base",
            "tags": (INSTRUCTION,),
        },
    ),
}


@pytest.mark.parametrize(("adapter", "fields", "expected"), CASES.values(), ids=CASES)
def test_a_row_of_a_public_set_becomes_the_record(adapter, fields, expected):
    problem = vars(_convert(adapter, fields))
    assert {name: problem[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("adapter", "fields", "columns", "expected"),
    [
        (
            "dapo",
            {"ask": "Solve the following math problem step by step.\n\n1+1?", "solution": "2"},
            {"problem": "ask"},
            {"problem": "1+1?", "reference": "2"},
        ),
        (
            "open_math_reasoning",
            {"problem": "1+1?", "r1": "<think>\nTwo.\n</think>\nIt is 2.", "expected_answer": "2"},
            {"solution": "r1"},
            {"reference": "2", "solution": "Two.\n\nIt is 2."},
        ),
    ],
)
def test_an_adapter_cleans_the_column_that_params_name(adapter, fields, columns, expected):
    problem = vars(ADAPTERS[adapter](fields, columns))
    assert {name: problem[name] for name in expected} == expected


def test_mmlu_csv_rows_become_questions_with_lettered_options(tmp_path):
    file = tmp_path / "elementary_mathematics_test.csv"
    file.write_text("What is 1+1?,1,2,3,4,B\n")
    (row,) = read_csv_rows(file, names=CSV_NAMES["mmlu"])
    problem = _convert("mmlu", row.fields)
    assert problem.problem == "What is 1+1?\nA. 1\nB. 2\nC. 3\nD. 4"
    assert (problem.reference, problem.subject) == ("B", "elementary_mathematics")


INSTRUCTIONS = (
    "Solve the following math problem step by step. The last line of your response should be of "
    "the form Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n"
)
QUESTION = "What is 1+1?\n\nOr 2?"
REMINDER = '\n\nRemember to put your answer on its own line after "Answer:".'


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": QUESTION, "solution": "34"},
        {"prompt": f"{INSTRUCTIONS}{QUESTION}{REMINDER}", "solution": "34"},
        {
            "prompt": [{"role": "user", "content": f"{INSTRUCTIONS}{QUESTION}{REMINDER}"}],
            "reward_model": {"ground_truth": "34", "style": "rule"},
        },
    ],
)
def test_dapo_prompts_are_stripped_to_the_question(fields):
    problem = _convert("dapo", fields)
    assert (problem.problem, problem.reference) == (QUESTION, "34")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"choices": ["1", "2"]}, "wrong_type"),
        ({"answer": "E"}, "wrong_type"),
        ({"answer": 4}, "wrong_type"),
        ({"choices": None, "A": "1", "answer": "A"}, "missing_field"),
    ],
)
def test_mmlu_rows_without_four_options_or_a_letter_are_faults(changes, reason):
    row = {"question": "?", "choices": ["1", "2", "3", "4"], "answer": 0} | changes
    with pytest.raises(RowFault) as raised:
        _convert("mmlu", row)
    assert raised.value.reason == reason


def test_params_name_every_adapter():
    assert tuple(ADAPTERS) == NAMES


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_an_empty_row_is_a_fault_and_no_crash(adapter):
    with pytest.raises(RowFault):
        _convert(adapter, {})
