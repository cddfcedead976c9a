"""The column table: whatever a source calls its fields, one record comes out."""

import itertools
import math

import pytest

from lib.problems.columns import PROBLEM, SOLUTION, to_problem
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
            PROBLEM,
            ("answer", "expected_answer", "reference_answer"),
            ("generated_solution", "response", "solution"),
        )
    ),
)
def test_every_combination_of_the_tables_names_gives_the_same_record(problem, reference, solution):
    found = to_problem({problem: "2 + 2?", reference: "4", solution: WORKING})
    assert (found.problem, found.reference, found.solution) == ("2 + 2?", "4", WORKING)


@pytest.mark.parametrize("column", ["answer", "solution", "generated_solution", "response"])
def test_gsm8ks_text_is_working_and_reference_whatever_its_column(column):
    found = to_problem({"question": "2 + 2?", column: f"{WORKING}\n#### 4"})
    assert (found.reference, found.solution) == ("4", WORKING)


@pytest.mark.parametrize("column", SOLUTION)
def test_maths_text_is_working_and_reference_whatever_its_column(column):
    text = f"{WORKING} Hence $\\boxed{{4}}$."
    found = to_problem({"problem": "2 + 2?", column: text})
    assert (found.reference, found.solution) == ("4", text)


def test_dapos_solution_is_the_bare_reference():
    found = to_problem({"prompt": "2 + 2?", "solution": "34"})
    assert (found.reference, found.solution) == ("34", "")


def test_an_answer_column_stands_against_a_box_in_the_solution():
    found = to_problem({"problem": "?", "answer": "204", "solution": "so \\boxed{205}"})
    assert (found.reference, found.solution) == ("204", "so \\boxed{205}")


def test_a_boxed_answer_beside_a_solution_is_unboxed():
    found = to_problem({"problem": "?", "answer": "$\\boxed{4}$", "solution": WORKING})
    assert (found.reference, found.solution) == ("4", WORKING)


@pytest.mark.parametrize(
    "fields",
    [
        {"problem": "?", "solution": WORKING},
        {"problem": "?", "answer": WORKING},
        {"problem": "?", "response": WORKING},
    ],
)
def test_what_the_table_cannot_decide_is_said_to_be_undecidable(fields):
    assert _fault(fields).reason == "undecidable"


def test_columns_from_params_decide_what_the_table_cannot():
    fields = {
        "ask": "2 + 2?",
        "truth": "it is the number four indeed",
        "how": WORKING,
        "solution": "9",
    }
    columns = {"problem": "ask", "reference": "truth", "solution": "how"}
    found = to_problem(fields, columns=columns)
    assert (found.problem, found.reference, found.solution) == tuple(
        fields[column] for column in ("ask", "truth", "how")
    )


def test_a_column_that_params_name_and_the_row_lacks_is_missing():
    fault = _fault({"problem": "?", "answer": "4"}, columns={"reference": "truth"})
    assert (fault.reason, fault.field) == ("missing_field", "reference")
    assert "`truth`" in fault.detail


@pytest.mark.parametrize(
    ("fields", "reason", "field"),
    [
        ({"answer": "4"}, "missing_field", "problem"),
        ({"problem": None, "answer": "4"}, "missing_field", "problem"),
        ({"problem": " ", "answer": "4"}, "empty_field", "problem"),
        ({"problem": "?"}, "missing_field", "reference"),
        ({"problem": "?", "answer": ""}, "empty_field", "answer"),
        ({"problem": "?", "answer": True}, "wrong_type", "answer"),
        ({"problem": "?", "answer": [4]}, "wrong_type", "answer"),
        ({"problem": "?", "answer": math.nan}, "wrong_type", "answer"),
        ({"problem": {"text": "?"}, "answer": "4"}, "wrong_type", "problem"),
        ({"problem": "\ud800", "answer": "4"}, "bad_utf8", "problem"),
        ({"problem": "?", "answer": "4", "solution": 1j}, "wrong_type", "solution"),
    ],
)
def test_a_field_at_fault_is_named_with_what_is_wrong(fields, reason, field):
    fault = _fault(fields)
    assert (fault.reason, fault.field) == (reason, field)


@pytest.mark.parametrize(("value", "text"), [(27.0, "27"), (0.5, "0.5"), (-3, "-3"), (" 4 ", "4")])
def test_numbers_become_the_text_that_people_write(value, text):
    assert to_problem({"problem": "?", "answer": value}).reference == text


def test_a_prompt_of_chat_messages_gives_its_user_turn():
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "2 + 2?"},
    ]
    assert to_problem({"prompt": messages, "answer": "4"}).problem == "2 + 2?"


@pytest.mark.parametrize(
    "messages",
    [[], ["2 + 2?"], [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]],
)
def test_messages_without_one_user_turn_are_a_wrong_type(messages):
    fault = _fault({"prompt": messages, "answer": "4"})
    assert fault.reason in ("wrong_type", "missing_field")
    assert fault.field in ("prompt", "problem")


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


@pytest.mark.parametrize("column", ["subject", "type", "subfield"])
def test_the_subject_is_kept(column):
    assert to_problem({"problem": "?", "answer": "4", column: "Algebra"}).subject == "Algebra"


def test_the_same_words_have_the_same_id_whatever_the_spacing_and_case():
    ids = {
        to_problem({"problem": text, "answer": "4"}).id
        for text in ("What  is it?", "what is it?\n")
    }
    assert len(ids) == 1


@pytest.mark.parametrize("field", ["problem", "reference", "solution", "subject", "level"])
def test_a_column_that_params_name_and_the_row_lacks_is_a_fault(field):
    fields = {"question": "How many?", "answer": "4", "how": WORKING}
    fault = _fault(fields, columns={field: "typo"})
    assert (fault.reason, fault.field) == ("missing_field", field)
    assert "`typo`" in str(fault)
