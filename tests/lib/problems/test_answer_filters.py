import pytest

from lib.problems.answer_filters import is_numeric, keep_correct, keep_numeric
from lib.problems.drops import Drops
from lib.problems.schema import Problem


@pytest.mark.parametrize("text", ["5", "-5", "1,234", "0.5", ".5", "1e6", "$12", "−3"])
def test_integers_and_decimals_are_numeric(text):
    assert is_numeric(text)


@pytest.mark.parametrize("text", ["", "x", "1/2", "\\frac{1}{2}", "5 km", "1,23", "(1, 2)", "e"])
def test_everything_else_is_not(text):
    assert not is_numeric(text)


def test_answers_that_are_no_number_go_and_are_shown(table_of):
    drops = Drops()
    table = table_of(
        [
            Problem.create(problem="a", reference="5"),
            Problem.create(problem="b", reference="\\pi"),
        ]
    )
    assert [problem.problem for problem in keep_numeric(table, drops=drops)] == ["a"]
    assert drops.examples["answer_not_numeric"][0]["found"] == "\\pi"


def test_workings_that_come_to_something_else_go_and_are_shown(table_of):
    drops = Drops()
    table = table_of(
        [
            Problem.create(problem="a", reference="5", solution="so \\boxed{5}"),
            Problem.create(problem="b", reference="5", solution="so \\boxed{6}"),
            Problem.create(problem="c", reference="0.5", solution="so \\boxed{\\frac{1}{2}}"),
            Problem.create(problem="d", reference="5"),
        ]
    )
    assert [problem.problem for problem in keep_correct(table, drops=drops)] == ["a", "c", "d"]
    found = drops.examples["solution_not_correct"][0]["found"]
    assert found == "the working comes to 6, the reference is 5"
