"""Groups with equal rewards are replaced, bounded, and nothing is scored twice."""

import hashlib
import os
import re
from collections import Counter
from functools import partial
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace

import pytest
import torch

from lib.artifacts import read_json, write_json
from lib.core.errors import UserError
from lib.params import Params
from lib.params.model import Model
from lib.rewards.rollout import Rollout
from lib.training.grpo.problems import ProblemOrder, signal_mask
from tests.lib.training.runs import on_ranks
from tests.lib.training.steps import build, letters, reward_with, train, train_steps


def test_refills_are_keyed_by_step_and_round_and_have_no_problem_twice(smoke):
    order = ProblemOrder(smoke.grpo, num_problems=40, seed=0)

    def others(round_=1, *, step=3):
        return tuple(order.of_refill(10, step=step, round_=round_))

    assert len({*others()}) == 10
    assert others() == others()
    assert len({others(), others(step=4), others(2)}) == 3


def test_shares_by_evidence_are_of_all_right_answers(built):
    """Also of those of another step, in which evidence accepted none."""
    curve = built().curve
    name = "reward/decided_by/numeric"

    def close_step(*steps):
        form = SimpleNamespace(tool="")
        verdicts = [SimpleNamespace(decided_by=step) for step in steps]
        common = {"num_tokens": 3, "truncated": False, "metrics": {}, "prompt_format": form}
        curve.add_rollouts(
            [
                SimpleNamespace(
                    **common, verdict=verdict, answer_ok=verdict.decided_by != "unequal"
                )
                for verdict in verdicts
            ]
        )
        curve.close_step()

    close_step("number", "number", "number", "numeric", "unequal")
    point = curve.take_point()
    assert (point["answer_accuracy"], point[name]) == pytest.approx((0.8, 0.25))
    close_step("numeric", "numeric", "number", "number", "number")
    close_step("number")
    close_step("unequal")
    assert curve.take_point()[name] == pytest.approx(0.2)


def dull_for(dull: set[str]):
    """Reward all completions of `dull` problems equally."""

    def reward(prompts, completions, **columns):
        rows = zip(prompts, letters(completions), strict=True)
        return [0.1 if prompt[-1]["content"] in dull else earned for prompt, earned in rows]

    return reward


@pytest.fixture
def dull(sets):
    """Return half of the problems."""
    return {problem.problem for problem in list(sets.grpo)[::2]}


@pytest.fixture
def train_on(built):
    def run(reward, **grpo):
        trainer = reward_with(built(**{"dynamic_sampling": 8, **grpo}), reward)
        return trainer, train_steps(trainer)

    return run


def test_no_group_without_signal_reaches_loss_or_metrics(train_on, dull, monkeypatch):
    # The answers to those problems are right, and no others.
    monkeypatch.setattr(Rollout, "answer_ok", property(lambda each: each.problem in dull))
    trainer, steps = train_on(dull_for(dull))
    decode = partial(trainer.processing_class.decode, skip_special_tokens=True)
    points = steps.points
    for batch, point in zip(steps.batches, points, strict=True):
        questions = decode(batch.prompt_ids)
        assert not any(problem in text for problem in dull for text in questions)
        assert all(sum(text == one for text in questions) % 4 == 0 for one in questions)
        lengths = batch.completion_mask.sum(1).float()
        assert point["completions/mean_length"] == pytest.approx(lengths.mean().item())
        assert point["frac_reward_zero_std"] == point["answer_accuracy"] == 0
        # Rewards read a completion up to its stop string, whatever its last token holds beyond.
        texts = [
            re.sub(r"(?s)t.*", "t", decode(ids[mask.bool()]))
            for ids, mask in zip(batch.completion_ids, batch.completion_mask, strict=True)
        ]
        earned = letters([[{"content": text}] for text in texts])
        assert point["rewards/reward/mean"] == pytest.approx(fmean(earned), abs=1e-6)

    assert max(point["dynamic_sampling/rounds"] for point in points) >= 1
    assert max(point["dynamic_sampling/frac_without_signal"] for point in points) > 0.2
    generated = trainer.state.num_input_tokens_seen
    assert generated > sum(float(batch.completion_mask.sum()) for batch in steps.batches)


@pytest.mark.parametrize(("aggregation", "flat"), [("sum", 1.0), ("gdpo", 0.0)])
def test_with_gdpo_a_group_has_a_signal_by_component(built, aggregation, flat):
    """Two rewards add up to a constant, and differ only by component."""

    def other(completions, **columns):
        return [-value for value in letters(completions)]

    trainer = built(reward_aggregation=aggregation, max_steps=1)
    trainer.grading.rewards = [letters, other]
    trainer.reward_weights = torch.tensor([0.5, 0.5])
    steps = train_steps(trainer)
    (point,) = steps.points
    assert (point["frac_reward_zero_std"], point["reward_std"]) == (flat, 0)
    assert signal_mask(trainer, [trainer.rollouts[:4]]) == [not flat]
    # Opposite rewards of equal weight still cancel, in every group.
    assert steps.batches[0].advantages.abs().max() < 1e-6


def test_a_plugins_advantage_gets_the_components(built):
    trainer, seen = built(max_steps=1), []

    def own(rewards, right, components):
        seen.append((rewards, components))
        return components[..., 1] - components[..., 1].mean(-1, keepdim=True)

    trainer.grading.rewards = [
        letters,
        lambda completions, **_: [2 * x for x in letters(completions)],
    ]
    trainer.reward_weights = torch.tensor([0.5, 0.25])
    trainer.advantage = own
    trainer.train()
    ((rewards, components),) = seen
    assert components.shape == (4, 4, 2)
    torch.testing.assert_close(components @ trainer.reward_weights, rewards)
    torch.testing.assert_close(components[..., 1], 2 * components[..., 0])


def test_what_rewards_log_weighs_by_what_is_trained_on(train_on):
    """Three of the first round's four groups stay; the second round has one."""
    calls = []

    def logging(completions, log_metric, **columns):
        first = not calls
        calls.append(len(completions))
        log_metric("share", 0.0 if first else 1.0)
        if not first:
            log_metric("only_later", 7.0)
        return [0.5] * 4 * first + letters(completions[4 * first :])

    (point,) = train_on(logging, max_steps=1)[1].points
    assert calls == [16, 4]
    assert (point["share"], point["only_later"]) == (0.25, 7.0)


def test_a_column_of_the_curve_is_no_name_for_a_functions_number(train_on):
    def logging(completions, log_metric, **columns):
        log_metric("reward", 100.0)
        return letters(completions)

    with pytest.raises(UserError, match="log_metric: `reward` is a column of the curve"):
        train_on(logging, max_steps=1)


def test_the_bound_ends_the_run(train_on, sets):
    everything = {problem.problem for problem in sets.grpo}
    with pytest.raises(UserError, match=r"dynamic_sampling=2: .* 4 of 4"):
        train_on(dull_for(everything), dynamic_sampling=2)


def test_after_the_bound_the_fallback_trains_on_what_there_is(train_on, smoke, dull):
    """One round for half of the problems cannot fill every step."""
    knobs = {"dynamic_sampling": 1, "dynamic_sampling_fallback": "train"}
    _, steps = train_on(dull_for(dull), **knobs)
    unfilled = [point["dynamic_sampling/frac_unfilled"] for point in steps.points]
    # Here a group lacks a signal only by its rewards, so that the two shares are one.
    assert unfilled == [point["frac_reward_zero_std"] for point in steps.points]
    assert 0 < max(unfilled) < 1
    assert len(steps.batches) == smoke.grpo.max_steps
    for batch, share in zip(steps.batches, unfilled, strict=True):
        still = batch.advantages.view(-1, smoke.grpo.group_size).abs().sum(-1) == 0
        assert still.float().mean().item() == pytest.approx(share)


def test_a_group_of_masked_completions_is_replaced_too(train_on):
    """With groups of two, some of them are cut off whole."""
    _, steps = train_on(letters, group_size=2, prompts_per_step=8, mask_truncated=True)
    for batch in steps.batches:
        counted = Counter()
        for prompt, mask in zip(batch.prompt_ids.tolist(), batch.loss_mask.tolist(), strict=True):
            counted[tuple(prompt)] += max(mask)
        assert min(counted.values()) > 0


def train_unevenly(problems, base: Path, params: Params, model: Model, out: Path):
    """Train on one of two ranks, rank 1's first draw of every step without a signal."""
    rank = int(os.environ["RANK"])
    trainer = build(problems, base, params, out / f"scratch{rank}", model=model, dynamic_sampling=8)
    steps: set[int] = set()

    def reward(completions, log_metric, **columns):
        log_metric("mine", 1.0 + 2 * rank)
        log_metric(f"on_{rank}", float(rank))
        first = trainer.state.global_step not in steps
        steps.add(trainer.state.global_step)
        return [0.5] * len(completions) if rank and first else letters(completions)

    points = train(reward_with(trainer, reward))
    weights = b"".join(weight.detach().numpy().tobytes() for weight in trainer.model.parameters())
    report = {
        "world": trainer.accelerator.num_processes,
        "weights": hashlib.sha256(weights).hexdigest(),
        "rounds": [point["dynamic_sampling/rounds"] for point in points],
        "logged": {name: points[-1][name] for name in ("mine", "on_0", "on_1")},
    }
    write_json(out / f"rank{rank}.json", report)


@pytest.mark.slow
def test_ranks_that_miss_unequal_numbers_of_groups_do_not_hang(sets, base, smoke, full, tmp_path):
    """With gloo, one rank's problems all have a signal, the other's at first none."""
    own = (sets.grpo, base, smoke, full, tmp_path)
    ran = on_ranks(2, train_unevenly, *own, log=tmp_path / "log")
    assert ran.returncode == 0, ran.stdout[-4000:]
    first, second = (read_json(tmp_path / f"rank{rank}.json") for rank in range(2))
    assert first == second
    assert (first["world"], len(first["rounds"])) == (2, 3)
    assert min(first["rounds"]) >= 1
    # Of 8 completions on either rank; rank 1's all come from the second round.
    assert first["logged"] == {"mine": 2.0, "on_0": 0.0, "on_1": 1.0}
