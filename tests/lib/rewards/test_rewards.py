"""Rewards: the stacks' exact values, TRL's signature, and the stacks' ranges."""

import math
import shutil

import numpy as np
import pytest
import torch

from lib.core.errors import UserError
from lib.prompts import prompt_format
from lib.rewards.functions import STACKS, _checked, rewards_of, stack_range
from lib.rewards.grading import Grading
from lib.rewards.rollout import Rollout, judged_metrics
from tests.conftest import ROOT, run_python

WORKING_OUT, XML = prompt_format("working_out"), prompt_format("xml")
S0_RIGHT = "6 · 12<end_working_out><SOLUTION>72</SOLUTION>"
S4_RIGHT = "<reasoning>\n6 · 12\n</reasoning>\n<answer>\n72\n</answer>\n"


FORMATS = {
    "s0": WORKING_OUT,
    "tiny": WORKING_OUT,
    "boxed": prompt_format("boxed"),
    "r1_zero": prompt_format("r1_zero"),
}


def values(stack: str, completion: object, reference: object = "72") -> list[float]:
    rewards = Grading(rewards_of(stack), prompt_format=FORMATS.get(stack, XML)).rewards
    return [reward([""], [completion], reference=[reference])[0] for reward in rewards]


EXACT = {
    "s0": [
        (S0_RIGHT, "3 1.5 5 3"),
        # As the source prints a completion, and its preset teaches it.
        (
            prompt_format("working_out_lines").target(solution="6 · 12", reference="72"),
            "3 1.5 5 3",
        ),
        ("<end_working_out><SOLUTION>72.0</SOLUTION>", "3 1.5 3.5 3"),
        *(
            (f"<end_working_out><SOLUTION>{answer}</SOLUTION>", f"3 1.5 {points} -1.5")
            # 10 and 20 % of 72 are 7.2 and 14.4.
            for points, answers in (("2", (65, 79)), ("1.5", (58, 64, 80, 86)), ("-2", (57, 87)))
            for answer in answers
        ),
        ("<end_working_out><SOLUTION>many</SOLUTION>", "3 1.5 -2 -1.5"),
        ("<end_working_out><SOLUTION>1e400</SOLUTION>", "3 1.5 -2 -1.5"),
        ("no tags at all", "0 -3 -2 -1.5"),
        ("<SOLUTION>72</SOLUTION>", "0 0 -2 3"),
        (S0_RIGHT + S0_RIGHT, "0 -3 -2 3"),
    ],
    "s1": [
        (S4_RIGHT, "1 0.1 0.1"),
        ("work\n#### 72", "1 0.1 0"),
        ("<answer>71</answer>", "0 0.1 0.05"),
        ("<answer>72.0000001</answer>", "1 0.1 0.05"),
        ("<answer>many</answer>", "0 0 0.05"),
        # As the source's code reads: the first answer, tags in any case and however often, and
        # after hashes the number only.
        ("<answer>72</answer> <answer>71</answer>", "1 0.1 0.05"),
        ("<answer>71</answer> <answer>72</answer>", "0 0.1 0.05"),
        ("<Reasoning>x</REASONING><ANSWER> 72 </Answer>", "1 0.1 0.1"),
        ("work\n#### 72 dollars", "1 0.1 0"),
        ("#### none\n#### -1,072.0 or 3\n#### 5", "0 0.1 0"),
        ("#### $72", "0 0 0"),
        ("<answer>72\n#### 72", "1 0.1 0.025"),
        ("nothing", "0 0 0"),
    ],
    "s4": [
        (S4_RIGHT, "2 0.5 0.5 0.5 0.5"),
        (S4_RIGHT.rstrip("\n"), "2 0.5 0.5 0.5 0.5"),  # as a completion ends
        (S4_RIGHT + "\n", "2 0.5 0 0.5 0.5"),
        (S4_RIGHT + "and more", "2 0.5 0 0 0.5"),
        ("well, " + S4_RIGHT, "2 0.5 0 0.5 0.375"),
        ("<reasoning>x</reasoning> <answer>72</answer>", "2 0.5 0 0.5 0"),
        ("<answer>\n72\n</answer>", "2 0.5 0 0 0.25"),
        ("<answer>\n7/2\n</answer>", "0 0 0 0 0.25"),
        ("<answer>\n-3\n</answer>\n<reasoning>", "0 0.5 0 0 0.375"),
        ("nothing", "0 0 0 0 0"),
    ],
    "tiny": [
        (S0_RIGHT, "1 1"),
        (S0_RIGHT.replace("72", "71"), "1 0"),
        ("the answer is 72", "0 0"),
        ("x <SOLUTION>72</SOLUTION>", "0 0"),
        ("x <end_working_out><SOLUTION>71</SOLUTION><SOLUTION>72</SOLUTION>", "0 0"),
        ("<start_working_out>x<end_working_out><SOLUTION>72</SOLUTION>", "0 0"),
        ("x </SOLUTION><end_working_out><SOLUTION>72", "0 0"),
        (S0_RIGHT + " and more", "0 0"),
        *(
            (S0_RIGHT.replace("72", filler), "0 0")
            for filler in (".", "?", r"\text{}", r"\quad", "$$", "…")
        ),
    ],
    "r1_zero": [
        ("x </think> <answer>72</answer>", "1"),
        ("x </think> <answer>71</answer>", "0"),
        ("x </think> <answer> 72 </answer> more text", "0"),
        ("the answer is 72", "0"),
    ],
    "boxed": [
        (r"so \boxed{70}. No: \boxed{72}", "1"),
        (r"so \boxed{72}. No: \boxed{70}", "0"),
        (r"so \boxed{70}, no: \boxed{72}", "0"),
        (r"so \boxed{\frac{144}{2}}.", "1"),
        (r"so -\boxed{72}", "0"),
        ("the answer is 72", "0"),
        (r"72 \boxed{}", "0"),
    ],
}
"""By stack, completions and the values of its rewards for the reference 72."""


@pytest.mark.parametrize(
    ("stack", "completion", "expected"), [(name, *row) for name in EXACT for row in EXACT[name]]
)
def test_a_stack_has_the_exact_values(stack, completion, expected):
    assert values(stack, completion) == pytest.approx([*map(float, expected.split())])


@pytest.mark.parametrize(
    ("reference", "completion", "right"),
    [
        (r"\sqrt{2}", r"\sqrt{2}", 1.0),
        (r"so $\sqrt{2}$", r"\sqrt{2}", 1.0),
        (r"\sqrt{2}", r"so $\sqrt{2}$", 1.0),
        (r"$\sqrt{2}$", r"$\sqrt{3}$", 0.0),
    ],
)
def test_math_verify_gets_dollars_around_bare_latex(reference, completion, right):
    assert values("math_verify", completion, reference)[2] == right


@pytest.mark.parametrize("stack", sorted(set(STACKS) - {"shaping"}))
def test_content_and_reference_of_any_type_are_scored(stack):
    parts = [{"type": "text", "text": text} for text in (S0_RIGHT[:20], S0_RIGHT[20:])]
    right, empty = values(stack, S0_RIGHT), values(stack, "")
    for content, expected in ((parts, right), (None, empty)):
        assert values(stack, [{"role": "assistant", "content": content}]) == expected
    assert values(stack, S0_RIGHT, 72) == right
    assert values(stack, S0_RIGHT, None) == values(stack, S0_RIGHT, "")


@pytest.mark.parametrize(
    ("names", "weights", "expected"),
    [
        (rewards_of("tiny"), None, (0.0, 2.0)),
        (rewards_of("s0"), None, (-6.5, 12.5)),
        (rewards_of("s1"), None, (0.0, 1.2)),
        (rewards_of("s4"), None, (0.0, 4.0)),
        (rewards_of("r1_zero"), None, (0.0, 1.0)),
        (rewards_of("tiny"), [0.25, 1.0], (0.0, 1.25)),
        (["check_answer"], [-1.0], (-5.0, 2.0)),
    ],
)
def test_ranges_are_the_sources_scaled_and_turned_by_weights(names, weights, expected):
    assert stack_range(names, weights or [1.0] * len(names)) == pytest.approx(expected)


def test_a_file_in_the_folder_is_a_stack(tmp_path):
    shutil.copytree(ROOT / "lib", tmp_path / "lib", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "lib/rewards/stacks/sad.py").write_text(
        "from lib.rewards.rollout import BoundedReward\n"
        "REWARDS = {'never': BoundedReward(lambda rollout: -1.0, (-1.0, 0.0))}\n"
    )
    script = (
        "from lib.prompts import prompt_format; from lib.rewards.grading import Grading;"
        "(never,) = Grading(['sad:never'], prompt_format=prompt_format('xml')).rewards;"
        "print(never(completions=['72'], reference=['72']))"
    )
    assert run_python(script, cwd=tmp_path, PYTHONPATH=str(ROOT)).stdout == "[-1.0]\n"


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("speed", r"no reward `speed`; .*r1_zero, .*format, answer"),
        ("overlong", r"reward\.max_completion_tokens: not set"),
    ],
)
def test_an_unknown_reward_and_a_missing_setting_are_named(name, fault):
    with pytest.raises(UserError, match=fault):
        Grading([name], prompt_format=XML)


def test_references_may_be_called_reference_answer():
    rewards = Grading(rewards_of("s1"), prompt_format=XML).rewards
    columns = {"completions": [S4_RIGHT], "reference_answer": ["72"]}
    assert [reward([""], **columns) for reward in rewards] == [[1.0], [0.1], [0.1]]


def test_a_missing_reference_column_is_an_error():
    (reward,) = Grading(["answer"], prompt_format=XML).rewards
    with pytest.raises(UserError, match="no column `reference`"):
        reward(prompts=[""], completions=["72"])


SHAPING = {
    "overlong": {"max_completion_tokens": 100, "overlong_cache_tokens": 20},
    "repetition": {"repetition_ngram": 2},
    "cosine_length": {
        "max_completion_tokens": 100,
        "cosine_correct": (2.0, 1.0),
        "cosine_wrong": (-10.0, 0.0),
    },
}


def one(name: str, completion: str, tokens: int, **settings: object) -> float:
    (reward,) = Grading([name], prompt_format=XML, **settings).rewards
    columns = {"reference": ["72"], "completion_ids": [[0] * tokens], "problem": ["?"]}
    return reward([""], [completion], **columns)[0]


@pytest.mark.parametrize(
    ("name", "completion", "lengths", "expected"),
    [
        # Linearly down over the cache.
        ("overlong", "72", (10, 80, 90, 100, 150), (0.0, 0.0, -0.5, -1.0, -1.0)),
        # The share of repeated n-grams.
        ("repetition", "a b c d", (4,), (0.0,)),
        ("repetition", "a b a b a b", (6,), (-3 / 5,)),
        ("repetition", "a", (1,), (0.0,)),
        # Short right and long wrong ones are preferred.
        ("cosine_length", "72", (0, 50, 100, 200), (2.0, 1.5, 1.0, 1.0)),
        ("cosine_length", "72", (25,), (1.5 + 0.5 * math.cos(math.pi / 4),)),
        ("cosine_length", "71", (0, 50, 100, 200), (-10.0, -5.0, 0.0, 0.0)),
    ],
)
def test_shaping_depends_on_length_or_repetition(name, completion, lengths, expected):
    rewards = [one(name, completion, tokens, **SHAPING[name]) for tokens in lengths]
    assert rewards == pytest.approx(expected)


def test_the_range_of_cosine_length_is_that_of_its_settings():
    assert stack_range(["cosine_length"], [1.0], **SHAPING["cosine_length"]) == (-10.0, 2.0)


@pytest.mark.parametrize(
    ("names", "form"),
    [*((rewards_of(stack), "boxed") for stack in ("s0", "s1", "s4", "r1_zero")),
     (["s1_correctness"], "boxed"), (["s1_numeric"], "boxed"),
     (["r1_zero"], "xml"), (["boxed"], "r1_zero")],
)  # fmt: skip
def test_a_format_that_a_reward_cannot_read_is_refused(names, form):
    with pytest.raises(UserError, match=rf"prompt\.format `{form}`"):
        Grading(names, prompt_format=prompt_format(form))


def test_a_stack_is_imported_when_it_is_named_and_no_other_is():
    script = (
        "import sys; from lib.prompts import prompt_format;"
        "from lib.rewards.grading import Grading;"
        "loaded = lambda: sorted(m for m in sys.modules if m.startswith('lib.rewards.stacks.'));"
        "print(loaded()); Grading(['s1:s1_numeric'], prompt_format=prompt_format('xml'));"
        "print(loaded())"
    )
    assert run_python(script).stdout.splitlines() == ["[]", "['lib.rewards.stacks.s1']"]


@pytest.mark.parametrize("name", ["answer", "check_answer", "s4_correctness", "r1_zero"])
def test_the_column_problem_is_the_context_of_the_answer(name):
    form = WORKING_OUT if name == "check_answer" else FORMATS.get(name, XML)
    start, end, opening, closing = form.marks
    completion = f"{start}\nx\n{end} {opening}\\frac{{2}}{{3}}{closing}"
    (reward,) = Grading([name], prompt_format=form).rewards
    problem = "What is it, to three decimal places?"
    columns = {"completions": [completion], "reference": ["0.667"]}
    assert reward(problem=[problem], **columns) > reward(**columns)


def test_right_answers_that_evidence_decides_are_shared_out():
    grading = Grading(["tiny:answer"], prompt_format=prompt_format("boxed"))
    pairs = [("2", "2"), ("0.5", r"\sin\frac{\pi}{6}"), ("3.1416", r"\pi"), ("2", "3")]
    rollouts = [
        grading.rollout(rf"\boxed{{{answer}}}", reference=reference) for reference, answer in pairs
    ]
    metrics = judged_metrics(rollouts)
    assert metrics.pop("answer_accuracy") == 0.75
    assert metrics == pytest.approx(
        {"reward/decided_by/rounding": 1 / 3, "reward/decided_by/numeric": 1 / 3}
    )
    assert judged_metrics(rollouts[:1]) == {"answer_accuracy": 1.0}


@pytest.mark.parametrize(("answer", "value"), [("9" * 5000, 1), ("51", 1), ("50", 0), ("x", 0)])
def test_a_control_reads_numbers_of_any_length(answer, value):
    names = ("plugins/rewards/controls.py:above_50_is_right",)
    (reward,) = Grading(names, prompt_format=FORMATS["boxed"]).rewards
    assert reward([""], [rf"\boxed{{{answer}}}"], reference=["7"]) == [value]


def test_a_changed_list_is_judged_again():
    (answer,) = Grading(["tiny:answer"], prompt_format=prompt_format("xml")).rewards
    right = "<reasoning>x</reasoning><answer>5</answer>"
    texts, references = [right.replace("5", "4"), right], ["5", "5"]
    assert answer(completions=texts, reference=references) == [0.0, 1.0]
    texts[0] = right
    assert answer(completions=texts, reference=references) == [1.0, 1.0]


NUMBERS = [np.float32(1), np.bool_(True), torch.tensor(1.0), 1, True]


@pytest.mark.parametrize("value", [*NUMBERS, "a", [1.0], np.float32("nan"), None])
def test_a_plugins_value_is_a_finite_scalar_of_any_library(value):
    score = _checked("mine", lambda rollout: value)
    rollout = Rollout(completion="72", reference="72", prompt_format=XML)
    if any(value is number for number in NUMBERS):
        assert score(rollout) == 1.0
    else:
        with pytest.raises(UserError, match="mine: "):
            score(rollout)
