"""Called as the public course's suite calls them: by its argument names, with its shapes.

Expected values are spelt out here in Python floats, not taken from the library.
"""

import inspect
import json
import math
import statistics
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

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
    "compute_per_instance_dpo_loss": (
        "lm lm_ref tokenizer beta prompt response_chosen response_rejected"
    ),
}
B, T, V = 2, 10, 100


@pytest.mark.parametrize("name", SIGNATURES)
def test_the_contracts_arguments_come_first_and_ours_have_defaults(name: str) -> None:
    parameters = list(inspect.signature(getattr(course, name)).parameters.values())
    contract = SIGNATURES[name].split()
    assert [parameter.name for parameter in parameters[: len(contract)]] == contract
    for extra in parameters[len(contract) :]:
        assert extra.default is not inspect.Parameter.empty


@pytest.fixture
def tensors() -> SimpleNamespace:
    generator = torch.Generator().manual_seed(42)
    policy = torch.randn(B, T, generator=generator)
    rewards = torch.rand(B, 1, generator=generator)
    return SimpleNamespace(
        logits=torch.randn(B, T, V, generator=generator),
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


def test_entropy(tensors: SimpleNamespace) -> None:
    entropy = adapters.run_compute_entropy(tensors.logits)
    p = tensors.logits[1, 4].softmax(-1).tolist()
    assert entropy.shape == (B, T)
    assert entropy[1, 4].item() == pytest.approx(-sum(q * math.log(q) for q in p), abs=1e-5)


@pytest.mark.parametrize("normalize_by_std", [True, False])
def test_group_normalized_rewards(normalize_by_std: bool) -> None:
    def reward_fn(response: str, ground_truth: str) -> dict[str, float]:
        reward = len(response) / 10
        return {"reward": reward, "format_reward": reward, "answer_reward": reward}

    responses = ["a", "abc", "ab", "abcd", "abcde", "", "abc", "abc"]
    normalized, raw, metadata = adapters.run_compute_group_normalized_rewards(
        reward_fn=reward_fn,
        rollout_responses=responses,
        repeated_ground_truths=["42"] * 8,
        group_size=4,
        advantage_eps=1e-6,
        normalize_by_std=normalize_by_std,
    )
    rewards = [len(response) / 10 for response in responses]
    expected = []
    for group in (rewards[:4], rewards[4:]):
        scale = statistics.stdev(group) + 1e-6 if normalize_by_std else 1
        expected += [(reward - statistics.fmean(group)) / scale for reward in group]
    torch.testing.assert_close(raw, torch.tensor(rewards))
    torch.testing.assert_close(normalized, torch.tensor(expected))
    assert all(isinstance(value, float) for value in metadata.values())


@pytest.mark.parametrize("cliprange", [0.1, 10.0])
def test_policy_gradient_losses(tensors: SimpleNamespace, cliprange: float) -> None:
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


def test_sft_microbatches_accumulate(tensors: SimpleNamespace) -> None:
    policy = tensors.policy.requires_grad_()
    for call in range(1, 11):
        loss, _ = adapters.run_sft_microbatch_train_step(
            policy_log_probs=policy,
            response_mask=tensors.mask,
            gradient_accumulation_steps=2,
            normalize_constant=42.0,
        )
        rows = masked_rows(policy.tolist(), tensors.mask)
        expected = -statistics.fmean(math.fsum(row) / 42 for row in rows) / 2
        assert loss.item() == pytest.approx(expected, abs=1e-6)
        torch.testing.assert_close(policy.grad, -call * tensors.mask / (42 * B * 2))


def test_grpo_microbatches_accumulate(tensors: SimpleNamespace) -> None:
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


@pytest.mark.parametrize("dim", [0, 1, -1, None])
def test_masked_reductions(tensors: SimpleNamespace, dim: int | None) -> None:
    tensor = tensors.logits
    mask = torch.rand(tensor.shape, generator=torch.Generator().manual_seed(1)) > 0.5
    total = (tensor * mask).sum() if dim is None else (tensor * mask).sum(dim)
    count = mask.sum() if dim is None else mask.sum(dim)
    # along axis 0 some positions are masked in both rows: the course's mean of nothing is NaN
    assert dim != 0 or (count == 0).any()
    mean = adapters.run_masked_mean(tensor=tensor, mask=mask, dim=dim)
    torch.testing.assert_close(mean, total / count, equal_nan=True)
    normalized = adapters.run_masked_normalize(
        tensor=tensor, mask=mask, dim=dim, normalize_constant=42.0
    )
    torch.testing.assert_close(normalized, total / 42)


def test_tokenize_then_score(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    batch = adapters.run_tokenize_prompt_and_output(
        prompt_strs=["Hello", "A test."], output_strs=["world", "!"], tokenizer=tokenizer
    )
    assert {name: tuple(t.shape) for name, t in batch.items()} == {
        "input_ids": (2, 9),
        "labels": (2, 9),
        "response_mask": (2, 9),
    }
    assert torch.equal(batch["input_ids"][:, 1:], batch["labels"][:, :-1])
    scores = adapters.run_get_response_log_probs(
        model=model,
        input_ids=batch["input_ids"],
        labels=batch["labels"],
        return_token_entropy=True,
    )
    assert {name: tuple(t.shape) for name, t in scores.items()} == {
        "log_probs": (2, 9),
        "token_entropy": (2, 9),
    }
    assert (scores["log_probs"] < 0).all()
    assert (scores["token_entropy"] < math.log(model.config.vocab_size)).all()


def test_packed_dataset_and_batches(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    path = tmp_path / "sft.jsonl"
    pairs = [{"prompt": f"question {i}", "response": f"answer {i}"} for i in range(9)]
    path.write_text("\n".join(map(json.dumps, pairs)))

    def pack(shuffle: bool) -> list[dict[str, list[int]]]:
        dataset = adapters.get_packed_sft_dataset(
            tokenizer=tokenizer, dataset_path=str(path), seq_length=32, shuffle=shuffle
        )
        return [{name: ids.tolist() for name, ids in row.items()} for row in dataset]

    assert pack(shuffle=False) != pack(shuffle=True)
    dataset = adapters.get_packed_sft_dataset(tokenizer, path, 32, True)
    loader = adapters.run_iterate_batches(dataset=dataset, batch_size=8, shuffle=True)
    assert len(loader) == math.ceil(len(dataset) / 8)
    first = next(iter(loader))
    assert {name: (tuple(ids.shape), ids.dtype) for name, ids in first.items()} == {
        "input_ids": ((8, 32), torch.long),
        "labels": ((8, 32), torch.long),
    }


def test_dpo(
    model: Qwen3ForCausalLM, reference_model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> None:
    loss = adapters.run_compute_per_instance_dpo_loss(
        lm=model,
        lm_ref=reference_model,
        tokenizer=tokenizer,
        beta=0.5,
        prompt="The quick brown fox jumps over",
        response_chosen="the lazy dog.",
        response_rejected="their crazy frog.",
    )
    assert loss.shape == ()
    assert loss > 0
