"""Labelled cases, and the conventions one by one."""

import time

import pytest

from bench.verifier.graders import disagreements
from bench.verifier.references import GOLDEN, rows_of
from bench.verifier.rules import PAGE, table
from reckon_verifier import (
    compare,
    extract_answer,
    is_equivalent,
    is_placeholder,
    reference_problem,
)
from reckon_verifier.__main__ import main
from reckon_verifier.rules import TABLE


@pytest.mark.parametrize("file", ["cases", "readings"])
def test_labelled_cases_are_graded_as_labelled(file):
    """readings.jsonl has right cases of each rule and wrong look-alikes."""
    assert disagreements(rows_of(GOLDEN / f"{file}.jsonl")) == []


def test_the_problem_never_makes_a_right_answer_wrong():
    rows = [
        row for row in rows_of(GOLDEN / "cases.jsonl") if row["equal"] and not row.get("problem")
    ]
    # A unit or options in the problem could change an answer; this one has neither.
    problem = "Find all values in degrees to two decimal places."
    verdicts = [
        compare(reference=row["reference"], answer=row["answer"], problem=problem) for row in rows
    ]
    assert [
        (row["reference"], row["answer"])
        for row, verdict in zip(rows, verdicts, strict=True)
        # A unit that the problem does not ask for may not be added.
        if not verdict.equal and verdict.decided_by != "unit"
    ] == []


def test_labelled_completions_are_graded_as_labelled():
    rows = rows_of(GOLDEN / "completions.jsonl")
    rows_with_answers = [row | {"answer": extract_answer(row["completion"])} for row in rows]
    assert disagreements(rows_with_answers) == []


def test_known_gaps_are_listed_exactly():
    """Every gap is still open; a closed one belongs among the cases."""
    rows = rows_of(GOLDEN / "gaps.jsonl")
    assert len(disagreements(rows)) == len(rows)
    assert all(row["equal"] for row in rows), "a gap may cost a reward, never give one"


@pytest.mark.parametrize("text", [r"\arcsin()", "log_0{}", r"\sqrt()", r"\binom(3)", "floor(1,2)"])
def test_a_wrong_number_of_arguments_is_wrong_and_no_fault(text):
    assert compare(reference="3", answer=text).decided_by in ("unparsed", "undecided", "identity")
    reference_problem(text)


@pytest.mark.parametrize("text", [r"\(", r"\[", r"\(\[", "$", r"$\text{"])
def test_a_problem_of_unclosed_brackets_takes_no_time(text):
    before = time.process_time()
    compare(reference=r"k\pi", answer=r"n\pi", problem=text * 20_000)
    assert time.process_time() - before < 5


def test_a_formula_of_the_problem_is_no_answer_to_it():
    problem = "Simplify $(u+4)(u-1) - (u-3)(u+6)$."
    assert is_equivalent(reference="14", answer="7+7", problem=problem)
    formula, other = "(u+4)(u-1) - (u-3)(u+6)", "-(u+6)(u-3) + (u-1)(u+4)"
    wrapped = [f"({formula})", f"0+{formula}", f"x = {formula}", rf"1\cdot({formula})"]
    undone = [f"{formula}+1-1", f"-(-({formula}))", rf"\frac{{2({formula})}}{{2}}", other]
    for echo in (formula, problem, *wrapped, *undone):
        verdict = compare(reference="14", answer=echo, problem=problem)
        assert verdict == (False, "echo"), echo
    # A side of an equation, without its name; not if it is the reference.
    for reference, equal in (("1600", False), ("361+441+2(21)(19)", True), ("1600=x", False)):
        problem = r"\[441+2(21)(19)+361=x.\] Solve for $x$."
        answer = "441+2(21)(19)+361"
        assert is_equivalent(reference=reference, answer=answer, problem=problem) == equal
    # A part of a longer number is no copy.
    problem = r"The side is $12\sqrt{3}$. Find the height."
    assert is_equivalent(reference=r"\sqrt{12}", answer=r"2\sqrt{3}", problem=problem)


def test_cancellation_inside_functions_is_no_proof():
    tiny = "2^{-50}"
    for _ in range(8):
        # About t²/2: each step doubles the digits that cancel.
        tiny = rf"1-\cos({tiny})"
    # 2π, since the logarithm's argument is just below the negative axis.
    answer = rf"|\ln(-1-i({tiny}))-i\pi|"
    assert not is_equivalent(reference="0", answer=answer)
    assert not is_equivalent(reference="5", answer=f"5+{answer}")
    assert is_equivalent(reference=r"\sin^2 1", answer=r"\frac{1-\cos 2}{2}")


@pytest.mark.parametrize("rule", TABLE, ids=lambda rule: rule.name)
def test_each_rule_wins_its_example_and_refuses_the_other(rule):
    for example, equal in ((rule.right, True), (rule.wrong, False)):
        reference, answer, *problem = example
        verdict = compare(reference=reference, answer=answer, problem=" ".join(problem))
        assert verdict.equal == equal, verdict
        assert verdict.decided_by == rule.name or not equal


def test_no_two_rules_share_a_name():
    assert len({rule.name for rule in TABLE}) == len(TABLE)


def test_the_page_prints_the_table_of_rules():
    """`python -m bench.verifier rules --page` prints the current table."""
    assert table() in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        (["7", "x = 7"], "equal: name"),
        (["7", "at least 7"], "not equal: words"),
        (["3.14", r"\pi", "--problem", "Round to two decimal places."], "equal: rounding"),
    ],
)
def test_the_command_prints_verdict_and_rule(arguments, output, capsys):
    main(arguments)
    printed = capsys.readouterr().out
    assert printed.startswith(output)
    assert printed.count("\n") == 1


def test_the_command_refuses_a_reference_that_cannot_serve():
    with pytest.raises(SystemExit, match=r"REFERENCE .* empty"):
        main(["", "7"])


def test_nothing_equals_a_placeholder():
    fillers = ["proof", "Proof.", "notfound", "not found", "No answer", "None", "nan", "NaN"]
    fillers += ["null", "N/A", "<NA>", "", " ", "[]", '[""]', "['None']", "{}", "()", '"null"', "$"]
    for text in fillers:
        assert is_placeholder(text), text
        assert not is_equivalent(reference=text, answer=text), text
        assert reference_problem(text), text
    answers = ["none", r"\text{None}", "NA", "(0, 1)", r"\emptyset", r"\{\}", "[1]", "()()", "no"]
    for text in [*answers, "no solution", "undefined", "proofs", "(a, b)", "[None, 5]", "0"]:
        assert not is_placeholder(text), text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("  ", "empty"),
        (r"\,\;", "nothing is left"),
        (r"\frac{1}{", "neither words nor mathematics"),
        ("1" * 5000, "limits"),
        *((text, "None") for text in ("72", r"\mathbb{R}^+", r"\text{odd}", r"x \in [0, 1)")),
    ],
)
def test_only_a_reference_that_cannot_serve_has_a_reason(text, reason):
    assert reason in str(reference_problem(text))
