"""The public course's log-probs, masked means, losses and training steps, with its names, arguments
and return values.

    masked_mean                             Σ m·x / Σ m
    masked_normalize                        Σ m·x / c
    no_baseline, reinforce_with_baseline    ℓ_t = −R · log π, −A · log π
    grpo_clip                               the clipped surrogate (`lib.objectives.losses`)
    SFT step                                −Σ_t m log π / (c · B · steps)
    GRPO step                               mean_i(mean_t ℓ) / steps
    DPO (arXiv:2305.18290, eq. 7)           −log σ(β · [(log π(y_w) − log π_ref(y_w))
                                                        − (log π(y_l) − log π_ref(y_l))])

Where a mask is 0 the value is never read: an infinity or a NaN there (padding has no meaningful
log-prob) reaches neither the result nor the gradient. Each of the `steps` =
gradient_accumulation_steps calls, on micro-batches of equal size, adds 1/steps of its
micro-batch's gradient: after the last one, the gradient is the full batch's. The caller steps the
optimiser. In DPO, y_w is the better and y_l the worse completion of one prompt, with log-probs
summed over their tokens.

Differs from the papers in: GRPO's loss has no KL term.

Shapes: B sequences or completions, T tokens, V vocabulary, G completions of one problem, N pairs.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from examples.cs336.data import encode_alpaca
from lib.objectives.advantages import Baseline, group_advantages, has_signal
from lib.objectives.logprobs import (
    can_fuse,
    compute_entropy,
    score_labels,
    selective_log_softmax,
)
from lib.objectives.losses import average_token_losses, clipped_surrogate

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CourseLossType = Literal["no_baseline", "reinforce_with_baseline", "grpo_clip"]
Argument = TypeVar("Argument")


def get_response_log_probs(
    model: torch.nn.Module,
    input_ids: Tensor,
    labels: Tensor,
    return_token_entropy: bool = False,
    *,
    chunk_size: int | None = None,
) -> dict[str, Tensor]:
    """Return the log-prob of every label under a causal language model, in nats; none is masked.

    Padding must be on the right: under causal attention, no other token then attends to it.

    Args:
        model: returns `.logits` [B, T, V] for input ids; for `chunk_size` also needs
            `get_output_embeddings()`, as Hugging Face models have (unwrapped from DDP or FSDP).
        input_ids: [B, T].
        labels: [B, T], the ids shifted by one.
        return_token_entropy: also compute the entropy of each position's distribution, in nats.
        chunk_size: tokens whose logits exist at one time; None computes all logits.

    Returns:
        "log_probs": [B, T]; with `return_token_entropy` also "token_entropy": [B, T].

    Raises:
        ValueError: `chunk_size` with a model that changes its logits after the output layer
            (soft-capping, scaling): chunks would score other logits than the model's.
    """
    if chunk_size is None:
        logits = model(input_ids).logits  # [B, T, V]
        scores = {"log_probs": selective_log_softmax(logits, labels)}
        if return_token_entropy:
            scores["token_entropy"] = compute_entropy(logits)
        return scores
    # True if the model's logits are the output layer's result, without soft-capping or scaling.
    if not can_fuse(model):
        raise ValueError(
            f"{type(model).__name__} changes its logits after the output layer, so they cannot be "
            "computed in chunks: use chunk_size=None"
        )
    # The output layer's weight is [V, hidden].
    vocabulary = len(model.get_output_embeddings().weight)  # type: ignore[operator]
    fused = score_labels(
        model,
        {"input_ids": input_ids},
        labels,
        # A mask that is True for all labels.
        torch.ones_like(labels, dtype=torch.bool),
        # `chunk_size` counts tokens, `score_labels` counts logits [tokens, V].
        chunk_numel=chunk_size * vocabulary,
        # Gradients flow through the entropy too, as they do without chunks.
        entropy_grad=return_token_entropy,
    )
    scores = {"log_probs": fused.log_probs}
    if return_token_entropy:
        scores["token_entropy"] = fused.entropy
    return scores


def masked_mean(tensor: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Average over the positions where the mask is 1.

    Args:
        tensor: values, any shape.
        mask: same shape (or one that broadcasts to it), 0/1 or bool.
        dim: axis to average along; None averages over all positions.

    Returns:
        `tensor`'s shape without `dim`. NaN where the mask is 0 throughout, since that mean does not
        exist. Losses that must survive an empty row use `average_token_losses` instead.
    """
    counted = mask.bool().expand_as(tensor)
    # `where` instead of a product with the mask, since 0 · NaN is NaN.
    masked = torch.where(counted, tensor, 0)
    return masked.sum(dim=dim) / counted.sum(dim=dim)


def masked_normalize(
    tensor: Tensor, mask: Tensor, dim: int | None = None, normalize_constant: float = 1.0
) -> Tensor:
    """Sum over the positions where the mask is 1, divided by a constant.

    Dr. GRPO (arXiv:2503.20783) divides by a constant instead of by the length, because a mean over
    each completion's own length makes long wrong completions cheap.

    Args:
        tensor: values, any shape.
        mask: same shape (or one that broadcasts to it), 0/1 or bool.
        dim: axis to sum along; None sums over all positions.
        normalize_constant: divisor, not 0.

    Returns:
        `tensor`'s shape without `dim`; 0 where the mask is 0 throughout.
    """
    # `where` instead of a product with the mask, since 0 · NaN is NaN.
    masked = torch.where(mask.bool().expand_as(tensor), tensor, 0)
    return masked.sum(dim=dim) / normalize_constant


def compute_group_normalized_rewards(
    reward_fn: Callable[[str, str], Mapping[str, Any]],
    rollout_responses: list[str],
    repeated_ground_truths: list[str],
    group_size: int,
    advantage_eps: float,
    normalize_by_std: bool,
) -> tuple[Tensor, Tensor, dict[str, float]]:
    """Score completions, and return group-relative advantages and the raw rewards.

    Args:
        reward_fn: (completion, reference) → {"reward": …, "format_reward": …, "answer_reward": …}.
        rollout_responses: B completions, those of one problem next to each other.
        repeated_ground_truths: B references, each repeated G times.
        group_size: G.
        advantage_eps: added to the standard deviation.
        normalize_by_std: divide by the group's standard deviation after the mean is subtracted:
            True is GRPO, False is Dr. GRPO.

    Returns:
        advantages [B]; raw rewards [B], the "reward" of each completion; metadata: the mean of each
        component ("reward_mean", …), and "zero_signal_groups", the share of groups with equal
        rewards, whose advantages are 0.

    Raises:
        ValueError: the lists differ in length, B is 0 or no multiple of G, or G < 2.
    """
    if not rollout_responses or group_size < 1 or len(rollout_responses) % group_size:
        raise ValueError(
            f"{len(rollout_responses)} completions are not whole groups of {group_size}"
        )
    pairs = zip(rollout_responses, repeated_ground_truths, strict=True)
    scores = [reward_fn(completion, reference) for completion, reference in pairs]
    raw_rewards = torch.tensor([score["reward"] for score in scores], dtype=torch.float32)
    # [P, G]: completions of one problem are next to each other.
    groups = raw_rewards.view(-1, group_size)
    # "group" divides by the standard deviation, "mean" does not.
    baseline: Baseline = "group" if normalize_by_std else "mean"
    advantages = group_advantages(groups, baseline=baseline, eps=advantage_eps)
    metadata = {
        f"{name}_mean": sum(score[name] for score in scores) / len(scores)
        for name, value in scores[0].items()
        # The `class` of `r1_zero_reward_fn` is a text.
        if not isinstance(value, str)
    }
    # `has_signal` is True [P] for groups with differing rewards.
    metadata["zero_signal_groups"] = 1 - has_signal(groups).float().mean().item()
    return advantages.flatten(), raw_rewards, metadata


def compute_naive_policy_gradient_loss(
    raw_rewards_or_advantages: Tensor, policy_log_probs: Tensor
) -> Tensor:
    """Return the REINFORCE loss per token: −A · log π.

    Args:
        raw_rewards_or_advantages: [B, 1], the same for each token of a completion.
        policy_log_probs: [B, T].

    Returns:
        [B, T].

    Raises:
        ValueError: a shape that would broadcast along the wrong axis.
    """
    # Raises ValueError for an argument [B], which would broadcast along tokens if B = T.
    _check_column("raw_rewards_or_advantages", raw_rewards_or_advantages, policy_log_probs)
    return -raw_rewards_or_advantages * policy_log_probs


def compute_grpo_clip_loss(
    advantages: Tensor,
    policy_log_probs: Tensor,
    old_log_probs: Tensor,
    cliprange: float,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss of the clipped surrogate per token: −min(ρA, clip(ρ, 1 − ε, 1 + ε)A).

    ρ is exp(log π − log π_old).

    Args:
        advantages: [B, 1].
        policy_log_probs: [B, T].
        old_log_probs: [B, T], of the policy that drew the tokens.
        cliprange: ε.

    Returns:
        [B, T], and metadata: "is_clipped" [B, T] bool, where the clipped term is the smaller and
        no gradient flows; "clip_fraction", its share of all positions, padding included.

    Raises:
        ValueError: a shape that would broadcast along the wrong axis.
    """
    # Raises ValueError for advantages [B], which would broadcast along tokens if B = T.
    _check_column("advantages", advantages, policy_log_probs)
    losses, clipped = clipped_surrogate(
        advantages, policy_log_probs - old_log_probs, low=cliprange, high=cliprange
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
    """Return the loss per token with the name `loss_type`, and metadata of the clip.

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
        ValueError: unknown name, or an argument that the loss needs is None.
    """
    if loss_type not in get_args(CourseLossType):
        known = ", ".join(get_args(CourseLossType))
        raise ValueError(f"loss_type: no `{loss_type}`; there are {known}")
    # `_needed` returns the argument, and raises ValueError if it is None.
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
    """Compute the negative log-likelihood of the response tokens, and run its backward pass.

    Gradients are added to those of earlier calls; the caller steps the optimiser.

    Args:
        policy_log_probs: [B, T] with an autograd graph.
        response_mask: [B, T], 1 on response tokens.
        gradient_accumulation_steps: micro-batches per optimiser step.
        normalize_constant: divisor of each row's sum.

    Returns:
        The loss that was differentiated, detached; metadata: "token_loss", the mean negative
        log-likelihood per response token (NaN without any), "num_tokens".
    """
    # [B]: the sum over each row's response tokens, divided by the constant.
    per_row = masked_normalize(-policy_log_probs, response_mask, -1, normalize_constant)
    # Divided here, since the gradients of an optimiser step's micro-batches add up.
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
    """Compute the policy-gradient loss of a micro-batch, and run its backward pass.

    The loss is averaged over the tokens of each completion, then over completions. Nothing is read
    at a mask of 0: a NaN or −∞ there leaves the gradient 0. A completion with a mask of 0
    throughout adds 0 to the mean. Gradients are added to those of earlier calls; the caller steps
    the optimiser.

    Args:
        policy_log_probs: [B, T] with an autograd graph.
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
        # [B, T]; a −∞ on padding would turn into NaN in the gradient, even times 0.
        policy_log_probs.masked_fill(ignored, 0),
        loss_type,
        raw_rewards,
        advantages,
        None if old_log_probs is None else old_log_probs.masked_fill(ignored, 0),
        cliprange,
    )
    loss = average_token_losses(per_token, response_mask, average="completions")
    # Divided here, since the gradients of an optimiser step's micro-batches add up.
    loss = loss / gradient_accumulation_steps
    loss.backward()  # type: ignore[no-untyped-call]
    if "is_clipped" in metadata:
        # Replaces the share of `compute_grpo_clip_loss`, which has no mask and counts padding too.
        clipped = metadata["is_clipped"].to(per_token.dtype)
        metadata["clip_fraction"] = masked_mean(clipped, response_mask)
    return loss.detach(), metadata


def _check_column(name: str, column: Tensor, log_probs: Tensor) -> None:
    """Raise ValueError unless `column` has two axes, and as many rows as `log_probs` [B, T]."""
    if column.dim() != 2 or len(column) != len(log_probs):
        raise ValueError(f"{name}: expected [{len(log_probs)}, 1], got {list(column.shape)}")


def _needed(name: str, value: Argument | None, loss_type: str) -> Argument:
    """Return an argument; raise ValueError if it is None, since `loss_type` needs it."""
    if value is None:
        raise ValueError(f"{loss_type} needs `{name}`")
    return value


def compute_per_instance_dpo_loss(
    lm: torch.nn.Module,
    lm_ref: torch.nn.Module,
    tokenizer: "PreTrainedTokenizerBase",
    beta: float,
    prompt: str,
    response_chosen: str,
    response_rejected: str,
) -> Tensor:
    """Return DPO's loss of one pair of responses to an instruction, in Alpaca's template.

    The loss is −log σ(β · (policy − reference)): under each model, the log-prob of the better
    response minus that of the worse one. The models may be on different devices; only `lm` gets
    gradients.

    Args:
        lm: the policy in training.
        lm_ref: the reference policy.
        tokenizer: of both.
        beta: β, the strength of the pull to the reference policy; a larger one stays closer.
        prompt: the instruction.
        response_chosen: the better response.
        response_rejected: the worse one.

    Returns:
        Scalar, on `lm`'s device.
    """
    # Token ids of prompt and response, ending with EOS.
    better = encode_alpaca(tokenizer, prompt=prompt, response=response_chosen)
    worse = encode_alpaca(tokenizer, prompt=prompt, response=response_rejected)
    # Log-probs summed over all tokens, scalars in nats. The prompt's part is the same for both
    # responses, and cancels.
    policy = _log_prob(lm, better) - _log_prob(lm, worse)
    with torch.no_grad():
        reference = _log_prob(lm_ref, better) - _log_prob(lm_ref, worse)
    # The reference policy may be on another GPU.
    margin = policy - reference.to(policy.device)
    # Not log(sigmoid): float32's sigmoid is 0 below −89, and its log −∞.
    return -logsigmoid(beta * margin)


def _log_prob(model: torch.nn.Module, ids: list[int]) -> Tensor:
    """Return the summed log-prob of all tokens after the first, the prompt's included.

    The prompt's part is the same for both responses, and cancels in their difference.
    """
    # [1, T + 1]; no padding, so the whole row counts. The model's inputs are all tokens but the
    # last, their labels all but the first.
    row = torch.tensor([ids], device=next(model.parameters()).device)
    return get_response_log_probs(model, row[:, :-1], row[:, 1:])["log_probs"].sum()
