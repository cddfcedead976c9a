import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.problems.answers import Worked, is_bare, plain_number, read_worked


@pytest.mark.parametrize(
    ("text", "worked"),
    [
        (
            "He sold 48/2 = <<48/2=24>>24 clips.\n#### 72",
            Worked("72", "He sold 48/2 = 24 clips."),
        ),
        ("It costs $<<3*4=12>>12.\n#### $1,234.50", Worked("1234.50", "It costs $12.")),
        ("So.\n#### -7", Worked("-7", "So.")),
        ("#### 5", Worked("5", "")),
        (
            "So $x = \\boxed{\\frac{1}{2}}$.",
            Worked("\\frac{1}{2}", "So $x = \\boxed{\\frac{1}{2}}$."),
        ),
        ("First \\boxed{1}, so \\boxed{2}", Worked("2", "First \\boxed{1}, so \\boxed{2}")),
        ("$\\boxed{42}$", Worked("42", "")),
        ("\\[ \\boxed{42}. \\]", Worked("42", "")),
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


@pytest.mark.parametrize(
    ("text", "plain"),
    [("$5", "5"), ("-$5.00", "-5.00"), ("−3", "-3"), ("18.", "18"), ("1/2", "1/2"), ("x", "x")],
)
def test_a_number_loses_its_trimmings_and_other_text_keeps_them(text, plain):
    assert plain_number(text) == plain


@pytest.mark.parametrize("text", ["34", "\\frac{1}{2}", "(3, 4]", "\\text{no real solution}", "$5"])
def test_a_short_line_is_a_bare_answer(text):
    assert is_bare(text)


@pytest.mark.parametrize(
    "text", ["We add both sides and get 5.", "5\nbecause", "x" * 500, "then so it is 4"]
)
def test_prose_lines_and_long_text_are_not(text):
    assert not is_bare(text)


def test_a_wall_of_white_space_takes_no_time_to_speak_of():
    """A pattern that began with white space was quadratic in it."""
    assert read_worked("Add." + " " * 200_000 + "then stop") is None
    assert read_worked("Add.\n#### 1,234 \n\n").reference == "1234"
