"""The public course's losses and steps: names, arguments and return values are its contract.

    no_baseline, reinforce_with_baseline    ℓ_t = −R · log π, −A · log π
    grpo_clip                               the clipped surrogate (`lib.objectives.losses`)
    SFT step                                −Σ_t m log π / (c · B · steps)
    GRPO step                               mean_i(mean_t ℓ) / steps

A step adds 1/gradient_accumulation_steps of the batch's gradient, so that after that many calls on
micro-batches of equal size the gradient is the full batch's; the caller steps the optimiser.

Shapes: B completions, T tokens, G completions of one problem.
"""

from collections.abc import Callable, Mapping
from typing import Literal, TypeVar, get_args

import torch
from torch import Tensor

from lib.course.masking import masked_mean, masked_normalize
from lib.objectives.advantages import Baseline, group_advantages, has_signal
from lib.objectives.losses import aggregate_token_losses, check_choice, clipped_surrogate

CourseLossType = Literal["no_baseline", "reinforce_with_baseline", "grpo_clip"]
Value = TypeVar("Value")


def compute_group_normalized_rewards(
    reward_fn: Callable[[str, str], Mapping[str, float]],
    rollout_responses: list[str],
    repeated_ground_truths: list[str],
    group_size: int,
    advantage_eps: float,
    normalize_by_std: bool,
) -> tuple[Tensor, Tensor, dict[str, float]]:
    """Score completions and turn their rewards into group-relative advantages.

    Args:
        reward_fn: (completion, reference) → "reward", "format_reward", "answer_reward".
        rollout_responses: B completions, those of one problem next to each other.
        repeated_ground_truths: B references, each repeated G times.
        group_size: G.
        advantage_eps: added to the standard deviation.
        normalize_by_std: True is GRPO (`group`), False is Dr. GRPO (`mean`).

    Returns:
        advantages [B]; raw rewards [B]; metadata: mean, std, min and max of the reward, the mean
        of every component that `reward_fn` returns, the share of groups without signal.

    Raises:
        ValueError: the lists differ in length, or B is not a multiple of G, or G < 2.
    """
    if len(rollout_responses) != len(repeated_ground_truths):
        raise ValueError(
            f"{len(rollout_responses)} completions but {len(repeated_ground_truths)} references"
        )
    if not rollout_responses or group_size < 1 or len(rollout_responses) % group_size:
        raise ValueError(
            f"{len(rollout_responses)} completions are not whole groups of {group_size}"
        )
    pairs = zip(rollout_responses, repeated_ground_truths, strict=True)
    scores = [reward_fn(completion, reference) for completion, reference in pairs]
    raw_rewards = torch.tensor([score["reward"] for score in scores], dtype=torch.float32)
    groups = raw_rewards.view(-1, group_size)
    baseline: Baseline = "group" if normalize_by_std else "mean"
    advantages = group_advantages(groups, baseline=baseline, eps=advantage_eps)
    return advantages.flatten(), raw_rewards, _reward_statistics(scores, groups)


def _reward_statistics(scores: list[Mapping[str, float]], groups: Tensor) -> dict[str, float]:
    components = {
        f"{name}_mean": sum(score[name] for score in scores) / len(scores) for name in scores[0]
    }
    return components | {
        "reward_std": groups.std().item(),
        "reward_min": groups.min().item(),
        "reward_max": groups.max().item(),
        "zero_signal_groups": 1 - has_signal(groups).float().mean().item(),
    }


def compute_naive_policy_gradient_loss(
    raw_rewards_or_advantages: Tensor, policy_log_probs: Tensor
) -> Tensor:
    """REINFORCE, per token: −A · log π.

    Args:
        raw_rewards_or_advantages: [B, 1], the same for each token of a completion.
        policy_log_probs: [B, T].

    Returns:
        [B, T].

    Raises:
        ValueError: a shape that would broadcast along the wrong axis.
    """
    _check_column("raw_rewards_or_advantages", raw_rewards_or_advantages, policy_log_probs)
    return -raw_rewards_or_advantages * policy_log_probs


def compute_grpo_clip_loss(
    advantages: Tensor,
    policy_log_probs: Tensor,
    old_log_probs: Tensor,
    cliprange: float,
    *,
    cliprange_high: float | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The clipped surrogate, per token.

    Args:
        advantages: [B, 1].
        policy_log_probs: [B, T].
        old_log_probs: [B, T], of the policy that drew the tokens.
        cliprange: ε.
        cliprange_high: ε_high (DAPO); None: ε.

    Returns:
        [B, T], and metadata: "is_clipped" [B, T] bool, where the clipped term is the smaller and
        no gradient flows; "clip_fraction", its share of all positions, padding included.

    Raises:
        ValueError: a shape that would broadcast along the wrong axis.
    """
    _check_column("advantages", advantages, policy_log_probs)
    losses, clipped = clipped_surrogate(
        advantages, policy_log_probs - old_log_probs, low=cliprange, high=cliprange_high
    )
    return losses, {"is_clipped": clipped, "clip_fraction": clipped.to(losses.dtype).mean()}


def compute_policy_gradient_loss(
    policy_log_probs: Tensor,
    loss_type: CourseLossType,
    raw_rewards: Tensor | None = None,
    advantages: Tensor | None = None,
    old_log_probs: Tensor | None = None,
    cliprange: float | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Per-token loss by the public course's name.

    Args:
        policy_log_probs: [B, T].
        loss_type: "no_baseline", "reinforce_with_baseline" or "grpo_clip".
        raw_rewards: [B, 1], for "no_baseline".
        advantages: [B, 1], for the other two.
        old_log_probs: [B, T], for "grpo_clip".
        cliprange: ε, for "grpo_clip".

    Returns:
        [B, T], and the metadata of `compute_grpo_clip_loss` ({} for the other two).

    Raises:
        ValueError: unknown name, or an argument that it needs is None.
    """
    check_choice("loss_type", loss_type, get_args(CourseLossType))
    if loss_type == "no_baseline":
        rewards = _needed("raw_rewards", raw_rewards, loss_type)
        return compute_naive_policy_gradient_loss(rewards, policy_log_probs), {}
    advantages = _needed("advantages", advantages, loss_type)
    if loss_type == "reinforce_with_baseline":
        return compute_naive_policy_gradient_loss(advantages, policy_log_probs), {}
    old_log_probs = _needed("old_log_probs", old_log_probs, loss_type)
    epsilon = _needed("cliprange", cliprange, loss_type)
    return compute_grpo_clip_loss(advantages, policy_log_probs, old_log_probs, epsilon)


def sft_microbatch_train_step(
    policy_log_probs: Tensor,
    response_mask: Tensor,
    gradient_accumulation_steps: int,
    normalize_constant: float = 1.0,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Negative log-likelihood of the response tokens, and its backward pass.

    Args:
        policy_log_probs: [B, T] with a graph to go back through.
        response_mask: [B, T], 1 on response tokens.
        gradient_accumulation_steps: micro-batches per optimiser step.
        normalize_constant: divisor of each row's sum.

    Returns:
        The loss that was differentiated, detached; metadata: "token_loss", the mean negative
        log-likelihood per response token (NaN without any), "num_tokens".
    """
    per_row = masked_normalize(-policy_log_probs, response_mask, -1, normalize_constant)
    loss = per_row.mean() / gradient_accumulation_steps
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach(), {
        "token_loss": masked_mean(-policy_log_probs.detach(), response_mask),
        "num_tokens": response_mask.sum(),
    }


def grpo_microbatch_train_step(
    policy_log_probs: Tensor,
    response_mask: Tensor,
    gradient_accumulation_steps: int,
    loss_type: CourseLossType,
    raw_rewards: Tensor | None = None,
    advantages: Tensor | None = None,
    old_log_probs: Tensor | None = None,
    cliprange: float | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Policy-gradient loss, averaged per completion and then over them, and its backward pass.

    Where the mask is 0 nothing is read: a NaN or −∞ there leaves the gradient 0. A completion
    whose mask is 0 throughout adds 0 to the mean.

    Args:
        policy_log_probs: [B, T] with a graph to go back through.
        response_mask: [B, T], 1 on response tokens.
        gradient_accumulation_steps: micro-batches per optimiser step.
        loss_type: see `compute_policy_gradient_loss`, which takes the rest.
        raw_rewards: [B, 1].
        advantages: [B, 1].
        old_log_probs: [B, T].
        cliprange: ε.

    Returns:
        The loss that was differentiated, detached; metadata: for "grpo_clip" "is_clipped" [B, T]
        and "clip_fraction", the share of response tokens whose gradient the clip removed.

    Raises:
        ValueError: as `compute_policy_gradient_loss`.
    """
    ignored = ~response_mask.bool()
    per_token, metadata = compute_policy_gradient_loss(
        policy_log_probs.masked_fill(ignored, 0),
        loss_type,
        raw_rewards,
        advantages,
        None if old_log_probs is None else old_log_probs.masked_fill(ignored, 0),
        cliprange,
    )
    loss = aggregate_token_losses(per_token, response_mask, loss_type="grpo")
    loss = loss / gradient_accumulation_steps
    loss.backward()  # type: ignore[no-untyped-call]
    if "is_clipped" in metadata:
        clipped = metadata["is_clipped"].to(per_token.dtype)
        metadata["clip_fraction"] = masked_mean(clipped, response_mask)
    return loss.detach(), metadata


def _check_column(name: str, column: Tensor, log_probs: Tensor) -> None:
    if column.dim() != 2 or len(column) != len(log_probs):
        raise ValueError(f"{name}: expected [{len(log_probs)}, 1], got {list(column.shape)}")


def _needed(name: str, value: Value | None, loss_type: str) -> Value:
    if value is None:
        raise ValueError(f"{loss_type} needs `{name}`")
    return value
