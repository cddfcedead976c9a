"""Loss and backward pass of one micro-batch; the caller steps the optimiser.

Each call adds 1/gradient_accumulation_steps of the batch's gradient, so that after that many calls
on micro-batches of equal size the gradient is the full batch's.

    SFT    −Σ_t m log π / (c · B · steps)
    GRPO   mean_i(mean_t ℓ) / steps, ℓ from `compute_policy_gradient_loss`

Shapes: B completions in the micro-batch, T tokens.
"""

from torch import Tensor

from lib.objectives.losses import (
    CourseLossType,
    aggregate_token_losses,
    compute_policy_gradient_loss,
)
from lib.objectives.masking import masked_mean, masked_normalize


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
