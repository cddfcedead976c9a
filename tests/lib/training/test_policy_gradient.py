"""Every knob of the objective acts in a real training step on the smoke model."""

import copy
import dataclasses
import math

import pytest
import torch
from torch import Tensor

from lib.core.errors import UserError
from lib.engines.base import encode
from lib.engines.transformers import TransformersEngine
from lib.evaluation.sampling import sample_checkpoint
from lib.models.pretrained import load_tokenizer
from lib.models.save import save_policy
from lib.objectives.advantages import group_advantages
from lib.objectives.logprobs import selective_log_softmax
from lib.prompts.formats import conversation
from lib.training import grpo
from lib.training.grpo.batching import MicroBatch
from lib.training.grpo.policy_gradient import PolicyGradientTrainer
from lib.training.grpo.problems import ProblemOrder
from tests.lib.export.conftest import make_adapter
from tests.lib.objectives.losses import assert_gradients, gradients_of, loss_of
from tests.lib.training.steps import (
    EditingEngine,
    completion_log_probs,
    completion_logits,
    letters,
    train,
    train_steps,
)

GAP = "sampling/sampling_logp_difference"


OBJECTIVES = {
    "grpo": {},
    "bnpo": {"loss": "bnpo"},
    "dr_grpo": {"loss": "dr_grpo"},
    "dapo": {"loss": "dapo"},
    "clip higher": {"epsilon": 0.01, "epsilon_high": 0.5},
    # Wide: a step this large moves whole sequences beyond the usual bounds, with no gradient left.
    "gspo": {"importance_level": "sequence", "epsilon": 0.9, "epsilon_high": 9.0},
    "cispo": {"loss": "cispo", "epsilon_high": 0.05},
    "two-sided clip": {"epsilon": 0.01, "epsilon_high": 0.02, "delta": 1.05},
    "entropy bonus": {"entropy_coef": 0.05},
    "kl": {"beta": 0.5},
    "kl of GRPO": {"beta": 0.5, "kl_weighted": False},
    "mask": {"mask_truncated": True},
    "reinforce": {"loss": "reinforce", "num_iterations": 1},
}

RENAMED = {
    "epsilon": "clip_low",
    "epsilon_high": "clip_high",
    "importance_level": "ratio_level",
    "beta": "kl_coef",
}
"""Names of the params in `Objective`."""

TRAINERS = {"mask_truncated", "num_iterations"}
"""Params that the batch already shows."""


def gradients(trainer: PolicyGradientTrainer, batch: MicroBatch, **knobs) -> dict[str, Tensor]:
    """Compute the objective's gradients at the trainer's weights, from whole logits."""
    logits = completion_logits(trainer.model, batch)
    if knobs.get("entropy_coef"):
        knobs["entropy"] = -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1)
    scores = completion_log_probs(logits, batch)
    loss = loss_of(scores, batch.advantages, batch.loss_mask, **knobs).loss
    return gradients_of(trainer.model, loss)


def assert_other_gradients(others: dict[str, Tensor], theirs: dict[str, Tensor]):
    """Assert that another objective's gradients differ, by ten times what equal ones may."""
    largest = max(float(gradient.abs().max()) for gradient in theirs.values())
    assert max((others[n] - theirs[n]).abs().max() for n in theirs) > 1e-3 * largest


def report_shifted_log_probs(trainer: PolicyGradientTrainer, shifts: list[float]):
    """Roll out with reported log-probs that differ by a known amount per completion."""

    def shifted(number, row):
        shift = shifts[number % len(shifts)] / len(row.log_probs)
        return {"log_probs": tuple(value - shift for value in row.log_probs)}

    trainer.roll_out_with(EditingEngine(trainer, shifted), live=False)


@pytest.mark.fast_cases(4)
@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_gradient_of_a_step_is_the_objectives(built, name):
    """The second step on a batch has a ratio other than 1; `reinforce` takes one step a batch."""
    params = {"loss": "grpo", **OBJECTIVES[name]}
    common = {"max_steps": 2, "num_iterations": 2, "learning_rate": 0.02, "warmup_ratio": 0.0}
    trainer = built(**{**common, **params})
    initial = copy.deepcopy(trainer.model)
    steps = train_steps(trainer)
    batch, theirs = steps.batches[1], steps.gradients[1]
    trainer.model.load_state_dict(steps.weights[1], strict=False)
    old = batch.old_log_probs
    assert (old is None) == (name == "reinforce")
    knobs = {RENAMED.get(knob, knob): params[knob] for knob in params.keys() - TRAINERS}
    ours = gradients(
        trainer,
        batch,
        old_log_probs=old,
        reference_log_probs=completion_log_probs(completion_logits(initial, batch), batch).detach(),
        max_completion_length=trainer.sampling.max_new_tokens,
        **{"clip_high": params.get("epsilon", 0.2), **knobs},
    )
    assert_gradients(ours, theirs, within=1e-4)
    if name != "reinforce":
        plain = {"loss": "reinforce" if name == "grpo" else "grpo", "old_log_probs": old}
        unmasked = dataclasses.replace(batch, loss_mask=batch.completion_mask.bool())
        assert_other_gradients(gradients(trainer, unmasked, **plain), theirs)


def test_a_completion_gets_what_the_longest_prompt_leaves(built, sets, base, smoke, capsys):
    most = smoke.model.max_seq_length - 1
    prompts = [conversation(each.problem, system=smoke.prompt.system) for each in sets.grpo]
    longest = max(map(len, encode(load_tokenizer(base), prompts)))
    for max_new_tokens, left, line in (
        (most, most - longest, f"get the {most - longest} tokens that the longest prompt leaves"),
        (16, 16, ""),
    ):
        trainer = built(rollout={"max_new_tokens": max_new_tokens})
        assert trainer.sampling.max_new_tokens == left < most
        output = capsys.readouterr().out
        assert line in output and bool(line) == bool(output)
    for length in (longest + 1, longest - 5):
        with pytest.raises(UserError, match=rf"max_seq_length={length}: .* {longest} tokens"):
            built(model={"max_seq_length": length})


def test_completions_outside_training_are_no_longer_than_in_it(sets, base, smoke):
    """A pair that DPO trains on has to stay within `model.max_seq_length`."""
    params = smoke.model_copy(
        update={
            "rollout": smoke.rollout.model_copy(update={"max_new_tokens": 500}),
            "model": smoke.model.model_copy(update={"max_seq_length": 64}),
        }
    )
    problems = list(sets.grpo)[:4]
    options = {"base": base, "num_completions": 4, "engine": "transformers", "batch_size": 16}
    groups = sample_checkpoint(params, base, problems, **options)
    rollouts = [rollout for group in groups for rollout in group]
    longest = max(len(rollout.prompt_ids) for rollout in rollouts)
    assert max(rollout.num_tokens for rollout in rollouts) == 63 - longest


def test_a_micro_batch_without_signal_has_the_bonuss_gradient(built):
    """With equal rewards, only the entropy moves the policy."""

    def moved(**changes):
        trainer = built(max_steps=1, micro_batch_size=4, warmup_ratio=0.0, **changes)
        trainer.grading.rewards = [lambda completions, **columns: [1.0] * len(completions)] * 2
        before = [weight.detach().clone() for weight in trainer.model.parameters()]
        trainer.train()
        return not all(map(torch.equal, before, trainer.model.parameters()))

    assert moved(entropy_coef=0.1)
    assert not moved()


def test_a_head_in_float32_gives_unrounded_logits(built):
    for cast in (False, True):
        model = built(model={"dtype": "bfloat16"}, cast_lm_head_to_fp32=cast).model
        logits = model(input_ids=torch.tensor([[5, 6, 7]])).logits.float()
        assert torch.equal(logits, logits.bfloat16().float()) != cast


def test_a_temperature_does_not_round_logits_again(built):
    scorer, labels = built().scorer, torch.tensor([[5, 6, 7]])
    scorer.temperature = 0.7
    logits = 10 * torch.randn(1, 3, 20, generator=torch.manual_seed(0)).bfloat16()
    expected = selective_log_softmax(logits.float() / 0.7, labels)
    torch.testing.assert_close(scorer._from_logits(logits, labels).log_probs, expected)


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize(
    "correction", ["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]
)
def test_a_step_takes_the_correction_that_params_name(built, correction):
    cap = 1.2
    trainer = built(
        max_steps=1, advantage="none", sampler_correction=correction, correction_cap=cap
    )
    report_shifted_log_probs(trainer, [0.0, 2.0, -0.5, 9.0])
    steps = train_steps(trainer)
    batch = steps.batches[0]
    trainer.model.load_state_dict(steps.weights[0], strict=False)
    scores = completion_log_probs(completion_logits(trainer.model, batch), batch).detach()
    log_ratio = (scores - batch.sampler_log_probs) * batch.loss_mask
    if correction.startswith("sequence"):
        log_ratio = log_ratio.sum(-1, keepdim=True)
    ratio = log_ratio.exp()
    weights = torch.where(ratio > cap, cap if correction.endswith("truncate") else 0.0, ratio)
    knobs = {"loss": trainer.grpo.loss, "num_tokens": batch.num_tokens}
    ours = gradients(trainer, batch, correction=weights, **knobs)
    assert_gradients(ours, steps.gradients[0], within=1e-4)
    assert_other_gradients(gradients(trainer, batch, **knobs), steps.gradients[0])
    counted = weights[batch.loss_mask] if weights.shape[1] > 1 else weights
    share = counted.mean() ** 2 / counted.square().mean()
    assert 0 < share < 1
    point = steps.points[0]
    assert point["sampling/effective_sample_share"] == pytest.approx(share.item(), rel=1e-4)
    mean = counted.mean().item()
    assert point["sampling/importance_sampling_ratio/mean"] == pytest.approx(mean, abs=1e-4)


class Stale(TransformersEngine):
    """Engine that is never synced."""

    def sync(self, policy) -> str:
        return "the start"


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("live", [True, False])
def test_a_sampler_left_on_old_weights_ends_the_run(built, live):
    trainer = built(max_steps=20, learning_rate=0.02, warmup_ratio=0.0)
    engine = Stale(copy.deepcopy(trainer.model), trainer.processing_class, batch_size=16)
    trainer.roll_out_with(engine, live=live)
    with pytest.raises(UserError, match="step 2: Stale"):
        trainer.train()
    with pytest.raises(RuntimeError, match="closed"):
        engine.generate([[1]], trainer.sampling)


def test_log_probs_that_are_no_numbers_end_the_run(built):
    trainer = built(max_steps=2)
    report_shifted_log_probs(trainer, [0.0, math.nan])
    with pytest.raises(UserError, match="step 1: log-probs"):
        trainer.train()


def test_diverged_weights_end_the_run(built):
    trainer = built(max_steps=3, learning_rate=1e30, warmup_ratio=0.0)
    with pytest.raises(UserError, match=r"step 3: .*nats.*grpo\.learning_rate"):
        trainer.train()


def test_where_no_token_counts_nothing_is_logged_or_steered(built):
    knobs = {"mask_truncated": True, "entropy_coef": 0.1, "entropy_target": 0.5}
    trainer = built(max_steps=2, stop="", **knobs)
    trainer.roll_out_with(EditingEngine(trainer, lambda *_: {"finish": "length"}), live=True)
    for point in train(trainer):
        assert point["completions/clipped_ratio"] == 1
        assert point["entropy_coef"] == pytest.approx(0.1)
        assert not any(name.startswith(("entropy/", GAP, "clip_ratio")) for name in point)
        assert "entropy" not in point


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("sampler", ["live", "own weights", "adapter with dropout"])
def test_the_samplers_gap_is_logged_and_is_rounding(built, smoke, sampler):
    adapter = {"lora": smoke.model.lora.model_copy(update={"dropout": 0.5})}
    model = adapter if "adapter" in sampler else {}
    trainer = built(model=model, learning_rate=0.02, warmup_ratio=0.0)
    trainer.roll_out_with(trainer.engine, live=sampler != "own weights")
    points = train(trainer)
    assert len(points) == 3
    assert all(0 < point[f"{GAP}/mean"] < 1e-5 for point in points)


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("advantage", ["none", "mean", "group", "batch", "rloo"])
def test_advantages_are_those_that_params_name(built, advantage):
    trainer, earned = built(advantage=advantage, max_steps=1), []
    trainer.reward_funcs[0] = lambda **columns: earned.extend(letters(**columns)) or earned
    (batch,) = train_steps(trainer).batches
    ours = group_advantages(0.25 * torch.tensor(earned).view(4, 4), baseline=advantage).flatten()
    torch.testing.assert_close(batch.advantages.sort().values, ours.sort().values)


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("lora", [True, False])
def test_the_penalty_measures_from_where_grpo_starts(built, base, smoke, tmp_path, lora):
    """An adapter starts from SFT's adapter, not from the base below it."""
    init = make_adapter(base, tmp_path / "sft", smoke) if lora else base
    trainer = built(init=init, lora=lora, beta=0.1, learning_rate=0.02, warmup_ratio=0.0)
    divergence = [point["kl"] for point in train(trainer)]
    assert divergence[0] == pytest.approx(0, abs=1e-5)
    assert divergence[-1] > 1e-3
    save_policy(trainer.model, trainer.processing_class, tmp_path / "grpo")
    assert not [path for path in (tmp_path / "grpo").iterdir() if path.is_dir()]


def test_reward_functions_see_what_trl_hands_them_and_may_log(built, sets):
    trainer = built(max_steps=2)
    seen = []

    def curious(prompts, completions, completion_ids, **columns):
        seen.append({"prompts": prompts, "completions": completions, **columns})
        columns["log_metric"]("letters_seen", 3.0)
        columns["log_extra"]("number", list(range(len(completions))))
        assert len(prompts) == len(completions) == len(completion_ids)
        return letters(completions)

    trainer.reward_funcs[0] = curious
    points = train(trainer)
    assert [columns["trainer_state"].global_step for columns in seen] == [2, 2]  # one live state
    first = seen[0]
    assert first["completions"][0][0]["role"] == "assistant"
    assert first["prompts"][0][-1]["content"] == first["problem"][0]
    assert len(first["reference"]) == 16
    assert first["reference_answer"] == first["reference"]
    solutions = {problem.problem: problem.solution for problem in sets.grpo}
    assert first["reference_solution"] == [solutions[problem] for problem in first["problem"]]
    assert [point["letters_seen"] for point in points] == [3.0, 3.0]
    assert trainer.extra_columns == {"number": list(range(16))}


def test_each_epoch_has_its_own_order_of_problems(smoke):
    grpo = smoke.grpo.model_copy(update={"prompts_per_step": 4})
    # Two steps an epoch, two problems left over.
    problems = ProblemOrder(grpo, num_problems=10, seed=0).of_step
    steps = [problems(step) for step in range(6)]
    for epoch in (0, 2, 4):
        assert len({*steps[epoch], *steps[epoch + 1]}) == 8
    assert steps[0] != steps[2]
    assert problems(3) == steps[3]
    in_order = grpo.model_copy(update={"shuffle": False})
    assert ProblemOrder(in_order, num_problems=10, seed=0).of_step(2) == [0, 1, 2, 3]


def test_a_mixture_of_experts_with_a_router_loss_is_refused(built, monkeypatch):
    plain = grpo.trainable_policy

    def routed(*args, **kwargs):
        policy = plain(*args, **kwargs)
        policy.config.output_router_logits = True
        return policy

    monkeypatch.setattr(grpo, "trainable_policy", routed)
    with pytest.raises(UserError, match="output_router_logits"):
        built()


@pytest.mark.parametrize(
    ("problems", "ranks", "fault"),
    [(None, "3", "prompts_per_step=4"), (3, "1", r"prompts_per_step=4: .* 3 ")],
    ids=["split group", "too few"],
)
def test_problems_that_fill_no_step_are_refused(built, monkeypatch, problems, ranks, fault):
    monkeypatch.setenv("WORLD_SIZE", ranks)
    with pytest.raises(UserError, match=fault):
        built(problems=problems)


def test_operations_are_counted_by_weights_tokens_and_passes(built):
    trainer = built(max_steps=2, num_iterations=2, beta=0.1, micro_batch_size=4)
    steps = train_steps(trainer)
    assert len(steps.batches) == 8
    weights = {id(w): w.numel() for w in trainer.model.parameters()}
    embedding = trainer.model.get_input_embeddings().weight
    tokens = sum(len(one.prompt_ids) + one.num_tokens for one in trainer.rollouts)
    # Sampled, scored by the reference policy, and trained on twice.
    passes = 2 + 2 + 2 * 6
    expected = passes * tokens * (sum(weights.values()) - embedding.numel())
    assert trainer.state.total_flos == expected
