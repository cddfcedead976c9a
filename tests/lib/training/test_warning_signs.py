"""A warning sign shows once, on its own curve, with its numbers and its knob."""

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pytest

from lib.artifacts import read_json
from lib.params import preset_params
from lib.prompts import prompt_format
from lib.report.report import training_warnings
from lib.rewards.grading import Grading
from lib.rewards.rollout import ANSWER_ACCURACY
from lib.training.phase.warning_signs import Limits, WarningSigns
from tests.lib.training.runs import changed, curve, train_phase
from tests.lib.training.steps import plain_grpo

GAP = "sampling/sampling_logp_difference/mean"
LIMITS = Limits(lowest=-6.5, highest=12.5, max_new_tokens=48, gap=0.05)


def signs_of(
    columns: Mapping[str, Sequence[float]], limits: Limits = LIMITS
) -> list[dict[str, Any]]:
    """Return all signs of 30 healthy steps, but for `columns`; the last values repeat."""
    healthy = {
        "reward": [1.0],
        ANSWER_ACCURACY: [0.4],
        "frac_reward_zero_std": [0.3],
        "entropy": [0.5],
        "completions/clipped_ratio": [0.0],
        GAP: [0.003],
    }
    signs = WarningSigns("grpo", limits)
    for step in range(30):
        point = {name: each[min(step, len(each) - 1)] for name, each in (healthy | columns).items()}
        signs.observe({"step": step + 1.0, **point})
    return signs.signs


RISING, FALLING = [0.2 * n for n in range(30)], [0.4 - 0.01 * n for n in range(30)]
SIGNS = [
    ("sampler_apart", 1, {GAP: [0.4]}, ["0.4", "0.05"]),
    ("reward_at_minimum", 4, {"reward": [1.0, -6.5, -6.45, -6.5]}, ["-6.45", "12.5", "sft."]),
    ("no_signal", 4, {"frac_reward_zero_std": [0.3, 1.0, 1.0, 1.0]}, ["grpo.group_size"]),
    ("no_signal", 3, {"frac_reward_zero_std": [1.0], "reward": [12.5]}, ["prepare.grpo"]),
    ("entropy_collapse", 7, {"entropy": [0.5, 0.5, 0.5, 0.2, 0.04, 0.04, 0.03]}, ["0.03", "0.5"]),
    ("at_the_limit", 4, {"completions/clipped_ratio": [0.0, 0.6, 0.7, 0.8]}, ["48 tokens", "0.8"]),
    ("gradient_explodes", 2, {"grad_norm": [0.1, float("nan")]}, ["nan", "learning_rate"]),
    ("gradient_explodes", 13, {"grad_norm": [0.1] * 10 + [30.0]}, ["30", "0.1", "max_grad_norm"]),
    # Two windows of ten, the means of which differ by enough.
    ("reward_hacking", 20, {"reward": RISING, ANSWER_ACCURACY: FALLING}, ["2.9", "0.255"]),
    (
        "evidence_jumps",
        20,
        {"reward/decided_by/numeric": [0.0] * 10 + [0.25] * 10},
        ["reward/decided_by/numeric", "0.25"],
    ),
]


@pytest.mark.parametrize(("kind", "step", "columns", "texts"), SIGNS)
def test_a_sign_shows_once_with_its_numbers_and_its_knob(kind, step, columns, texts):
    (sign,) = signs_of(columns)
    assert (sign["kind"], sign["step"]) == (kind, step)
    assert all(text in sign["text"] for text in texts)


@pytest.mark.parametrize(
    "columns",
    [
        {},
        {"reward": [-6.5, -6.5, 1.0]},  # two steps are no sign yet
        {"reward": [-6.0]},
        {"frac_reward_zero_std": [1.0, 1.0, 0.9, 1.0, 1.0, 0.9]},
        {"entropy": [0.34, 0.3, 0.24, 0.18, 0.14, 0.11]},
        {"reward": RISING},
        {ANSWER_ACCURACY: FALLING},
    ],
    ids=str,
)
def test_a_run_without_fault_shows_no_sign(columns):
    assert signs_of(columns) == []


def test_equal_rewards_without_a_baseline_are_no_fault():
    limits = dataclasses.replace(LIMITS, centred=False)
    assert signs_of({"frac_reward_zero_std": [1.0]}, limits) == []


def test_a_float16_overflow_hides_no_explosion():
    norms = [0.1] * 4 + [float("nan")] + [0.1] * 5 + [30.0]
    (sign,) = signs_of({"grad_norm": norms}, dataclasses.replace(LIMITS, overflows=17))
    assert (sign["kind"], sign["step"]) == ("gradient_explodes", 13)


def test_a_reward_that_stays_0_has_not_risen():
    """As with weights of 0, whose range is 0 too."""
    limits = dataclasses.replace(LIMITS, lowest=0.0, highest=0.0)
    signs = signs_of({"reward": [0.0] * 20, ANSWER_ACCURACY: FALLING}, limits)
    assert "reward_hacking" not in [sign["kind"] for sign in signs]


def test_evidence_jumps_whatever_the_number_of_updates_on_the_same_rollouts():
    """A second update logs no rewards, and so no share of answers accepted on evidence."""
    signs = WarningSigns("grpo", LIMITS)
    for step in range(1, 81):
        share = {"reward/decided_by/numeric": 0.25 * (step > 40)}
        signs.observe({"step": step, **({"reward": 1.0} | share if step % 2 else {})})
    assert [sign["kind"] for sign in signs.signs] == ["evidence_jumps"]


def test_s0_expects_the_least_reward_for_20_steps_only():
    limits = Limits.from_reward(preset_params("s0-qwen3-4b").reward, max_new_tokens=1846)
    (sign,) = signs_of({"reward": [-6.5]}, limits)
    assert (sign["kind"], sign["step"]) == ("reward_at_minimum", 21)
    assert signs_of({"reward": [-6.5] * 20 + [-3.0]}, limits) == []


@pytest.mark.parametrize(("first", "drifted"), [(0.003, 0.031), (0.0, 2e-5), (3e-7, 2e-5)])
def test_a_sampler_that_drifts_is_held_against_its_own_first_gap(first, drifted):
    (sign,) = signs_of({GAP: [first, drifted / 3, drifted, drifted, drifted / 3, drifted]})
    assert (sign["kind"], sign["step"]) == ("sampler_drift", 8)
    assert f"{drifted:.3g}" in sign["text"] and f"{first:.3g}" in sign["text"]
    assert signs_of({GAP: [first, max(9 * first, 9e-6)]}) == []


def test_what_rounding_may_be_depends_on_the_precision(smoke):
    half = smoke.model.model_copy(update={"mixed_precision": "bf16"})
    limits = [
        Limits.from_reward(smoke.reward, max_new_tokens=16, dtype=model.inference_dtype)
        for model in (smoke.model, half)
    ]
    assert [limit.gap for limit in limits] == [0.001, 0.05]


def test_the_range_is_that_of_the_rewards_that_params_choose(smoke):
    limits = Limits.from_reward(smoke.reward, max_new_tokens=16)
    assert (limits.lowest, limits.highest) == (0.0, 1.25)
    more = smoke.reward.model_copy(update={"extra": ("overlong",), "weights": (0.25, 1.0, 2.0)})
    assert Limits.from_reward(more, max_new_tokens=16).lowest == -2.0


def test_accuracy_is_logged_whatever_is_rewarded():
    own_format, logged = prompt_format("working_out"), {}
    (form,) = Grading(["format"], prompt_format=own_format).rewards
    texts = [own_format.target(solution="", reference=answer) for answer in ("1", "2", "2", "2")]
    references = ["1", "1", "1", "2"]
    assert form(None, texts, reference=references, log_metric=logged.__setitem__) == [1.0] * 4
    assert logged == {ANSWER_ACCURACY: 0.5}


def test_a_real_run_that_earns_nothing_says_so_everywhere(sets, base, smoke, tmp_path, capsys):
    """The policy is untrained; the curve has the columns for a diagnosis."""
    params = changed(smoke, {"grpo": {"beta": 0.01}})
    build = partial(plain_grpo, sets.grpo, base, params)
    outputs = train_phase(build, tmp_path, stage="grpo", params=params, init=base)
    kinds = ["reward_at_minimum", "no_signal", "at_the_limit"]
    log = (tmp_path / "scratch/grpo/training.log").read_text("utf-8")
    for text in (capsys.readouterr().out, log):
        assert text.count("grpo WARNING step=3 ") == len(kinds)
    written = read_json(outputs.provenance)
    assert [warning["kind"] for warning in written["warnings"]] == kinds
    assert "FROM STEP 3" in next(iter(training_warnings({"grpo": written})))
    diagnosis = {"frac_reward_zero_std", "clip_ratio/region_mean", "entropy", "kl"}
    diagnosis |= {"completions/mean_length", "completions/clipped_ratio", ANSWER_ACCURACY}
    assert curve(outputs.curve)[0].keys() >= diagnosis
