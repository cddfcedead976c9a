"""The audit finds what earns as much as the right answer, and is silent on sound rewards."""

import itertools

import pytest
from click.testing import CliRunner

from commands.audit_reward import main
from lib.artifacts.problems import Problem, write_problems
from lib.prompts import prompt_format
from lib.rewards.audit import audit
from lib.rewards.functions import rewards_of
from lib.rewards.grading import Grading
from reckon_verifier import extract_answer, is_equivalent

ROWS = [("What is 6*7?", "42"), ("How many are 3 + 8?", "11"), ("Is 9 a square? What root?", "3")]
FRACTION = ("What is 1/2 + 1/3?", r"\frac{5}{6}")


def problem(text, reference):
    return Problem(
        id=text, problem=text, reference=reference, solution="So.", subject="", level=1, tags=()
    )


PROBLEMS = [problem(*row) for row in ROWS]


def is_right(text, reference):
    return is_equivalent(reference=reference, answer=extract_answer(text))


FORMULAS = [
    *ROWS,
    FRACTION,
    ("What is 3 - 3?", "0"),
    ("Expand 3(x + 1) - 2.", "3x + 1"),
    ("Where does the line meet the axis?", "(2, -3)"),
    ("For which x?", r"[1, 4) \cup (7, \infty)"),
    ("How long is the diagonal?", r"3\sqrt{13}"),
    ("What is the angle?", r"\frac{\pi}{3}"),
    ("Who is the fastest?", r"\text{Evelyn}"),
]

# Each pays a right answer 1; the attempt that it also pays.
LOOPHOLES = {
    "nothing": lambda text, reference: is_right(text, reference) or not text,
    "a very long text": lambda text, reference: is_right(text, reference) or len(text) > 999,
    "only the format's tags": lambda text, reference: (
        is_right(text, reference)
        or ("<answer>" in text and not any(map(str.isalnum, text.replace("answer", "")[24:])))
    ),
    "The answer is 5": lambda text, reference: (extract_answer(text) or "").isdigit(),
    "signs": lambda text, reference: is_right(text.replace("-", ""), reference),
    "second answers": lambda text, reference: reference in text,
    "integers": lambda text, reference: (
        len(extract_answer(text) or "") == len(reference) and not set(text) & set("-+")
    ),
    "another problem's answer": lambda text, reference: "</answer>" in text,
}


def grading(judge, form="r1_zero"):
    made = Grading(prompt_format=prompt_format(form))

    def planted(completions, reference, **columns):
        texts = [messages[0]["content"] for messages in completions]
        return [float(judge(*pair)) for pair in zip(texts, reference, strict=True)]

    made.rewards, made.weights = [planted], [1.0]
    return made


@pytest.mark.parametrize("name", LOOPHOLES)
def test_a_planted_loophole_is_found(name):
    found = audit(PROBLEMS, grading(LOOPHOLES[name]))
    assert found.unlearnable == []
    assert len(found.attempts[name][1]) == len(PROBLEMS)
    assert not found.passed


def test_a_sound_reward_passes():
    found = audit([*PROBLEMS, problem(*FRACTION)], grading(is_right))
    assert found.passed
    assert found.best == 1
    assert all(mean == 0 for mean, _ in found.attempts.values())


def test_a_right_answer_that_earns_less_is_listed():
    def integers_only(text, reference):
        return is_right(text, reference) and reference.isdigit()

    found = audit([*PROBLEMS, problem(*FRACTION)], grading(integers_only))
    assert [each.reference for each, _ in found.unlearnable] == [FRACTION[1]]


def test_a_reward_that_depends_on_the_order_is_named():
    count = itertools.count()

    def first_half(text, reference):
        return is_right(text, reference) and next(count) < len(PROBLEMS)

    assert not audit(PROBLEMS, grading(first_half)).is_stable


@pytest.mark.parametrize(
    ("stack", "form"), [("tiny", "r1_zero"), ("boxed", "boxed"), ("r1_zero", "r1_zero"),
                        ("s0", "working_out"), ("s1", "xml"), ("s4", "working_out")]
)  # fmt: skip
def test_the_stacks_pass_on_integers(stack, form, smoke):
    settings = smoke.reward.settings(max_completion_tokens=400)
    sound = Grading(rewards_of(stack), prompt_format=prompt_format(form), **settings)
    problems = PROBLEMS if stack.startswith("s") else [problem(*row) for row in FORMULAS]
    found = audit(problems, sound)
    assert found.passed, found
    # The changes of reckon_verifier/wrong, and seven others.
    assert len(found.attempts) >= 25


def test_the_command_lists_rows_and_fails_on_a_fault(tmp_path, in_root):
    path = tmp_path / "set.jsonl"
    write_problems(path, [*PROBLEMS, problem(*FRACTION)])
    done = CliRunner().invoke(main, ["tiny", "--set", str(path)])
    assert done.exit_code == 0, done.output
    assert "another problem's answer" in done.output
    wordy = "plugins/rewards/examples.py:brevity"
    assert CliRunner().invoke(main, [wordy, "--set", str(path)]).exit_code == 1
    boxed = ["boxed", "--set", str(path), "--prompt-format", "boxed"]
    assert CliRunner().invoke(main, boxed).exit_code == 0
    assert CliRunner().invoke(main, ["none", "--set", str(path)]).exit_code == 2
