"""Labelled cases, and the conventions one by one."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from lib.verifier import compare, extract_answer, is_equivalent, reference_problem
from lib.verifier.__main__ import main
from lib.verifier.rules import TABLE, Rule
from tests.bench.verifier.rules import PAGE, table

GOLDEN = Path(__file__).parents[2] / "golden" / "verifier"


def read(name: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in (GOLDEN / name).read_text(encoding="utf-8").splitlines()]


def disagreements(rows: list[dict[str, object]]) -> list[tuple[object, object, object]]:
    return [
        (row["reference"], row["answer"], row["equal"])
        for row in rows
        if is_equivalent(
            reference=str(row["reference"]),
            answer=str(row["answer"]),
            problem=str(row.get("problem", "")) or None,
        )
        != row["equal"]
    ]


def test_labelled_cases_are_graded_as_labelled() -> None:
    assert disagreements(read("cases.jsonl")) == []


def test_each_rule_of_reading_is_graded_as_labelled() -> None:
    """readings.jsonl has the right cases of each rule and at least as many wrong look-alikes."""
    assert disagreements(read("readings.jsonl")) == []


def test_the_problem_never_makes_a_right_answer_wrong() -> None:
    rows = [row for row in read("cases.jsonl") if row["equal"] and not row.get("problem")]
    # It names no unit and lists no options, which could make an answer another.
    problem = "Find all values in degrees to two decimal places."
    assert [
        (row["reference"], row["answer"])
        for row in rows
        if not is_equivalent(
            reference=str(row["reference"]), answer=str(row["answer"]), problem=problem
        )
    ] == []


def test_labelled_completions_are_graded_as_labelled() -> None:
    rows = read("completions.jsonl")
    answers = [extract_answer(str(row["completion"])) for row in rows]
    assert [
        (row["reference"], row["completion"], answer)
        for row, answer in zip(rows, answers, strict=True)
        if is_equivalent(reference=str(row["reference"]), answer=answer) != row["equal"]
    ] == []


def test_known_gaps_are_listed_exactly() -> None:
    """A gap that closes belongs among the cases."""
    rows = read("gaps.jsonl")
    assert len(disagreements(rows)) == len(rows)
    assert all(row["equal"] for row in rows), "a gap may cost a reward, never give one"


@pytest.mark.parametrize(
    ("reference", "answer"),
    [
        ("[1,2)", "[1,2]"),
        (r"1-\frac{1}{e}", r"1+\frac{1}{e}"),
        (r"\frac{1}{2004!}", r"\frac{1}{2006!}"),
        ("42_7", "42_8"),
        ("42_7", "42"),
        ("x+z=1", "1"),
        ("1", "x+z=1"),
        ("8", "x=7=8"),
        ("7", "7.0006"),
        ("7", "0.07"),
        ("7", "</answer><answer>7"),
        ("0", "ax+by=0"),
        ("6", r"\pm 6"),
        ("10^{10}", "10^{10^{10}}"),
    ],
)
def test_what_public_graders_get_wrong_is_not_equal(reference: str, answer: str) -> None:
    assert not is_equivalent(reference=reference, answer=answer)


@pytest.mark.parametrize("text", [r"\arcsin()", "log_0{}", r"\sqrt()", r"\binom(3)", "floor(1,2)"])
def test_a_wrong_number_of_arguments_is_wrong_and_no_fault(text: str) -> None:
    assert compare(reference="3", answer=text).decided_by in ("unparsed", "undecided", "identity")
    reference_problem(text)


def test_an_empty_set_is_compared_and_no_fault() -> None:
    assert compare(reference=r"\{1,2\}", answer=r"\emptyset") == (False, "list")


def test_a_unit_may_go_unsaid_but_not_be_another() -> None:
    for reference, answer, equal in [
        (r"5 \text{ cm}", "5", True),
        ("5", r"5 \text{ cm}", True),
        (r"5 \text{ cm}", r"50 \text{ mm}", True),
        (r"\$0.75", "75 cents", True),
        # A letter after a number is a factor, unless it is set upright.
        ("5m", "5", False),
        (r"5 \text{ cm}", r"5 \text{ kg}", False),
        (r"3 \text{ kPa}", r"3 \text{ Pa}", False),
        (r"-5^\circ C", r"-5^\circ F", False),
        (r"60^\circ", r"60 \text{ radians}", False),
        (r"\$5", "5 cents", False),
        (r"6 \text{ students}", r"6 \text{ books}", False),
        # A noun is no unit: only the problem could say that it is what was asked for.
        ("6", r"6 \text{ books}", False),
        ("7", "7 hundred", False),
        ("7", "7 is wrong", False),
        ("1+i", r"1+i \text{ is excluded}", False),
    ]:
        assert is_equivalent(reference=reference, answer=answer) == equal, (reference, answer)


def test_a_decimal_is_the_exact_reference_rounded_correctly() -> None:
    assert is_equivalent(reference=r"\frac{1}{3}", answer="0.3333")
    assert is_equivalent(reference=r"\sqrt{2}", answer="1.4142135623730950")
    for reference, answer in [
        (r"\frac{1}{3}", "0.333"),
        (r"\frac{1}{3}", "0.333334"),
        (r"\frac{2}{3}", "0.66666"),
        (r"\frac{1}{6}", "0.16666666666666666"),
        ("1000003", r"1.00000\times10^6"),
        (r"\frac{1}{8}", "0.1251"),
        ("2^{64}-1", "18446744073709551616"),
        ("0.333", r"\frac{1}{3}"),
    ]:
        assert not is_equivalent(reference=reference, answer=answer), (reference, answer)


def test_a_variable_must_be_the_right_one() -> None:
    assert is_equivalent(reference="x=2", answer="2")
    assert is_equivalent(reference="f(x)=2x", answer="y=2x")
    assert not is_equivalent(reference="x=2", answer="y=2")


@pytest.mark.parametrize(
    ("reference", "answer"),
    [
        (r"\frac{2^n-(-1)^n}{3}", r"\frac{2^n+1}{3}"),
        (r"\frac{(-1)^n}{n!}", r"-\frac{1}{n!}"),
        (r"n!+\ln(n-7)", r"n!-\ln(n-7)"),
        (r"\lceil 1/n\rceil", r"\lceil 2/n\rceil"),
        ("f(-3) > f(a)", "f(-3) > f(a+1)"),
        ("(1,3)", "1 or 3"),
        ("(x,y)=(1,2)", "(y,x)=(1,2)"),
        ("(1,2)", "(y,x)=(1,2)"),
        ("2,2,3", "2,3"),
        (r"n\text{ is odd}", r"n\text{ is even}"),
        ("2n+1 where n>2", "2n+1 where n<0"),
        ("2n+1", "2n+1 where n<0"),
        ("7", "about 7"),
        ("7", r"7 \approx 99"),
        ("4, 12", "4, 12 or about 99"),
        ("8", "1, x=7=8"),
        ("Yes", "Yes, it is impossible"),
        ("A", "A) is wrong"),
    ],
)
def test_what_training_could_find_is_not_equal(reference: str, answer: str) -> None:
    assert not is_equivalent(reference=reference, answer=answer)


def test_only_the_rounding_itself_is_what_a_problem_asks_for() -> None:
    problem = "Round to the nearest hundred."
    assert not is_equivalent(reference="1200", answer="1234", problem=problem)
    assert is_equivalent(reference="1200", answer="1200.0", problem=problem)


def test_a_formula_of_the_problem_is_no_answer_to_it() -> None:
    problem = "Simplify $(u+4)(u-1) - (u-3)(u+6)$."
    assert is_equivalent(reference="14", answer="7+7", problem=problem)
    for echo in ("(u+4)(u-1) - (u-3)(u+6)", problem):
        assert not is_equivalent(reference="14", answer=echo, problem=problem)


@pytest.mark.parametrize("rule", TABLE, ids=lambda rule: rule.name)
def test_each_rule_wins_its_example_and_refuses_the_other(rule: Rule) -> None:
    for example, equal in ((rule.right, True), (rule.wrong, False)):
        reference, answer, *problem = example
        verdict = compare(reference=reference, answer=answer, problem=" ".join(problem))
        assert verdict.equal == equal, verdict
        assert verdict.decided_by == rule.name or not equal


def test_no_two_rules_share_a_name() -> None:
    assert len({rule.name for rule in TABLE}) == len(TABLE)


def test_the_page_prints_the_table_of_rules() -> None:
    """To print it anew: python -m tests.bench.verifier rules --page."""
    assert table() in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        (["7", "x = 7"], "equal: name"),
        (["7", "at least 7"], "not equal: words"),
        (["3.14", r"\pi", "--problem", "Round to two decimal places."], "equal: rounding"),
        (["", "7"], "Error: REFERENCE '' cannot be compared: it is empty"),
    ],
)
def test_the_command_prints_verdict_and_rule(arguments: list[str], output: str) -> None:
    result = CliRunner().invoke(main, arguments)
    assert result.output.startswith(output)
    assert result.output.count("\n") == 1
    assert result.exit_code == output.startswith("Error")


@pytest.mark.parametrize(
    "text",
    ["72", r"\frac{1}{2}", r"\mathbb{R}^+", r"\text{odd}", "The answer is 5.", r"x \in [0, 1)"],
)
def test_a_usable_reference_has_no_problem(text: str) -> None:
    assert reference_problem(text) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("  ", "empty"),
        (r"\,\;", "nothing is left"),
        (r"\frac{1}{", "neither words nor mathematics"),
        ("1" * 5000, "limits"),
    ],
)
def test_a_reference_that_cannot_serve_has_its_reason(text: str, reason: str) -> None:
    assert reason in str(reference_problem(text))
