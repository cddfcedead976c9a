"""TRL's own losses on one fixed batch, value and gradient of every parameter, against ours."""

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from datasets import Dataset
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import Qwen3ForCausalLM
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer

from examples.cs336 import compute_per_instance_dpo_loss, encode_alpaca, get_response_log_probs
from lib.objectives.advantages import gdpo_advantages, group_advantages
from lib.objectives.logprobs import compute_entropy
from lib.objectives.losses import EntropyCoefficient, PolicyLoss
from lib.objectives.sampler import compare_with_sampler
from tests.lib.objectives.losses import assert_gradients, gradients_of, loss_of
from tests.lib.objectives.tiny import PAD, seeded, tiny_model, tiny_tokenizer

PROMPT_LENGTH, T, B = 3, 7, 4
REWARDS = [0.0, 1.0, 1.0, 0.5, 2.0, 2.0, 2.5, 2.0]
QUIET = {"use_cpu": True, "report_to": "none", "bf16": False}


@pytest.fixture(scope="module")
def trainer(tmp_path_factory):
    """Build TRL's trainer once; tests set the fields read by `_compute_loss`."""
    config = GRPOConfig(
        output_dir=str(tmp_path_factory.mktemp("grpo")),
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=T,
        **QUIET,
    )
    return GRPOTrainer(
        model=tiny_model(0),
        reward_funcs=lambda completions, **_: REWARDS,
        args=config,
        train_dataset=Dataset.from_list([{"prompt": "ab"}, {"prompt": "cd"}]),
        processing_class=tiny_tokenizer(),
    )


@pytest.fixture
def batch(trainer):
    """Make completions of unequal length; old and reference policy differ from the model."""
    generator = seeded()
    prompt = torch.randint(100, (B, PROMPT_LENGTH), generator=generator)
    completion = torch.randint(100, (B, T), generator=generator)
    mask = (torch.arange(T) < torch.tensor([[7], [2], [4], [1]])).long()
    completion = torch.where(mask.bool(), completion, PAD)
    ids = torch.cat([prompt, completion], 1)
    with torch.no_grad():
        now = log_probs(trainer.model, ids)
    return {
        "prompt_ids": prompt,
        "prompt_mask": torch.ones_like(prompt),
        "completion_ids": completion,
        "completion_mask": mask,
        "advantages": torch.tensor([1.5, -0.5, -1.5, 0.5]),
        "old_per_token_logps": now + 0.3 * torch.randn(B, T, generator=generator),
        "ref_per_token_logps": now + 0.3 * torch.randn(B, T, generator=generator),
        "num_items_in_batch": mask.sum(),
    }


def log_probs(model: Qwen3ForCausalLM, ids: Tensor) -> Tensor:
    return get_response_log_probs(model, ids[:, :-1], ids[:, 1:])["log_probs"][:, -T:]


def value_and_gradients(model: Qwen3ForCausalLM, loss: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    return loss.detach(), gradients_of(model, loss)


def score_generated(trainer: GRPOTrainer) -> dict[str, Tensor]:
    """Let TRL generate and score a group for each of two prompts."""
    rows = [{"prompt": "ab"}] * 4 + [{"prompt": "cd"}] * 4
    return trainer._generate_and_score_completions(rows)


@pytest.fixture
def fields(trainer, monkeypatch):
    """Set fields of the trainer for this test."""

    def setter(**values):
        for name, value in values.items():
            monkeypatch.setattr(trainer, name, value, raising=False)

    return setter


def trls(
    trainer: GRPOTrainer, batch: dict[str, Tensor], **fields: Any
) -> tuple[Tensor, dict[str, Tensor]]:
    """Compute TRL's loss and its gradients with these fields set."""
    defaults = {
        "loss_type": "grpo",
        "importance_sampling_level": "token",
        "beta": 0.0,
        "epsilon_low": 0.2,
        "epsilon_high": 0.2,
        "current_gradient_accumulation_steps": 1,
    }
    for name, value in (defaults | fields).items():
        setattr(trainer, name, value)
    trainer.model.train()
    return value_and_gradients(trainer.model, trainer._compute_loss(trainer.model, batch))


def ours_of(trainer: GRPOTrainer, batch: dict[str, Tensor], **settings) -> PolicyLoss:
    """Compute our loss on the same batch."""
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
    return loss_of(
        log_probs(trainer.model, ids),
        batch["advantages"],
        batch["completion_mask"],
        **{"old_log_probs": batch["old_per_token_logps"], "loss": "grpo"} | settings,
    )


def assert_equal(model: Qwen3ForCausalLM, ours: Tensor, theirs: tuple[Tensor, dict[str, Tensor]]):
    """Assert that our loss is theirs, in value and gradients."""
    torch.testing.assert_close(ours, theirs[0], atol=1e-6, rtol=1e-5)
    assert_gradients(gradients_of(model, ours), theirs[1], within=1e-5, least=1e-3)


@pytest.mark.parametrize(("kl_coef", "kl_weighted"), [(0.0, True), (0.2, True), (0.2, False)])
@pytest.mark.parametrize("ratio_level", ["token", "sequence"])
@pytest.mark.parametrize("clip_high", [0.2, 0.4])
@pytest.mark.parametrize("loss_type", ["grpo", "bnpo", "dr_grpo", "dapo", "cispo"])
def test_policy_loss_is_trls(
    trainer, batch, loss_type, clip_high, ratio_level, kl_coef, kl_weighted
):
    trainer.args.use_bias_correction_kl = kl_weighted
    trainer._metrics["train"].clear()
    # TRL bounds CISPO's ratio itself.
    high = 1 + clip_high if loss_type == "cispo" else clip_high
    theirs = trls(
        trainer,
        batch,
        loss_type=loss_type,
        importance_sampling_level=ratio_level,
        beta=kl_coef,
        epsilon_high=high,
    )
    result = ours_of(
        trainer,
        batch,
        loss=loss_type,
        clip_high=clip_high,
        ratio_level=ratio_level,
        reference_log_probs=batch["ref_per_token_logps"],
        kl_coef=kl_coef,
        kl_weighted=kl_weighted,
        max_completion_length=T,
        num_tokens=int(batch["num_items_in_batch"]),
    )
    assert_equal(trainer.model, result.loss, theirs)
    metrics, mask = trainer._metrics["train"], batch["completion_mask"].bool()
    if ratio_level == "token":  # per sequence, TRL counts rows where we count their tokens
        clipped = result.clipped[mask].float().mean()
        name = "cispo_clip_ratio" if loss_type == "cispo" else "clip_ratio/region_mean"
        assert metrics[name] == [pytest.approx(clipped.item())]
    if kl_coef:
        assert metrics["kl"] == [pytest.approx(result.kl[mask].mean().item(), rel=1e-4)]


@pytest.mark.parametrize("ratio_level", ["token", "sequence"])
@pytest.mark.parametrize("delta", [1.25, 4.0])
def test_the_two_sided_clip_is_trls(trainer, batch, delta, ratio_level, monkeypatch):
    monkeypatch.setattr(trainer.args, "delta", delta)
    batch["old_per_token_logps"] = batch["old_per_token_logps"] - 0.5
    theirs = trls(trainer, batch, loss_type="dapo", importance_sampling_level=ratio_level)
    two_sided, one_sided = (
        ours_of(trainer, batch, loss="dapo", delta=each, ratio_level=ratio_level).loss
        for each in (delta, None)
    )
    assert_equal(trainer.model, two_sided, theirs)
    if delta < 2 and ratio_level == "token":
        assert one_sided > theirs[0] + 1e-3


@pytest.mark.parametrize(("first", "target"), [(0.3, 0.0), (0.0, 9.0), (0.02, 0.1), (0.004, 0.1)])
def test_the_entropy_bonus_and_its_coefficient_are_trls(
    trainer, batch, first, target, fields, monkeypatch
):
    """The coefficient is fixed, steered below its target, or without effect above it."""
    # The flag is the process's: a run interrupted by an earlier test leaves it unset.
    monkeypatch.setattr(trainer.accelerator, "sync_gradients", True)
    fields(
        entropy_coef=first,
        use_adaptive_entropy=target > 0,
        _entropy_bonus_enabled=True,
        _last_world_entropy=float("inf"),
    )
    monkeypatch.setattr(trainer.args, "entropy_target", target)
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
    bonus, applied = EntropyCoefficient(first, target), []
    for _ in range(3):
        theirs = trls(trainer, batch)
        entropy = compute_entropy(trainer.model(ids).logits[:, -T - 1 : -1])
        coefficient = bonus.step_coefficient
        result = ours_of(trainer, batch, entropy=entropy, entropy_coef=coefficient)
        applied.append(coefficient)
        bonus.update(entropy[batch["completion_mask"].bool()].mean().item())
        assert_equal(trainer.model, result.loss, theirs)
        assert bonus.coefficient == pytest.approx(trainer.entropy_coef)
    assert bonus.is_used
    assert any(applied) == (target != 0.1)


@pytest.mark.parametrize("floor", [0.0, 0.5])
@pytest.mark.parametrize(
    "correction", ["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]
)
def test_the_samplers_correction_is_trls(trainer, correction, floor, fields):
    generator = seeded()
    lengths = [7, 2, 4, 1, 5, 3, 6, 2]
    completions = [torch.randint(100, (n,), generator=generator).tolist() for n in lengths]
    reported = [(-5 + 2 * torch.randn(n, generator=generator)).tolist() for n in lengths]
    engine = SimpleNamespace(
        sync_weights=lambda: None,
        generate=lambda **_: (None, completions, [[[v] for v in row] for row in reported], None),
    )
    fields(
        use_vllm=True,
        vllm_generation=engine,
        _last_loaded_step=-1,
        vllm_importance_sampling_correction=True,
        vllm_importance_sampling_mode=correction,
        vllm_importance_sampling_clip_max=2.0,
        vllm_importance_sampling_clip_min=floor or None,
    )
    trainer.model.train()
    theirs = score_generated(trainer)
    mask = theirs["completion_mask"]
    ours = compare_with_sampler(
        theirs["old_per_token_logps"],
        theirs["sampling_per_token_logps"],
        mask,
        correction=correction,
        cap=2.0,
        floor=floor,
    )
    torch.testing.assert_close(ours.weights, theirs["importance_sampling_ratio"])
    gap = trainer._metrics["train"]["sampling/sampling_logp_difference/mean"][-1]
    assert (ours.gap.sum() / mask.sum()).item() == pytest.approx(gap)
    bounded = ours.weights == (2 if correction.endswith("truncate") else 0)
    # Of these eight completions, no product of ratios lies between floor and cap.
    assert 0 < bounded.float().mean() < 1 + (floor > 0)
    assert (((ours.weights > 0) & (ours.weights < 0.5)).sum() > 0) == (floor == 0)


@pytest.mark.parametrize(
    ("correction", "weights"),
    [("sequence_truncate", [0.5, 1.0, 3.0]), ("sequence_mask", [0.0, 1.0, 0.0])],
)
def test_a_completions_weight_is_held_on_both_sides(correction, weights):
    """The products of two tokens' ratios are 1/4, 1 and 4."""
    ratios = torch.tensor([[0.5, 0.5], [4.0, 0.25], [1.0, 4.0]])
    sampled = torch.full((3, 2), -1.0)
    compared = compare_with_sampler(
        sampled + ratios.log(), sampled, torch.ones(3, 2), correction=correction, floor=0.5
    )
    assert compared.weights.flatten().tolist() == weights


@pytest.mark.parametrize(
    ("baseline", "scale_rewards"), [("mean", "none"), ("group", "group"), ("batch", "batch")]
)
def test_advantages_are_trls(trainer, baseline, scale_rewards):
    trainer.scale_rewards = scale_rewards
    theirs = score_generated(trainer)["advantages"]
    ours = group_advantages(torch.tensor(REWARDS).view(2, 4), baseline=baseline)
    torch.testing.assert_close(ours.flatten(), theirs)


def test_gdpo_advantages_are_trls(trainer, fields):
    """Three rewards of unlike scales, one without a signal; in one group none has any."""
    rewards = torch.tensor(
        [
            [[0, 1, 1, 0.5], [2] * 4],
            [[8, 0, 9, 9], [1] * 4],
            [[0.1] * 4, [0.1] * 4],
        ]
    )
    components = rewards.movedim(0, -1).contiguous()  # [P, G, F]
    weights = torch.tensor([0.25, 1.0, 2.0])
    fields(
        multi_objective_aggregation="normalize_then_sum",
        reward_funcs=[None] * 3,
        reward_func_names=["a", "b", "c"],
        reward_weights=weights,
        _calculate_rewards=lambda *_: components.flatten(0, 1),
    )
    theirs = score_generated(trainer)["advantages"]
    ours = gdpo_advantages(components, weights)
    torch.testing.assert_close(ours.flatten(), theirs, atol=1e-6, rtol=1e-5)
    assert ours[1].tolist() == [0.0] * 4
    summed = group_advantages((components * weights).sum(-1), baseline="group")
    assert (ours[0] - summed[0]).abs().max() > 0.1


def test_dpo_loss_is_trls(tmp_path, tokenizer):
    pair = {"prompt": "Add 1 and 2.", "chosen": "3.", "rejected": "Five!"}
    model, reference = tiny_model(0), tiny_model(1)
    # so small a beta that the sigmoid is not saturated by two random models' margin
    config = DPOConfig(output_dir=str(tmp_path), beta=0.02, **QUIET)
    trainer = DPOTrainer(
        model=model,
        ref_model=copy.deepcopy(reference),
        args=config,
        train_dataset=Dataset.from_list([pair] * 2),
        processing_class=tokenizer,
    )
    rows = [
        torch.tensor(encode_alpaca(tokenizer, prompt=pair["prompt"], response=pair[which]))
        for which in ("chosen", "rejected")
    ]
    response_at = len(rows[0]) - len("3.") - 1
    inputs = {"input_ids": pad_sequence(rows, batch_first=True, padding_value=PAD)}
    inputs["attention_mask"] = (inputs["input_ids"] != PAD).long()
    inputs["completion_mask"] = inputs["attention_mask"].clone()
    inputs["completion_mask"][:, :response_at] = 0
    theirs = trainer._compute_loss(trainer.model, inputs, return_outputs=False)
    theirs = value_and_gradients(model, theirs)
    ours = compute_per_instance_dpo_loss(
        model, reference, tokenizer, 0.02, pair["prompt"], pair["chosen"], pair["rejected"]
    )
    assert_equal(model, ours, theirs)
    assert 0.05 < theirs[0] < 5
