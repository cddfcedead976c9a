"""Each public set by its adapter. The rows here are synthetic, made up in the form of the cards."""

import pytest

from lib.problems.adapters import ADAPTERS, INSTRUCTION, MULTIPLE_CHOICE
from lib.problems.rows import RowFault


def _convert(adapter, fields, columns=None, origin="rows.jsonl"):
    return ADAPTERS[adapter].convert(fields, columns or {}, origin)


def test_gsm8k_rows_lose_calculator_marks_and_last_line():
    problem = _convert(
        "table",
        {"question": "2 boxes of 600?", "answer": "2*600=<<2*600=1200>>1200 in all.\n#### 1,200"},
    )
    assert (problem.reference, problem.solution) == ("1200", "2*600=1200 in all.")


def test_math_rows_keep_subject_and_level():
    problem = _convert(
        "table",
        {
            "problem": "What is $1+1$?",
            "level": "Level 1",
            "type": "Prealgebra",
            "solution": "It is $\\boxed{2}$.",
        },
    )
    assert (problem.reference, problem.subject, problem.level) == ("2", "Prealgebra", 1)


def test_math_jsonl_takes_the_answer_from_the_box_of_the_response():
    problem = _convert("math_jsonl", {"prompt": "What is 1+1?", "response": "Add: \\boxed{2}."})
    assert (problem.problem, problem.reference) == ("What is 1+1?", "2")
    assert problem.solution == "Add: \\boxed{2}."


def test_math_jsonl_undoes_the_r1_zero_format():
    problem = _convert(
        "math_jsonl",
        {
            "prompt": "A conversation between User and Assistant. They talk.\n"
            "User: What is 1+1?\nAssistant: <think>",
            "response": " One and one. </think> <answer> 2 </answer>",
        },
    )
    assert (problem.problem, problem.solution, problem.reference) == (
        "What is 1+1?",
        "One and one.",
        "2",
    )


def test_open_math_reasoning_loses_the_models_think_marks():
    problem = _convert(
        "open_math_reasoning",
        {
            "problem": "What is 1+1?",
            "generated_solution": "<think>\nOne and one.\n</think>\nSo \\boxed{2}.",
            "expected_answer": "2",
            "problem_type": "has_answer_extracted",
        },
    )
    assert (problem.reference, problem.subject) == ("2", "")
    assert problem.solution == "One and one.\n\nSo \\boxed{2}."


INSTRUCTIONS = (
    "Solve the following math problem step by step. The last line of your response should be of "
    "the form Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n"
)
REMINDER = '\n\nRemember to put your answer on its own line after "Answer:".'


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": "What is 1+1?\n\nOr 2?", "solution": "34"},
        {"prompt": f"{INSTRUCTIONS}What is 1+1?\n\nOr 2?{REMINDER}", "solution": "34"},
        {
            "prompt": [
                {"role": "user", "content": f"{INSTRUCTIONS}What is 1+1?\n\nOr 2?{REMINDER}"}
            ],
            "reward_model": {"ground_truth": "34", "style": "rule"},
        },
    ],
)
def test_dapo_prompts_are_stripped_to_the_question(fields):
    problem = _convert("dapo", fields)
    assert (problem.problem, problem.reference) == ("What is 1+1?\n\nOr 2?", "34")


def test_mmlu_csv_rows_become_questions_with_lettered_options():
    names = ADAPTERS["mmlu"].csv_names
    row = dict(zip(names, ["What is 1+1?", "1", "2", "3", "4", "B"], strict=True))
    problem = _convert("mmlu", row, origin="data/raw/mmlu/elementary_mathematics_test.csv")
    assert problem.problem == "What is 1+1?\nA. 1\nB. 2\nC. 3\nD. 4"
    assert (problem.reference, problem.subject) == ("B", "elementary_mathematics")
    assert problem.tags == (MULTIPLE_CHOICE,)


def test_mmlu_from_the_hub_counts_options_from_zero():
    problem = _convert(
        "mmlu",
        {"question": "1+1?", "subject": "algebra", "choices": ["1", "2", "3", "4"], "answer": 1},
    )
    assert (problem.reference, problem.subject) == ("B", "algebra")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"question": "?", "choices": ["1", "2"], "answer": 0}, "wrong_type"),
        ({"question": "?", "choices": ["1", "2", "3", "4"], "answer": "E"}, "wrong_type"),
        ({"question": "?", "choices": ["1", "2", "3", "4"], "answer": 4}, "wrong_type"),
        ({"question": "?", "A": "1", "answer": "A"}, "missing_field"),
        ({"choices": ["1", "2", "3", "4"], "answer": 0}, "missing_field"),
    ],
)
def test_mmlu_rows_without_four_options_or_a_letter_are_faults(fields, reason):
    with pytest.raises(RowFault) as raised:
        _convert("mmlu", fields)
    assert raised.value.reason == reason


def test_olympiadbench_answers_are_joined():
    problem = _convert(
        "olympiadbench",
        {
            "question": "Which?",
            "final_answer": ["$2$", "$3$"],
            "solution": ["Both work."],
            "subfield": "Algebra",
            "unit": None,
        },
    )
    assert (problem.reference, problem.solution, problem.subject) == (
        "$2$, $3$",
        "Both work.",
        "Algebra",
    )


def test_alpaca_eval_instructions_have_no_right_answer():
    problem = _convert(
        "alpaca_eval",
        {"dataset": "helpful_base", "instruction": "Name a fruit.", "output": "A pear."},
    )
    assert (problem.problem, problem.reference, problem.subject) == (
        "Name a fruit.",
        "",
        "helpful_base",
    )
    assert problem.tags == (INSTRUCTION,)


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_an_empty_row_is_a_fault_and_no_crash(adapter):
    with pytest.raises(RowFault):
        _convert(adapter, {})
