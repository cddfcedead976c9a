"""Each sign shows on the curve that it is a sign of, once, with its numbers and its knob."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from lib.artifacts import read_json
from lib.params import Params
from lib.problems.generated import GeneratedSets
from lib.prompts import prompt_format
from lib.report.report import training_warnings
from lib.rewards.batch import ANSWER_ACCURACY, Grading
from lib.training.grpo import build_grpo
from lib.training.phase.run import Outputs, run_phase
from lib.training.phase.warning_signs import Limits, Sign, Watch

GAP = "sampling/sampling_logp_difference/mean"
LIMITS = Limits(lowest=-6.5, highest=12.5, max_new_tokens=48, apart=0.05)


def curve(length: int = 30, **columns: Sequence[float]) -> list[Mapping[str, float]]:
    """A healthy run, but for `columns`; the last value of a column goes on to the end."""
    healthy = {
        "reward": [1.0],
        ANSWER_ACCURACY: [0.4],
        "frac_reward_zero_std": [0.3],
        "entropy": [0.5],
        "completions/clipped_ratio": [0.0],
        GAP: [0.003],
    }
    return [
        {"step": step + 1.0}
        | {
            name: values[min(step, len(values) - 1)]
            for name, values in {**healthy, **columns}.items()
        }
        for step in range(length)
    ]


def signs_of(points: Sequence[Mapping[str, float]], limits: Limits) -> list[Sign]:
    """All signs that a curve shows."""
    watch = Watch(limits)
    for point in points:
        watch.observe(point)
    return watch.signs


def one(points: Sequence[Mapping[str, float]], limits: Limits = LIMITS) -> Sign:
    (sign,) = signs_of(points, limits)
    return sign


def test_a_healthy_run_shows_none() -> None:
    assert signs_of(curve(), LIMITS) == []


@pytest.mark.parametrize(("first", "drifted"), [(0.003, 0.031), (0.0, 2e-5), (3e-7, 2e-5)])
def test_a_sampler_that_drifts_is_held_against_its_own_first_gap(
    first: float, drifted: float
) -> None:
    sign = one(curve(**{GAP: [first, drifted / 3, drifted, drifted, drifted / 3, drifted]}))
    assert (sign.kind, sign.step) == ("sampler_drift", 8)
    assert f"{drifted:.3g} nats" in sign.text
    assert f"from {first:.3g} at the start" in sign.text
    assert signs_of(curve(**{GAP: [first, max(9 * first, 9e-6)]}), LIMITS) == []


def test_a_first_gap_beyond_rounding_is_a_sign_at_once() -> None:
    sign = one(curve(**{GAP: [0.4]}))
    assert (sign.kind, sign.step) == ("sampler_apart", 1)
    assert "0.4 nats" in sign.text
    assert "0.05" in sign.text


def test_what_rounding_may_be_depends_on_the_precision(smoke: Params) -> None:
    half = smoke.model.model_copy(update={"mixed_precision": "bf16"})
    limits = [
        Limits.of(smoke.reward, max_new_tokens=16, dtype=model.inference_dtype)
        for model in (smoke.model, half)
    ]
    assert [limit.apart for limit in limits] == [0.001, 0.05]


def test_reward_at_the_stacks_minimum_is_said_once_with_the_range_and_the_knob() -> None:
    sign = one(curve(reward=[1.0, -6.5, -6.45, -6.5]))
    assert (sign.kind, sign.step) == ("reward_at_minimum", 4)
    assert "-6.5 to -6.45" in sign.text
    assert "-6.5 ... 12.5" in sign.text
    assert "sft.num_epochs" in sign.text
    assert signs_of(curve(reward=[-6.5, -6.5, 1.0]), LIMITS) == []  # two steps are no sign yet
    assert signs_of(curve(reward=[-6.0]), LIMITS) == []


def test_the_range_is_that_of_the_rewards_that_params_choose(smoke: Params) -> None:
    found = Limits.of(smoke.reward, max_new_tokens=16)
    assert (found.lowest, found.highest) == (0.0, 1.25)
    more = smoke.reward.model_copy(update={"extra": ("overlong",), "weights": (0.25, 1.0, 2.0)})
    assert Limits.of(more, max_new_tokens=16).lowest == -2.0


def test_groups_without_signal_are_said_with_the_knob_that_fits() -> None:
    sign = one(curve(frac_reward_zero_std=[0.3, 1.0, 1.0, 1.0]))
    assert (sign.kind, sign.step) == ("no_signal", 4)
    assert "mean reward 1)" in sign.text
    assert "grpo.group_size" in sign.text
    solved = one(curve(frac_reward_zero_std=[1.0], reward=[12.5]))
    assert "harder problems" in solved.text
    assert signs_of(curve(frac_reward_zero_std=[1.0, 1.0, 0.9, 1.0, 1.0, 0.9]), LIMITS) == []


def test_entropy_that_collapses_is_said_and_entropy_that_only_falls_is_not() -> None:
    sign = one(curve(entropy=[0.5, 0.5, 0.5, 0.2, 0.04, 0.04, 0.03]))
    assert (sign.kind, sign.step) == ("entropy_collapse", 7)
    assert "0.03 nats per token, from 0.5 at the start" in sign.text
    assert signs_of(curve(entropy=[0.34, 0.3, 0.24, 0.18, 0.14, 0.11]), LIMITS) == []


def test_completions_at_the_limit_are_said_with_the_limit() -> None:
    sign = one(curve(**{"completions/clipped_ratio": [0.0, 0.6, 0.7, 0.8]}))
    assert (sign.kind, sign.step) == ("at_the_limit", 4)
    assert "rollout.max_new_tokens=48: a share of 0.6 to 0.8 over" in sign.text


def test_reward_that_rises_while_answers_get_worse_is_hacking() -> None:
    rising, falling = [0.2 * step for step in range(30)], [0.4 - 0.01 * step for step in range(30)]
    sign = one(curve(reward=rising, **{ANSWER_ACCURACY: falling}))
    assert sign.kind == "reward_hacking"
    assert sign.step == 20  # two windows of ten, the means of which differ by enough
    assert "risen from 0.9 to 2.9 while answer accuracy has fallen from 0.355 to 0.255" in sign.text
    assert signs_of(curve(reward=rising), LIMITS) == []
    assert signs_of(curve(**{ANSWER_ACCURACY: falling}), LIMITS) == []


def test_accuracy_is_logged_whatever_is_rewarded() -> None:
    chosen, logged = prompt_format("working_out"), {}
    (form,) = Grading(["format"], prompt_format=chosen).rewards
    texts = [chosen.target(solution="", reference=answer) for answer in ("1", "2", "2", "2")]
    references = ["1", "1", "1", "2"]
    assert form(None, texts, reference=references, log_metric=logged.__setitem__) == [1.0] * 4
    assert logged == {ANSWER_ACCURACY: 0.5}


def test_a_real_run_that_earns_nothing_says_so_on_the_console_in_its_log_and_in_the_report(
    sets: GeneratedSets,
    base: Path,
    smoke: Params,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The untrained policy; the curve has the columns that a reader diagnoses a run with."""
    outputs = Outputs(
        model=tmp_path / "models/grpo",
        metrics=tmp_path / "metrics.json",
        curve=tmp_path / "curve.csv",
        provenance=tmp_path / "provenance.json",
    )
    run_phase(
        lambda scratch: build_grpo(
            sets.grpo,
            init=base,
            base=base,
            prompt_format=prompt_format(smoke.prompt.format),
            system=smoke.prompt.system,
            grpo=smoke.grpo.model_copy(update={"beta": 0.01}),
            rollout=smoke.rollout,
            reward=smoke.reward,
            model=smoke.model,
            seed=smoke.seed,
            scratch=scratch,
        ),
        stage="grpo",
        section=smoke.grpo,
        init=base,
        outputs=outputs,
        settings={},
        inputs={"base": base},
        scratch=tmp_path / "scratch",
    )
    log = (tmp_path / "scratch/grpo/training.log").read_text("utf-8")
    for said in (capsys.readouterr().out, log):
        for kind in ("mean reward has been 0 over 3", "equal rewards", "max_new_tokens=16"):
            (line,) = [line for line in said.splitlines() if kind in line]
            assert line.startswith("grpo WARNING step=3 ")
    noted = read_json(outputs.provenance)
    kinds = [warning["kind"] for warning in noted["warnings"]]
    assert kinds == ["reward_at_minimum", "no_signal", "at_the_limit"]
    loud = list(training_warnings({"grpo": noted}))
    assert loud[0].startswith("GRPO, FROM STEP 3: the mean reward has been 0 over 3 logged steps")
    columns = set(outputs.curve.read_text("utf-8").splitlines()[0].split(","))
    assert columns >= {
        "frac_reward_zero_std",
        "clip_ratio/region_mean",
        "entropy",
        "kl",
        "completions/mean_length",
        "completions/clipped_ratio",
        ANSWER_ACCURACY,
    }
