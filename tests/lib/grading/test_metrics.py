"""Graded completions become rates with errors and n."""

import pytest

from lib.core.errors import UserError
from lib.grading.grade import grade_rows
from lib.grading.metrics import summarise
from tests.lib.grading.rows import written_row

TEXTS = {
    "3": ("1 + 2 = 3<end_working_out><SOLUTION>3</SOLUTION>", "I think it is 3"),
    "4": ("<end_working_out><SOLUTION>9</SOLUTION>", ""),
}
"""Two completions of each problem by its reference; the first is the greedy completion too."""


@pytest.fixture
def rows(smoke):
    """Grade the completions of two problems, read as `grade` does."""
    written = [
        written_row(
            text, reference=reference, mode=mode, sample=sample,
            level=level, tags=["new"] * (level == 2),
        )
        for mode in ("greedy", "sampled")
        for level, (reference, texts) in enumerate(TEXTS.items(), 1)
        for sample, text in enumerate(texts[: 1 + (mode == "sampled")])
    ]  # fmt: skip
    return list(grade_rows(written, reward=smoke.reward))


def test_rates_stand_beside_their_error_and_n(rows):
    metrics = summarise(rows)["held_out"]
    greedy = {"answer_accuracy": 0.5, "answer_accuracy_se": 0.5, "n": 2}
    greedy |= {"format_accuracy": 1.0, "mean_reward": 0.75}
    sampled = {"pass_at_1": 0.5, "pass_at_2": 0.5, "pass_hat_2": 0.5}
    sampled |= {"answer_accuracy": 0.5, "strict_accuracy": 0.25}
    sampled |= {f"class_{label}": 0.25 for label in ("00", "01", "10", "11")}
    for mode, expected in (("greedy", greedy), ("sampled", sampled)):
        assert {name: metrics[mode][name] for name in expected} == pytest.approx(expected)


@pytest.mark.parametrize(
    ("mode", "attempts", "names"),
    [
        ("greedy", 1, []),
        ("sampled", 1, ["maj_at_1", "num_samples", "pass_at_1"]),
        ("sampled", 2, ["maj_at_2", "num_samples", "pass_at_1", "pass_at_2", "pass_hat_2"]),
    ],
)
def test_numbers_over_attempts_are_of_samples_only(rows, mode, attempts, names):
    metrics = summarise([row for row in rows if row.mode == mode and row.sample < attempts])
    ours = ("maj_at", "pass_at", "pass_hat", "num_samples")
    reported = [name for name in sorted(metrics["held_out"][mode]) if name.startswith(ours)]
    assert [name for name in reported if not name.endswith("_se")] == names


def test_the_same_completions_again_leave_pass_at_1_as_it_is(rows):
    """A pass@1 that is divided by k halves instead (lighteval#771)."""
    sampled = [row for row in rows if row.mode == "sampled"]
    once, twice = (summarise(sampled * times)["held_out"]["sampled"] for times in (1, 2))
    assert (once["num_samples"], twice["num_samples"]) == (2, 4)
    assert once["pass_at_1"] == twice["pass_at_1"] == 0.5
    assert once["pass_at_1_se"] == pytest.approx(twice["pass_at_1_se"])


def test_rewards_on_length_use_the_limit_of_the_benchmark(smoke):
    extra = {"stack": "tiny", "extra": ("overlong",), "weights": (0.25, 1.0, 1.0)}
    reward = smoke.reward.model_copy(update={**extra, "overlong_cache_tokens": 4})
    written = [
        written_row("3", reference="3", benchmark=name, token_ids=[1] * 16, sampling=sampling)
        for name, sampling in (
            ("own", {"max_new_tokens": 64}),
            ("held_out", {"max_new_tokens": 16}),
        )
    ]
    graded = grade_rows(written, reward=reward)
    assert [row.rewards["overlong"] for row in graded] == [0.0, -1.0]


def test_a_problem_with_fewer_attempts_is_refused(rows):
    with pytest.raises(UserError, match="held_out, sampled: problem"):
        summarise([row for row in rows if row is not rows[-1]])


def test_breakdowns_cover_level_subject_and_tag(rows):
    greedy = summarise(rows)["held_out"]["greedy"]
    assert {level: group["n"] for level, group in greedy["by_level"].items()} == {"1": 1, "2": 1}
    assert greedy["by_subject"]["sums"]["answer_accuracy"] == 0.5
    assert greedy["by_tag"]["new"]["answer_accuracy"] == 0.0
    # One problem has no standard error, rather than a false one.
    assert "answer_accuracy_se" not in greedy["by_level"]["1"]


def test_calls_become_rates_of_their_own_numbers(smoke, rows):
    """Of three calls in three completions of two problems, one is wrong; of two right answers, one
    has calls.
    """
    right = "<calc>1 + 2</calc>=3<calc>x</calc>=?<end_working_out><SOLUTION>3</SOLUTION>"
    wrong = "<calc>1 + 2</calc>=3<end_working_out><SOLUTION>4</SOLUTION>"
    sampling = {"max_new_tokens": 16, "tool": "calculator"}
    written = [
        written_row(text, reference=reference, sampling=sampling)
        for reference, text in (("3", right), ("5", wrong), ("6", TEXTS["3"][0].replace("3", "6")))
    ]
    greedy = summarise(grade_rows(written, reward=smoke.reward))["held_out"]["greedy"]
    assert greedy["mean_calls"] == 1
    assert greedy["wrong_calls"] == pytest.approx(1 / 3)
    assert greedy["right_with_call"] == 0.5
    assert "mean_calls" not in summarise(rows)["held_out"]["greedy"]
