"""The calculator's arithmetic, a tool's limits, and the calls of solutions."""

import re
import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.core.errors import UserError
from lib.prompts import prompt_format
from lib.prompts.tools import TOOLS, Tool, calculate, num_calls, spans, with_calls

CALCULATOR = TOOLS["calculator"]


def result(call: str, tool: Tool = CALCULATOR) -> str:
    return tool.result(f"so {tool.open}{call}{tool.close}", name="plugins/tools/own.py:tool")


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("12*7", "=84"),
        ("48 / 2", "=24"),
        ("-(2 + 3) * --4", "=-20"),
        ("2-3-4", "=-5"),
        ("8/2/2", "=2"),
        ("0.1 + 0.2", "=0.3"),
        ("-1/8", "=-0.125"),
        ("1/3 + 1/3", "=2/3"),
        ("9" * 24 + "*" + "9" * 25, f"={(10**24 - 1) * (10**25 - 1)}"),
    ],
)
def test_arithmetic_is_exact(call, expected):
    assert result(call) == expected


@pytest.mark.parametrize(
    "call",
    [
        " ",
        "1/0",
        "2**3",
        "2+",
        "(2",
        "2)",
        "1 2",
        "x",
        "1_0",
        "0x1",
        "٣",
        "1e3",
        ".",
        "+1",
        "1/(2-2)",
        "__import__('os')",
    ],
)
def test_a_call_beyond_the_grammar_is_wrong(call):
    assert result(call) == result("(" * 50) == result("1+" * 24 + "123") == "=?"


NUMBERS = st.integers(0, 99).map(str)
EXPRESSIONS = st.recursive(
    NUMBERS,
    lambda inner: st.builds("({} {} {})".format, inner, st.sampled_from("+-*/"), inner),
    max_leaves=5,
)


@given(EXPRESSIONS)
def test_values_are_those_of_fractions(text):
    """Python computes the same text with Fractions in the place of numbers."""
    try:
        value = eval(re.sub(r"\d+", r"Fraction('\g<0>')", text))
    except ZeroDivisionError:
        value = None
    if value is None or len(text) > 50:
        assert result(text) == "=?"
    else:
        assert Fraction(calculate(text)[1:]) == value


def test_a_tool_has_limits_of_calls_and_of_time():
    slow = Tool(open="<", close=">", run=lambda text: time.sleep(9) or "!", timeout_s=0.05)
    assert slow.result("<a>", name="slow") == "=?"
    few = Tool(open="<", close=">", run=lambda text: f"={text}", max_calls=2)
    assert few.result("<a>=a<b>", name="few") == "=b"
    assert few.result("<a>=a<b>=b<c>", name="few") == "=?"
    assert few.result("b>", name="few") == "=?"

    def broken(text: str) -> str:
        raise KeyError(text)

    for run, fault in ((broken, "KeyError"), (lambda text: 5, "text, not 5")):
        with pytest.raises(UserError, match=rf"own\.py.*{fault}"):
            result("a", Tool(open="<", close=">", run=run))


@pytest.mark.parametrize(
    ("solution", "expected"),
    [
        ("5 + 7 = 12\n12 * 2 = 24", "<calc>5 + 7</calc>=12\n<calc>12 * 2</calc>=24"),
        ("She has $5*3=$15, then 15/2=7.5.", None),
        ("2 + 3 = 6, x = 5, 2x + 1 = 5, 12 = 12", "2 + 3 = 6, x = 5, 2x + 1 = 5, 12 = 12"),
        ("1,000 + 1 = 1,001", "<calc>1000 + 1</calc>=1001"),
        (
            "5 x $6 = $30 and .5 x 3, 4 + .5 = 4.5.",
            "<calc>5 * 6</calc>=30 and .5 x 3, <calc>4 + .5</calc>=4.5.",
        ),
        ("4x+12 = 56, 100/3 = 33, 1/2 = 50%", "4x+12 = 56, 100/3 = 33, 1/2 = 50%"),
        ("<calc>1+1</calc>=2 and 1 + 1 = 2", "<calc>1+1</calc>=2 and 1 + 1 = 2"),
    ],
)
def test_confirmed_equations_become_calls(solution, expected):
    expected = expected or "She has $<calc>5*3</calc>=15, then <calc>15/2</calc>=7.5."
    assert with_calls(solution) == expected
    cut = list(spans(expected, "calculator"))
    assert "".join(text for text, _ in cut) == expected
    assert num_calls(expected, "calculator") == (sum(not own for _, own in cut), 0)


def test_a_solution_with_another_result_is_refused():
    with pytest.raises(UserError, match="'=2'"):
        list(spans("<calc>1+1</calc>=3", "calculator"))
    assert list(spans("<calc>1+1</calc>=3", "")) == [("<calc>1+1</calc>=3", True)]
    assert num_calls("<calc>1+</calc>=?", "calculator") == (1, 1)
    with pytest.raises(UserError, match=r"prompt\.tool"):
        prompt_format("xml", tool="abacus")


def test_a_solution_has_no_more_calls_than_the_tool_runs():
    text = with_calls("\n".join(f"{n} + 1 = {n + 1}" for n in range(20)))
    assert text.count("</calc>") == TOOLS["calculator"].max_calls
    assert "".join(part for part, _ in spans(text, "calculator")) == text
