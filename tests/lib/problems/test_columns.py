"""The column table turns a source's fields of any known name into the same record."""

import itertools
import json
import math
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.problems.columns import (
    FIELD_COLUMNS,
    SOLUTION,
    cleaned_labels,
    guess_columns,
    is_bare,
    plain_number,
    read_worked,
    to_problem,
)
from lib.problems.rows import RowFault

WORKING = "She has 2 and gets 2 more, so she has 4 now."


def _fault(fields, **settings):
    with pytest.raises(RowFault) as raised:
        to_problem(fields, **settings)
    return raised.value


@pytest.mark.parametrize(
    ("problem", "reference", "solution"),
    list(
        itertools.product(
            FIELD_COLUMNS["problem"],
            ("answer", "expected_answer", "reference_answer"),
            ("generated_solution", "response", "solution"),
        )
    ),
)
def test_all_of_the_tables_names_give_the_same_record(problem, reference, solution):
    record = to_problem({problem: "2 + 2?", reference: "4", solution: WORKING})
    assert (record.problem, record.reference, record.solution) == ("2 + 2?", "4", WORKING)


@pytest.mark.parametrize("column", SOLUTION)
def test_a_marked_text_is_solution_and_reference(column):
    record = to_problem({"question": "2 + 2?", column: f"{WORKING}\n#### 4"})
    assert (record.reference, record.solution) == ("4", WORKING)


MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "2 + 2?"},
    {"role": "assistant", "content": f"{WORKING} \\boxed{{4}}"},
]


@pytest.mark.parametrize(
    ("fields", "reference", "solution"),
    [
        ({"solution": "34"}, "34", ""),
        # An answer outweighs a box.
        ({"answer": "204", "solution": "so \\boxed{205}"}, "204", "so \\boxed{205}"),
        ({"answer": "$\\boxed{4}$", "solution": WORKING}, "4", WORKING),
        ({"answer": 27.0}, "27", ""),
        ({"answer": -3}, "-3", ""),
        ({"answer": " 4 "}, "4", ""),
        ({"answer": [], "solution": "34"}, "34", ""),
    ],
)
def test_answer_and_solution_beside_each_other(fields, reference, solution):
    record = to_problem({"prompt": "?", **fields})
    assert (record.reference, record.solution) == (reference, solution)


@pytest.mark.parametrize("column", ["solution", "answer", "response"])
def test_what_the_table_cannot_decide_is_undecidable(column):
    assert _fault({"problem": "?", column: WORKING}).reason == "undecidable"


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (
            {"problem": "ask", "reference": "truth", "solution": "how"},
            ("1 + 3?", "it is the number four indeed", WORKING),
        ),
        (
            {"problem": "messages", "solution": "messages"},
            ("2 + 2?", "4", MESSAGES[2]["content"]),
        ),
        ({"problem": "messages", "reference": "reward_model.ground_truth"}, ("2 + 2?", "5", "9")),
        ({"problem": "chat"}, ("2 + 2?", "4", "9")),
    ],
)
def test_columns_from_params_decide_what_the_table_cannot(columns, expected):
    fields = {
        "ask": "1 + 3?",
        "truth": "it is the number four indeed",
        "how": WORKING,
        "messages": MESSAGES[1:],
        "chat": MESSAGES[:2],
        "reward_model": {"ground_truth": "5"},
        "answer": "4",
        "solution": "9",
    }
    problem = to_problem(fields, columns=columns)
    assert (problem.problem, problem.reference, problem.solution) == expected


@pytest.mark.parametrize(
    ("fields", "reason", "field"),
    [
        ({"problem": None, "answer": "4"}, "missing_field", "problem"),
        ({"problem": " ", "answer": "4"}, "empty_field", "problem"),
        ({"problem": "?"}, "missing_field", "reference"),
        ({"problem": "?", "answer": ""}, "empty_field", "answer"),
        ({"problem": "?", "answer": True}, "wrong_type", "answer"),
        ({"problem": "?", "answer": [4]}, "wrong_type", "answer"),
        ({"problem": "?", "answer": math.nan}, "wrong_type", "answer"),
        ({"problem": "?", "answer": 10**309}, "undecidable", "answer"),
        ({"problem": {"text": "?"}, "answer": "4"}, "wrong_type", "problem"),
        ({"problem": "\ud800", "answer": "4"}, "bad_utf8", "problem"),
        ({"problem": "?", "answer": "4", "solution": 1j}, "wrong_type", "solution"),
    ],
)
def test_a_field_at_fault_is_named_with_what_is_wrong(fields, reason, field):
    fault = _fault(fields)
    assert (fault.reason, fault.field) == (reason, field)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (19.200000000000003, "19.2"),
        (-0.0, "0"),
        (1e-07, "0.0000001"),
        (1e22, "1" + "0" * 22),
        (1e300, "1e+300"),
        (2**53 + 1, "9007199254740993"),
        (Decimal("19.20"), "19.2"),
        (Decimal("1E+2"), "100"),
        (Decimal("0." + "1" * 38), "0." + "1" * 38),
    ],
)
def test_a_number_is_written_as_a_person_would(value, text):
    assert to_problem({"problem": "?", "answer": value}).reference == text


@given(st.decimals(-1000, 1000, places=9))
def test_a_float_gives_the_decimal_that_it_was_read_from(number):
    reference = to_problem({"problem": "?", "answer": float(number)}).reference
    assert Decimal(reference) == number


CHAT = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "\\boxed{4}"}]
PARTS = [{**turn, "content": [{"type": "text", "text": turn["content"]}]} for turn in CHAT]
SHAREGPT = [{"from": "human", "value": "2 + 2?"}, {"from": "gpt", "value": "\\boxed{4}"}]


@pytest.mark.parametrize("chat", [CHAT, PARTS, SHAREGPT])
@pytest.mark.parametrize("written", [lambda chat: chat, json.dumps, str])
def test_chat_messages_in_any_form_are_question_and_answer(chat, written):
    columns = {"problem": "chat", "solution": "chat"}
    problem = to_problem({"chat": written(chat)}, columns=columns)
    assert (problem.problem, problem.reference) == ("2 + 2?", "4")


def test_a_text_that_begins_like_a_chat_is_no_problem():
    fault = _fault({"problem": "[{'role': 'user', 'content': array(['2 + 2?'])}]", "answer": "4"})
    assert (fault.reason, fault.field) == ("wrong_type", "problem")
    assert to_problem({"problem": "[{1}, {2}] has how many sets?", "answer": "2"}).reference == "2"


@pytest.mark.parametrize(
    ("value", "kept", "cleaned"),
    [
        *((value, "", True) for value in (math.nan, ["algebra"], {"a": 1}, True, b"x", CHAT * 2)),
        *((value, "", False) for value in (None, "", [])),
        ("algebra", "algebra", False),
        ("number\n theory", "number theory", False),
        ("\x1b[31malge\x00bra", "[31malgebra", True),
        ("constructor", "", True),
        ("__proto__", "", True),
        ("x" * 5000, "x" * 99 + "…", True),
        (0, "0", False),
    ],
)
def test_a_label_is_one_short_line_or_empty_and_counted(value, kept, cleaned):
    fields = {"problem": "?", "answer": "4", "subject": value}
    assert to_problem(fields).subject == kept
    assert cleaned_labels(fields, {}) == (("subject",) if cleaned else ())
    assert to_problem({**fields, "topic": "algebra"}, columns={"subject": "topic"}).subject


def test_a_field_that_params_unset_is_not_read():
    fields = {"problem": "?", "answer": "4", "solution": ["?"], "level": "5", "subject": "b"}
    problem = to_problem(fields, columns={"solution": "", "level": "", "subject": ""})
    assert (problem.solution, problem.level, problem.subject) == ("", "", "")


@pytest.mark.parametrize(
    ("fields", "columns"),
    [
        ({"conversations": SHAREGPT}, {"problem": "conversations", "solution": "conversations"}),
        ({"prompt": CHAT[:1], "completion": CHAT[1:]}, {"solution": "completion"}),
        ({"messages": CHAT[:1], "ground_truth": "4"}, {"problem": "messages"}),
        (
            {"prompt": "?", "reward_model": {"ground_truth": "4"}},
            {"reference": "reward_model.ground_truth"},
        ),
        ({"ID": 1, "Problem": "?", "Answer": 204}, {"problem": "Problem", "reference": "Answer"}),
        ({"question": "?", "final_answer": "4"}, {"reference": "final_answer"}),
        ({"Body": "Ann has 2.", "Question": "How many?", "Answer": "2"}, {}),
        ({"text": "?"}, {}),
    ],
)
def test_the_columns_of_other_sets_are_guessed(fields, columns):
    assert _fault(fields).reason == "missing_field"
    assert guess_columns(fields) == columns


@pytest.mark.parametrize(
    ("column", "value", "level"),
    [
        ("level", "Level 5", 5),
        ("difficulty", 2.0, 2),
        ("level", "Level ?", "Level ?"),
        ("level", None, ""),
    ],
)
def test_levels_are_numbers_where_they_can_be(column, value, level):
    assert to_problem({"problem": "?", "answer": "4", column: value}).level == level


@pytest.mark.parametrize(
    ("field", "column"),
    [
        *((field, "typo") for field in ("problem", "reference", "solution", "subject", "level")),
        ("reference", "reward_model.truth"),
    ],
)
def test_a_column_that_params_name_and_the_row_lacks_is_a_fault(field, column):
    fields = {"question": "?", "answer": "4", "reward_model": {"ground_truth": "4"}}
    fault = _fault(fields, columns={field: column})
    assert (fault.reason, fault.field) == ("missing_field", field)
    assert f"`{column}`" in str(fault)


@pytest.mark.parametrize(
    ("text", "worked"),
    [
        (
            "He sold 48/2 = <<48/2=24>>24 clips.\n#### 72",
            ("72", "He sold 48/2 = 24 clips."),
        ),
        ("It costs $<<3*4=12>>12.\n#### $1,234.50", ("1234.50", "It costs $12.")),
        ("So.\n#### -7", ("-7", "So.")),
        ("#### 5", ("5", "")),
        (
            "So $x = \\boxed{\\frac{1}{2}}$.",
            ("\\frac{1}{2}", "So $x = \\boxed{\\frac{1}{2}}$."),
        ),
        ("First \\boxed{1}, so \\boxed{2}", ("2", "First \\boxed{1}, so \\boxed{2}")),
        ("$\\boxed{42}$", ("42", "")),
        ("\\[ \\boxed{42}. \\]", ("42", "")),
        ("no mark here", None),
        ("\\boxed{}", None),
        ("####", None),
        ("#### 3 is not the end\nof it", None),
    ],
)
def test_a_marked_answer_is_split_from_its_working(text, worked):
    assert read_worked(text) == worked


@given(st.integers(-(10**12), 10**12))
def test_thousands_separators_do_not_change_a_number(number):
    assert plain_number(f"{number:,}") == str(number)


@pytest.mark.parametrize("answer", ["3,4", "1,5", "10,00", "1,2,3"])
def test_commas_that_part_no_thousands_stay(answer):
    assert plain_number(answer) == answer


def test_a_short_line_without_prose_is_a_bare_answer():
    answers = ["34", "\\frac{1}{2}", "(3, 4]", "\\text{no real solution}", "$5"]
    others = ["We add both sides and get 5.", "5\nbecause", "x" * 500, "then so it is 4"]
    assert [is_bare(text) for text in (*answers, *others)] == [True] * 5 + [False] * 4


def test_much_white_space_takes_linear_time():
    """A regular expression that begins with white space takes quadratic time on it."""
    assert read_worked("Add." + " " * 200_000 + "then stop") is None
    assert read_worked("Add.\n#### 1,234 \n\n") == ("1234", "Add.")
