"""A rollout's form and answer are graded separately."""

import pytest

from lib.prompts import prompt_format
from lib.prompts.formats import PromptFormat, TaggedFormat
from lib.rewards.grading import Grading
from lib.rewards.rollout import Rollout, call_metrics
from lib.rewards.stacks.r1_zero import r1_zero_reward_fn

FORMAT = prompt_format("working_out")


def rollout(completion: str, reference: str, prompt_format: PromptFormat = FORMAT) -> Rollout:
    return Rollout(completion=completion, reference=reference, prompt_format=prompt_format)


@pytest.mark.parametrize(
    ("form", "completion", "label"),
    [
        ("working_out", "6 · 12<end_working_out><SOLUTION>72</SOLUTION>", "11"),
        ("working_out", "6 · 12<end_working_out><SOLUTION>71</SOLUTION>", "10"),
        ("working_out", "6 · 12, so the answer is 72.", "01"),
        ("working_out", "I give up", "00"),
        ("boxed", r"6 · 12 is \boxed{72}", "11"),
        ("boxed", r"6 · 12 is \boxed{71}", "10"),
        ("boxed", "6 · 12, so the answer is 72.", "01"),
        ("boxed", "I give up", "00"),
        ("boxed", r"6 · 12 is -\boxed{72}", "10"),
        ("working_out", r"x<end_working_out><SOLUTION>-\boxed{72}</SOLUTION>", "10"),
        ("working_out", r"x<end_working_out><SOLUTION>$\boxed{72}$</SOLUTION>", "11"),
    ],
)
def test_the_four_classes(form, completion, label):
    graded = rollout(completion, "72", prompt_format(form))
    assert (graded.label, f"{graded.format_ok:d}{graded.answer_ok:d}") == (label, label)


@pytest.mark.parametrize(
    ("completion", "strict"),
    [
        ("6 · 12<end_working_out><SOLUTION>72</SOLUTION>", True),
        ("6 · 12<end_working_out><SOLUTION>72</SOLUTION><SOLUTION>72</SOLUTION>", False),
        ("6<end_working_out>12<end_working_out><SOLUTION>72</SOLUTION>", False),
        ("6 · 12 <SOLUTION>72</SOLUTION>", False),
    ],
)
def test_a_strict_verdict_wants_the_form_as_a_whole(completion, strict):
    graded = rollout(completion, "72")
    assert (graded.answer_ok, graded.strict_ok) == (True, strict)


def test_a_grade_reports_the_answer_and_the_deciding_rule():
    graded = rollout("<end_working_out><SOLUTION>7.0</SOLUTION>", "7")
    assert (graded.answer, graded.verdict.decided_by) == ("7.0", "number")
    assert rollout("", "7").verdict.decided_by == "no answer"


def test_calls_are_counted_over_completions_calls_and_right_answers():
    own_format = prompt_format("xml", tool="calculator")
    rollouts = [
        rollout(
            f"<reasoning>\n{calls}\n</reasoning>\n<answer>\n{answer}\n</answer>\n", "5", own_format
        )
        for calls, answer in (
            ("<calc>2 + 3</calc>=5", "5"),
            ("2 + 3", "5"),
            ("<calc>2 * 3</calc>=6, <calc>two</calc>=?", "6"),
        )
    ]
    counted = {"calls/mean": (3, 3), "calls/wrong": (1, 3)}
    assert call_metrics(rollouts) == {**counted, "calls/right": (1, 2)}
    assert call_metrics(rollouts, judged=False) == counted
    assert call_metrics([rollout("5", "5")]) == {}


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize(
    ("response", "rewards"),
    [
        ("hm </think> <answer>1/2</answer>", (1.0, 1.0, 1.0, "11")),
        (r"hm </think> <answer>\boxed{0.5}</answer>", (1.0, 1.0, 1.0, "11")),
        ("hm </think> <answer>1/3</answer>", (1.0, 0.0, 0.0, "10")),
        # The course's function removes the closing tag and reads on behind it.
        ("hm </think> <answer> 1/2 </answer>\n", (1.0, 1.0, 1.0, "11")),
        ("hm </think> <answer> 1/2 </answer> more text", (1.0, 0.0, 0.0, "10")),
        ("hm </think><answer>1/2</answer>", (0.0, 0.0, 0.0, "01")),
        ("hm </think> <answer>1/2", (0.0, 0.0, 0.0, "01")),
        (r"\boxed{1/2}", (0.0, 0.0, 0.0, "01")),
        ("hm", (0.0, 0.0, 0.0, "00")),
    ],
)
def test_r1_zero_needs_the_strict_form(response, rewards, fast):
    scored = r1_zero_reward_fn(response, r"\frac{1}{2}", fast=fast)
    assert list(scored) == ["format_reward", "answer_reward", "reward", "class"]
    assert tuple(scored.values()) == rewards


@pytest.mark.parametrize(
    ("answer", "references", "fast", "reward"),
    [
        ("3", 3, True, 1.0),
        ("3", ["2", "3"], True, 1.0),
        ("3", ["2", "4"], True, 0.0),
        # Only the thorough mode asks the symbolic worker.
        (r"\int_0^1 2x \, dx", "1", True, 0.0),
        (r"\int_0^1 2x \, dx", "1", False, 1.0),
    ],
)
def test_r1_zero_takes_numbers_lists_and_modes(answer, references, fast, reward):
    response = f"</think> <answer>{answer}</answer>"
    assert r1_zero_reward_fn(response, references, fast=fast)["reward"] == reward


@pytest.mark.parametrize("name", ["working_out", "xml", "r1_zero"])
def test_empty_marks_are_neither_a_form_nor_an_answer(name):
    """A bare frame earns nothing, and no number of the solution counts as the answer."""
    own_format = prompt_format(name)
    completion = own_format.target(solution="3 + 1 = 4", reference="")
    graded = rollout(completion, "4", own_format)
    assert (graded.label, graded.answer) == ("00", None)
    rewards = Grading(("format", "answer"), prompt_format=own_format).rewards
    assert [reward([None], [completion], reference=["4"]) for reward in rewards] == [[0.0], [0.0]]


class Reversed(TaggedFormat):
    """A task: the answer is the reference, backwards."""

    def right(self, rollout):
        return (rollout.parsed.answer or "") == rollout.reference[::-1]


@pytest.mark.parametrize(("answer", "right"), [("cba", True), ("abc", False), ("1/2", False)])
def test_a_tasks_verdict_replaces_the_verifiers(answer, right):
    task = Reversed("task", ("<a>", "</a>"), ("<b>", "</b>"), opened_by_prompt=False)
    grading = Grading(["tiny:answer", "s4:s4_correctness"], prompt_format=task)
    graded = grading.rollout(f"<a>x</a><b>{answer}</b>", reference="abc")
    grading.score([graded])
    assert (graded.verdict.decided_by, graded.answer_ok, graded.strict_ok) == ("task", right, right)
    assert graded.rewards == (float(right), 2.0 * right)
