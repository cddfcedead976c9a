"""The course's functions take the public suite's argument names and shapes.

Expected values are spelt out here in Python floats, not taken from the library.
"""

import inspect
import math
import statistics
from itertools import compress

import pytest
import torch
from torch import Tensor

from examples import cs336 as course
from examples.cs336 import adapters
from lib.rewards.stacks.r1_zero import r1_zero_reward_fn

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
COLUMNS = ("policy_log_probs", "old_log_probs", "raw_rewards", "advantages")


@pytest.mark.parametrize("name", SIGNATURES)
def test_arguments_are_the_contracts_and_then_optional_ones(name):
    function = getattr(course, name)
    assert (getattr(adapters, f"run_{name}", None) or getattr(adapters, name)) is function
    parameters = list(inspect.signature(function).parameters.values())
    contract = SIGNATURES[name].split()
    assert [parameter.name for parameter in parameters[: len(contract)]] == contract
    assert all(extra.default is not extra.empty for extra in parameters[len(contract) :])


@pytest.fixture
def tensors():
    """Return the arguments common to the policy-gradient functions."""
    generator = torch.Generator().manual_seed(42)
    policy = torch.randn(B, T, generator=generator)
    rewards = torch.rand(B, 1, generator=generator)
    return {
        "policy_log_probs": policy,
        "raw_rewards": rewards,
        "advantages": rewards - rewards.mean(),
        "old_log_probs": policy + torch.randn(B, T, generator=generator),
    }


def loss_by_hand(tensors: dict[str, Tensor], loss_type: str, epsilon: float) -> list[list[float]]:
    def loss(new, old, reward, advantage):
        if loss_type != "grpo_clip":
            return -new * (reward if loss_type == "no_baseline" else advantage)
        ratio = math.exp(new - old)
        return -min(ratio * advantage, min(max(ratio, 1 - epsilon), 1 + epsilon) * advantage)

    rows = zip(*(tensors[name].expand(B, T).tolist() for name in COLUMNS), strict=True)
    return [[loss(*token) for token in zip(*row, strict=True)] for row in rows]


@pytest.mark.parametrize(
    ("loss_type", "cliprange"),
    [("no_baseline", 0), ("reinforce_with_baseline", 0), ("grpo_clip", 0.1), ("grpo_clip", 10.0)],
)
def test_a_micro_batch_has_the_hand_formulas_loss_and_adds_up(tensors, loss_type, cliprange):
    policy = tensors["policy_log_probs"].requires_grad_()
    mask = torch.rand(B, T, generator=torch.Generator().manual_seed(43)) > 0.5
    settings = {"loss_type": loss_type, "cliprange": cliprange}
    by_hand = loss_by_hand(tensors, loss_type, cliprange)
    losses, _ = adapters.run_compute_policy_gradient_loss(**tensors, **settings)
    torch.testing.assert_close(losses, torch.tensor(by_hand))
    gradients = []
    for _ in range(3):
        loss, _ = adapters.run_grpo_microbatch_train_step(
            **tensors, **settings, response_mask=mask, gradient_accumulation_steps=2
        )
        gradients.append(policy.grad.clone())
    rows = zip(by_hand, mask.tolist(), strict=True)
    expected = statistics.fmean(statistics.fmean(compress(*row)) for row in rows) / 2
    assert loss.item() == pytest.approx(expected, abs=1e-6)
    torch.testing.assert_close(gradients[2], 3 * gradients[0])
    assert (gradients[0][~mask] == 0).all()


def test_our_grader_is_a_reward_function():
    """Its result has a text too, the `class`."""
    texts = ["so </think> <answer>5</answer>", "5"]
    advantages, raw, metadata = course.compute_group_normalized_rewards(
        r1_zero_reward_fn, texts, ["5", "5"], 2, 1e-6, normalize_by_std=False
    )
    assert (advantages.tolist(), raw.tolist()) == ([0.5, -0.5], [1.0, 0.0])
    assert metadata["format_reward_mean"] == 0.5
