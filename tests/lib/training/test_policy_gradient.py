"""Every knob of the objective acts in a real training step on the smoke model."""

import copy
import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from lib.core.errors import UserError
from lib.engines.base import encode
from lib.engines.policy import load_tokenizer, save_policy
from lib.engines.transformers import TransformersEngine
from lib.objectives.advantages import group_advantages
from lib.params.training import Grpo
from lib.prompts.formats import conversation
from lib.training.grpo.policy_gradient import PolicyGradientTrainer
from lib.training.grpo.scoring import MicroBatch
from lib.training.phase.tracking import curve_points
from tests.lib.export.conftest import make_adapter
from tests.lib.objectives.losses import loss_of
from tests.lib.training.steps import Steps, letters, plain_grpo

GAP = "sampling/sampling_logp_difference"


def log_softmax(model: Any, batch: MicroBatch) -> Tensor:
    """Compute [B, T, V] log-probs over the completions."""
    ids = torch.cat([batch.prompt_ids, batch.completion_ids], 1)
    seen = torch.cat([batch.prompt_mask, batch.completion_mask], 1)
    length = batch.completion_ids.shape[1]
    return model(input_ids=ids, attention_mask=seen).logits[:, -length - 1 : -1].log_softmax(-1)


def log_probs(model: Any, batch: MicroBatch) -> Tensor:
    """Compute [B, T] log-probs of the completions' tokens."""
    vocabulary = log_softmax(model, batch)
    return vocabulary.gather(-1, batch.completion_ids.unsqueeze(-1)).squeeze(-1)


OBJECTIVES: dict[str, dict[str, Any]] = {
    "grpo": {"loss": "grpo"},
    "bnpo": {"loss": "bnpo"},
    "dr_grpo": {"loss": "dr_grpo"},
    "dapo": {"loss": "dapo"},
    "clip higher": {"loss": "grpo", "epsilon": 0.01, "epsilon_high": 0.5},
    # Wide: a step this large moves whole sequences beyond the usual bounds, with no gradient left.
    "gspo": {"loss": "grpo", "importance_level": "sequence", "epsilon": 0.9, "epsilon_high": 9.0},
    "cispo": {"loss": "cispo", "epsilon_high": 0.05},
    "two-sided clip": {"loss": "grpo", "epsilon": 0.01, "epsilon_high": 0.02, "delta": 1.05},
    "entropy bonus": {"loss": "grpo", "entropy_coef": 0.05},
    "kl": {"loss": "grpo", "beta": 0.5},
    "kl of GRPO": {"loss": "grpo", "beta": 0.5, "kl_weighted": False},
    "mask": {"loss": "grpo", "mask_truncated": True},
    "reinforce": {"loss": "reinforce", "num_iterations": 1},
}


def gradients(trainer: PolicyGradientTrainer, batch: MicroBatch, **knobs: Any) -> dict[str, Tensor]:
    """Compute the objective's gradients at the trainer's weights, from whole logits."""
    trainer.model.zero_grad()
    vocabulary = log_softmax(trainer.model, batch)
    scores = vocabulary.gather(-1, batch.completion_ids.unsqueeze(-1)).squeeze(-1)
    if knobs.get("entropy_coef"):
        knobs["entropy"] = -(vocabulary.exp() * vocabulary).sum(-1)
    loss_of(scores, batch.advantages, batch.loss_mask, **knobs).loss.backward()
    return {n: p.grad.clone() for n, p in trainer.model.named_parameters() if p.grad is not None}


def assert_gradients(
    theirs: dict[str, Tensor], ours: dict[str, Tensor], others: dict[str, Tensor] | None = None
) -> None:
    """Assert that they are ours, and not another objective's."""
    largest = max(float(gradient.abs().max()) for gradient in theirs.values())
    assert largest > 1e-5
    torch.testing.assert_close(ours, theirs, atol=1e-4 * largest, rtol=1e-3)
    if others is not None:
        assert max((others[n] - theirs[n]).abs().max() for n in theirs) > 1e-2 * largest


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_gradient_of_a_step_is_the_objectives(built, name):
    """The second step on a batch has a ratio other than 1; `reinforce` takes one step a batch."""
    common = {"max_steps": 2, "num_iterations": 2, "learning_rate": 0.02, "warmup_ratio": 0.0}
    trainer = built(**{**common, **OBJECTIVES[name]})
    initial = copy.deepcopy(trainer.model)
    steps = Steps(trainer)
    trainer.train()

    batch, theirs = steps.batches[1], steps.gradients[1]
    trainer.model.load_state_dict(steps.weights[1], strict=False)
    old = batch.old_log_probs
    assert (old is None) == (name == "reinforce")
    changes = OBJECTIVES[name]
    knobs: dict[str, Any] = {
        "loss": changes["loss"],
        "old_log_probs": old,
        "clip_low": changes.get("epsilon", 0.2),
        "clip_high": changes.get("epsilon_high", changes.get("epsilon", 0.2)),
        "delta": changes.get("delta"),
        "ratio_level": changes.get("importance_level", "token"),
        "entropy_coef": changes.get("entropy_coef", 0.0),
        "reference_log_probs": log_probs(initial, batch).detach(),
        "kl_coef": changes.get("beta", 0.0),
        "kl_weighted": changes.get("kl_weighted", True),
        "max_completion_length": trainer.sampling.max_new_tokens,
    }
    ours = gradients(trainer, batch, **knobs)
    plain = {"loss": "reinforce" if name == "grpo" else "grpo", "old_log_probs": old}
    unmasked = dataclasses.replace(batch, loss_mask=batch.completion_mask.bool())
    others = gradients(trainer, unmasked, **plain)
    assert_gradients(theirs, ours, None if name == "reinforce" else others)


def test_a_completion_gets_what_the_longest_prompt_leaves(
    sets,
    base,
    smoke,
    tmp_path,
    capsys,
):
    most = smoke.model.max_seq_length - 1
    rollout = smoke.rollout.model_copy(update={"max_new_tokens": most})
    trainer = plain_grpo(sets.grpo, base, smoke, tmp_path, rollout=rollout)
    tokenizer = load_tokenizer(base)
    prompts = [conversation(each.problem, system=smoke.prompt.system) for each in sets.grpo]
    longest = max(map(len, encode(tokenizer, prompts)))
    assert trainer.sampling.max_new_tokens == most - longest < most
    assert (
        f"get the {most - longest} tokens that prompts of up to {longest}" in capsys.readouterr()[0]
    )
    assert plain_grpo(sets.grpo, base, smoke, tmp_path).sampling.max_new_tokens == 16
    assert capsys.readouterr().out == ""
    for length in (longest + 1, longest - 5):
        filled = smoke.model.model_copy(update={"max_seq_length": length})
        with pytest.raises(UserError, match=rf"max_seq_length={length}: .* {longest} tokens"):
            plain_grpo(sets.grpo, base, smoke, tmp_path, model=filled)


def test_the_entropy_bonus_keeps_the_policy_more_random(built):
    def entropies(**changes: Any) -> list[float]:
        trainer = built(max_steps=4, learning_rate=0.005, warmup_ratio=0.0, **changes)
        trainer.train()
        return [point["entropy"] for point in curve_points(trainer.state)]

    plain = entropies()
    # Below its target, steered from its second step on; above it, without an effect.
    steered = entropies(entropy_coef=1.0, entropy_target=99.0)
    assert steered[1] == pytest.approx(plain[1], rel=1e-5)
    assert steered[-1] > plain[-1] + 0.01
    assert entropies(entropy_coef=1.0, entropy_target=0.01) == pytest.approx(plain, rel=1e-5)


def test_a_micro_batch_without_signal_has_the_bonuss_gradient(built):
    """With equal rewards, only the entropy moves the policy."""

    def moved(**changes: Any) -> bool:
        trainer = built(max_steps=1, micro_batch_size=4, warmup_ratio=0.0, **changes)
        trainer.grading.rewards = [lambda completions, **columns: [1.0] * len(completions)] * 2
        before = [weight.detach().clone() for weight in trainer.model.parameters()]
        trainer.train()
        return not all(map(torch.equal, before, trainer.model.parameters()))

    assert moved(entropy_coef=0.1)
    assert not moved()


def test_a_head_in_float32_gives_unrounded_logits(built, full):
    half = full.model_copy(update={"dtype": "bfloat16"})
    for cast in (False, True):
        model = built(model=half, cast_lm_head_to_fp32=cast).model
        logits = model(input_ids=torch.tensor([[5, 6, 7]])).logits.float()
        assert torch.equal(logits, logits.bfloat16().float()) != cast


@pytest.mark.parametrize(
    "correction", ["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]
)
def test_a_step_takes_the_correction_that_params_name(built, correction):
    cap = 1.2
    trainer = built(
        max_steps=1, advantage="none", sampler_correction=correction, correction_cap=cap
    )
    shifts = [0.0, 2.0, -0.5, 9.0]
    engine = Off(trainer.model, trainer.processing_class, batch_size=16, shifts=shifts)
    trainer.roll_out_with(engine, live=False)
    steps = Steps(trainer)
    trainer.train()
    batch = steps.batches[0]
    trainer.model.load_state_dict(steps.weights[0], strict=False)
    log_ratio = log_probs(trainer.model, batch).detach() - batch.sampler_log_probs
    log_ratio = log_ratio * batch.loss_mask
    if correction.startswith("sequence"):
        log_ratio = log_ratio.sum(-1, keepdim=True)
    ratio = log_ratio.exp()
    weights = torch.where(ratio > cap, cap if correction.endswith("truncate") else 0.0, ratio)
    knobs = {"loss": trainer.grpo.loss, "num_tokens": batch.num_tokens}
    ours = gradients(trainer, batch, correction=weights, **knobs)
    assert_gradients(steps.gradients[0], ours, gradients(trainer, batch, **knobs))
    counted = weights[batch.loss_mask] if weights.shape[1] > 1 else weights
    share = counted.mean() ** 2 / counted.square().mean()
    assert 0 < share < 1
    point = curve_points(trainer.state)[0]
    assert point["sampling/effective_sample_share"] == pytest.approx(share.item(), rel=1e-4)
    for statistic in ("min", "max", "mean"):
        expected = getattr(counted, statistic)().item()
        column = f"sampling/importance_sampling_ratio/{statistic}"
        assert point[column] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    "changes",
    [
        {"delta": 4.0, "loss": "cispo"},
        {"delta": 1.25, "epsilon_high": 0.28},
        {"num_iterations": 2, "loss": "reinforce"},
        {"importance_level": "sequence", "loss": "reinforce"},
        {"dynamic_sampling_fallback": "train"},
        {"dynamic_sampling": 4, "advantage": "none"},
    ],
    ids=str,
)
def test_a_knob_without_effect_is_refused(smoke, changes):
    (knob, value), *_ = changes.items()
    with pytest.raises(ValueError, match=f"{knob}={str(value).removesuffix('.0')}"):
        Grpo.model_validate({**smoke.grpo.model_dump(), **changes})


class Stale(TransformersEngine):
    """Engine with a copy of the policy, never synced."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.model = copy.deepcopy(self.model)

    def sync(self, policy: Any) -> str:
        return "the start"


@pytest.mark.parametrize("live", [True, False])
def test_a_sampler_left_on_old_weights_ends_the_run(built, live):
    trainer = built(max_steps=20, learning_rate=0.02, warmup_ratio=0.0)
    engine = Stale(trainer.model, trainer.processing_class, batch_size=16)
    trainer.roll_out_with(engine, live=live)
    with pytest.raises(UserError, match="step 2: Stale"):
        trainer.train()
    with pytest.raises(RuntimeError, match="closed"):
        engine.generate([[1]], trainer.sampling)


def test_log_probs_that_are_no_numbers_end_the_run(built):
    trainer = built(max_steps=2)
    shifts = [0.0, math.nan]
    engine = Off(trainer.model, trainer.processing_class, batch_size=16, shifts=shifts)
    trainer.roll_out_with(engine, live=False)
    with pytest.raises(UserError, match="step 1: log-probs"):
        trainer.train()


def test_diverged_weights_end_the_run(built):
    trainer = built(max_steps=3, learning_rate=1e30, warmup_ratio=0.0)
    with pytest.raises(UserError, match=r"step 3: .*nats.*grpo\.learning_rate"):
        trainer.train()


def test_where_no_token_counts_nothing_is_logged_or_steered(built):
    knobs = {"mask_truncated": True, "entropy_coef": 0.1, "entropy_target": 0.5}
    trainer = built(max_steps=2, stop="", **knobs)
    engine = Cut(trainer.model, trainer.processing_class, batch_size=16)
    trainer.roll_out_with(engine, live=True)
    trainer.train()
    for point in curve_points(trainer.state):
        assert point["completions/clipped_ratio"] == 1
        assert point["entropy_coef"] == pytest.approx(0.1)
        assert not any(name.startswith(("entropy/", GAP, "clip_ratio")) for name in point)
        assert "entropy" not in point


@pytest.mark.parametrize("sampler", ["live", "own weights", "adapter with dropout"])
def test_the_samplers_gap_is_logged_and_is_rounding(built, smoke, sampler):
    knobs = {"learning_rate": 0.02, "warmup_ratio": 0.0}
    if "adapter" in sampler:
        lora = smoke.model.lora.model_copy(update={"dropout": 0.5})
        knobs["model"] = smoke.model.model_copy(update={"lora": lora})
    trainer = built(**knobs)
    trainer.roll_out_with(trainer.engine, live=sampler != "own weights")
    trainer.train()
    points = curve_points(trainer.state)
    assert len(points) == 3
    assert all(0 < point[f"{GAP}/mean"] < 1e-5 for point in points)
    assert all(point[f"{GAP}/mean"] <= point[f"{GAP}/max"] < 1e-4 for point in points)


@pytest.mark.parametrize("advantage", ["none", "mean", "group", "batch", "rloo"])
def test_advantages_are_those_that_params_name(built, advantage):
    trainer = built(advantage=advantage, max_steps=1)
    steps = Steps(trainer)
    earned: list[float] = []
    trainer.reward_funcs[0] = lambda **columns: earned.extend(letters(**columns)) or earned
    trainer.train()
    ours = group_advantages(0.25 * torch.tensor(earned).view(4, 4), baseline=advantage).flatten()
    torch.testing.assert_close(steps.batches[0].advantages.sort().values, ours.sort().values)


@pytest.mark.parametrize("lora", [True, False])
def test_the_penalty_measures_from_where_grpo_starts(built, base, smoke, full, tmp_path, lora):
    """An adapter starts from SFT's adapter, not from the base below it."""
    trainer = built(
        init=make_adapter(base, tmp_path / "sft", smoke) if lora else base,
        model=smoke.model if lora else full,
        beta=0.1,
        learning_rate=0.02,
        warmup_ratio=0.0,
    )
    trainer.train()
    divergence = [point["kl"] for point in curve_points(trainer.state)]
    assert divergence[0] == pytest.approx(0, abs=1e-5)
    assert divergence[-1] > 1e-3
    save_policy(trainer.model, trainer.processing_class, tmp_path / "grpo")
    assert not [path for path in (tmp_path / "grpo").iterdir() if path.is_dir()]


def test_ranks_that_would_split_a_group_are_refused(built, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(UserError, match="prompts_per_step=4"):
        built()


def test_reward_functions_see_what_trl_hands_them_and_may_log(built, sets):
    trainer = built(max_steps=2)
    seen: list[dict[str, Any]] = []

    def curious(prompts: Any, completions: Any, completion_ids: Any, **columns: Any) -> list[float]:
        seen.append({"prompts": prompts, "completions": completions, **columns})
        columns["log_metric"]("letters_seen", 3.0)
        columns["log_extra"]("number", list(range(len(completions))))
        assert len(prompts) == len(completions) == len(completion_ids)
        return letters(completions)

    trainer.reward_funcs[0] = curious
    trainer.train()
    assert [columns["trainer_state"].global_step for columns in seen] == [2, 2]  # one live state
    assert len(seen) == 2
    first = seen[0]
    assert first["completions"][0][0]["role"] == "assistant"
    assert first["prompts"][0][-1]["content"] == first["problem"][0]
    assert len(first["reference"]) == 16
    assert first["reference_answer"] == first["reference"]
    solutions = {problem.problem: problem.solution for problem in sets.grpo}
    assert first["reference_solution"] == [solutions[problem] for problem in first["problem"]]
    assert [point["letters_seen"] for point in curve_points(trainer.state)] == [3.0, 3.0]
    assert trainer.extra_columns == {"number": list(range(16))}


class Cut(TransformersEngine):
    """Engine: all completions run into the limit."""

    def generate(self, *args: Any) -> Any:
        groups = super().generate(*args)
        return [[dataclasses.replace(row, finish="length") for row in group] for group in groups]


class Off(TransformersEngine):
    """Engine with weights of its own; its log-probs differ by a known amount."""

    def __init__(self, *args: Any, shifts: list[float], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.shifts = shifts

    def generate(self, *args: Any) -> Any:
        groups = super().generate(*args)
        rows = [completion for group in groups for completion in group]
        shifted = iter(
            dataclasses.replace(
                row,
                log_probs=tuple(
                    value - self.shifts[number % len(self.shifts)] / len(row.log_probs)
                    for value in row.log_probs
                ),
            )
            for number, row in enumerate(rows)
        )
        return [[next(shifted) for _ in group] for group in groups]


def test_each_epoch_has_its_own_order_of_problems(built):
    trainer = built(prompts_per_step=4)
    trainer.problems = trainer.problems[:10]  # two steps an epoch, two left over

    def problems(step: int) -> list[str]:
        trainer.state.global_step = step
        return [problem["problem"] for problem in trainer._problems_of_step()]

    steps = [problems(step) for step in range(6)]
    for epoch in (0, 2, 4):
        assert len({*steps[epoch], *steps[epoch + 1]}) == 8
    assert steps[0] != steps[2]
    assert problems(3) == steps[3]
    trainer.grpo = trainer.grpo.model_copy(update={"shuffle": False})
    assert problems(2) == [problem["problem"] for problem in trainer.problems[:4]]


def test_a_mixture_of_experts_with_a_router_loss_is_refused(built, monkeypatch):
    from lib.training import grpo as module

    plain = module.trainable_policy

    def routed(*args: Any, **kwargs: Any) -> Any:
        policy = plain(*args, **kwargs)
        policy.config.output_router_logits = True
        return policy

    monkeypatch.setattr(module, "trainable_policy", routed)
    with pytest.raises(UserError, match="output_router_logits"):
        built()


def test_fused_scores_train_as_whole_logits_do(built, monkeypatch):
    def run(large: int) -> tuple[dict[str, Tensor], list[dict[str, float]]]:
        monkeypatch.setattr("lib.training.grpo.scoring.MAX_WHOLE_LOGITS", large)
        trainer = built(max_steps=1, beta=0.1, rollout={"temperature": 0.7})
        steps = Steps(trainer)
        trainer.train()
        return steps.gradients[0], curve_points(trainer.state)

    (whole, points), (fused, fused_points) = run(2**60), run(0)
    largest = max(float(gradient.abs().max()) for gradient in whole.values())
    torch.testing.assert_close(fused, whole, atol=1e-5 * largest, rtol=1e-4)
    assert fused_points[0]["entropy"] == pytest.approx(points[0]["entropy"], rel=1e-5)
    assert 0 < fused_points[0][f"{GAP}/mean"] < 1e-5


def test_fewer_problems_than_a_step_takes_are_refused(sets, base, smoke, tmp_path):
    with pytest.raises(UserError, match=r"prompts_per_step=4: .* 3 "):
        plain_grpo(sets.grpo[:3], base, smoke, tmp_path)
