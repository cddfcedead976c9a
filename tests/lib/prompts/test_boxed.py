import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.prompts import prompt_format
from lib.prompts.boxes import last_box


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("\\boxed{72}", "72"),
        ("first \\boxed{1}, then \\boxed{2}", "2"),
        ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("\\boxed{\\boxed{3}}", "\\boxed{3}"),
        ("\\fbox{4}", "4"),
        ("\\framebox{204}", "204"),
        ("\\boxed { 5 }", "5"),
        ("\\boxed{\\{1, 2\\}}", "\\{1, 2\\}"),
        ("\\boxed{6} and an unfinished \\boxed{7", "6"),
        ("\\boxed{", None),
        ("boxed{8}", None),
        ("", None),
    ],
)
def test_the_last_closed_box_wins_with_all_its_braces(text, content):
    box = last_box(text)
    assert (box and box.content) == content


def test_a_box_knows_where_it_stands():
    text = "so \\boxed{72}."
    box = last_box(text)
    assert text[box.start : box.end] == "\\boxed{72}"


@given(st.text(st.sampled_from("\\{}bx "), max_size=200))
def test_arbitrary_braces_neither_raise_nor_leave_the_text(text):
    box = last_box(text)
    assert box is None or 0 <= box.start < box.end <= len(text)


@pytest.mark.parametrize(
    ("completion", "reasoning"),
    [
        ("Add.\n\\boxed{4}\n", "Add."),
        ("\\boxed{4}", None),
        ("So \\boxed{4}", "So \\boxed{4}"),
        ("\\boxed{4}\nThat is it.", "\\boxed{4}\nThat is it."),
    ],
)
def test_only_a_box_on_the_last_line_is_no_reasoning(completion, reasoning):
    assert prompt_format("boxed").parse(completion).reasoning == reasoning
