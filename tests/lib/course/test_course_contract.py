"""The course's functions take the public suite's argument names and shapes.

Expected values are spelt out here in Python floats, not taken from the library.
"""

import inspect
import math
import statistics
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from lib import course
from tests.lib.course import course_adapters as adapters

SIGNATURES = {
    "tokenize_prompt_and_output": "prompt_strs output_strs tokenizer",
    "compute_entropy": "logits",
    "get_response_log_probs": "model input_ids labels return_token_entropy",
    "masked_mean": "tensor mask dim",
    "masked_normalize": "tensor mask dim normalize_constant",
    "sft_microbatch_train_step": (
        "policy_log_probs response_mask gradient_accumulation_steps normalize_constant"
    ),
    "compute_group_normalized_rewards": (
        "reward_fn rollout_responses repeated_ground_truths group_size advantage_eps "
        "normalize_by_std"
    ),
    "compute_naive_policy_gradient_loss": "raw_rewards_or_advantages policy_log_probs",
    "compute_grpo_clip_loss": "advantages policy_log_probs old_log_probs cliprange",
    "compute_policy_gradient_loss": (
        "policy_log_probs loss_type raw_rewards advantages old_log_probs cliprange"
    ),
    "grpo_microbatch_train_step": (
        "policy_log_probs response_mask gradient_accumulation_steps loss_type raw_rewards "
        "advantages old_log_probs cliprange"
    ),
    "get_packed_sft_dataset": "tokenizer dataset_path seq_length shuffle",
    "iterate_batches": "dataset batch_size shuffle",
    "parse_mmlu_response": "mmlu_example model_output",
    "parse_gsm8k_response": "model_output",
    "compute_per_instance_dpo_loss": (
        "lm lm_ref tokenizer beta prompt response_chosen response_rejected"
    ),
}
B, T = 2, 10


@pytest.mark.parametrize("name", SIGNATURES)
def test_arguments_are_the_contracts_and_then_optional_ones(name):
    function = getattr(course, name)
    assert (getattr(adapters, f"run_{name}", None) or getattr(adapters, name)) is function
    parameters = list(inspect.signature(function).parameters.values())
    contract = SIGNATURES[name].split()
    assert [parameter.name for parameter in parameters[: len(contract)]] == contract
    for extra in parameters[len(contract) :]:
        assert extra.default is not inspect.Parameter.empty


@pytest.fixture
def tensors():
    generator = torch.Generator().manual_seed(42)
    policy = torch.randn(B, T, generator=generator)
    rewards = torch.rand(B, 1, generator=generator)
    return SimpleNamespace(
        policy=policy,
        old=policy + torch.randn(B, T, generator=generator),
        mask=torch.rand(B, T, generator=generator) > 0.5,
        rewards=rewards,
        advantages=rewards - rewards.mean(),
    )


def grpo_clip(t: SimpleNamespace, epsilon: float) -> list[list[float]]:
    return [
        [
            -min(math.exp(p - q) * a, min(max(math.exp(p - q), 1 - epsilon), 1 + epsilon) * a)
            for p, q in zip(*row, strict=True)
        ]
        for *row, a in zip(
            t.policy.tolist(), t.old.tolist(), t.advantages.flatten().tolist(), strict=True
        )
    ]


def masked_rows(values: list[list[float]], mask: Tensor) -> list[list[float]]:
    return [
        [v for v, kept in zip(row, keep, strict=True) if kept]
        for row, keep in zip(values, mask.tolist(), strict=True)
    ]


@pytest.mark.parametrize("cliprange", [0.1, 10.0])
def test_policy_gradient_losses(tensors, cliprange):
    t = tensors
    naive = adapters.run_compute_naive_policy_gradient_loss(
        raw_rewards_or_advantages=t.rewards, policy_log_probs=t.policy
    )
    torch.testing.assert_close(naive, torch.stack([-t.rewards[i] * t.policy[i] for i in range(B)]))
    clipped, _ = adapters.run_compute_grpo_clip_loss(
        advantages=t.advantages,
        policy_log_probs=t.policy,
        old_log_probs=t.old,
        cliprange=cliprange,
    )
    torch.testing.assert_close(clipped, torch.tensor(grpo_clip(t, cliprange)))
    expected = {
        "no_baseline": naive,
        "reinforce_with_baseline": -t.advantages * t.policy,
        "grpo_clip": clipped,
    }
    for loss_type, loss in expected.items():
        actual, _ = adapters.run_compute_policy_gradient_loss(
            policy_log_probs=t.policy,
            loss_type=loss_type,
            raw_rewards=t.rewards,
            advantages=t.advantages,
            old_log_probs=t.old,
            cliprange=cliprange,
        )
        torch.testing.assert_close(actual, loss)


def test_grpo_microbatches_accumulate(tensors):
    policy = tensors.policy.requires_grad_()
    gradients = []
    for _ in range(3):
        loss, _ = adapters.run_grpo_microbatch_train_step(
            policy_log_probs=policy,
            response_mask=tensors.mask,
            gradient_accumulation_steps=2,
            loss_type="grpo_clip",
            raw_rewards=tensors.rewards,
            advantages=tensors.advantages,
            old_log_probs=tensors.old,
            cliprange=0.1,
        )
        gradients.append(policy.grad.clone())
    rows = masked_rows(grpo_clip(tensors, 0.1), tensors.mask)
    expected = statistics.fmean(statistics.fmean(row) for row in rows) / 2
    assert loss.item() == pytest.approx(expected, abs=1e-6)
    torch.testing.assert_close(gradients[2], 3 * gradients[0])
    assert (gradients[0][~tensors.mask] == 0).all()
