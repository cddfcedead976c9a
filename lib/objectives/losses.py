"""Policy-gradient losses: REINFORCE, the clipped surrogate, and the ways to average tokens.

With A the advantage of completion i, ρ_t = π(y_t) / π_old(y_t), and m the mask of the L_i tokens
that count:

    reinforce      ℓ_t = −A · log π(y_t)                         Williams (1992)
    clipped        ℓ_t = −min(ρ_t A, clip(ρ_t, 1−ε, 1+ε_high) A) PPO, arXiv:1707.06347
                   ε_high > ε: "clip higher"                     DAPO, arXiv:2503.14476
    sequence level ρ = exp(mean_t log ρ_t), one for all tokens   GSPO, arXiv:2507.18071
    corrected      w_i · ℓ_t, see `sampler_correction`           as in TRL
    with KL        ℓ_t + β · ρ_t KL_t, or β · KL_t               see `lib.objectives.kl`

    grpo           mean_i (Σ_t m ℓ / L_i)                        GRPO, arXiv:2402.03300
    bnpo           Σ_i Σ_t m ℓ / Σ_i L_i, over this micro-batch  TRL's name
    dapo           the same, L_i summed over the optimiser step  DAPO, arXiv:2503.14476
    dr_grpo        Σ_i Σ_t m ℓ / (B · longest allowed)           Dr. GRPO, arXiv:2503.20783

Differs from the papers in: GSPO's own clip ranges (3e-4, 4e-4) are the caller's to choose, the
sequence's ratio multiplies every token's term (with `grpo` averaging that is the paper's
objective), and a row without tokens counts as 0 rather than as 0/0. `reinforce` averages like
`grpo`.

Shapes: B completions, T tokens.
"""

import dataclasses
from typing import Literal, get_args

import torch
from torch import Tensor

from lib.objectives.kl import KLEstimator, kl_per_token

LossType = Literal["reinforce", "grpo", "bnpo", "dr_grpo", "dapo"]
RatioLevel = Literal["token", "sequence"]


@dataclasses.dataclass(frozen=True)
class PolicyLoss:
    """A loss to call backward on, and what to log beside it.

    Attributes:
        loss: scalar.
        clipped: [B, T] bool, [B, 1] for a ratio per sequence: where the clip removed the gradient,
            padding included.
        kl: [B, T] KL estimate as it entered the loss; zeros without a reference policy.
    """

    loss: Tensor
    clipped: Tensor
    kl: Tensor


def policy_loss(
    policy_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    loss_type: LossType,
    old_log_probs: Tensor | None = None,
    clip_low: float = 0.2,
    clip_high: float | None = None,
    ratio_level: RatioLevel = "token",
    correction: Tensor | None = None,
    reference_log_probs: Tensor | None = None,
    kl_coef: float = 0.0,
    kl_estimator: KLEstimator = "k3",
    kl_weighted: bool = True,
    max_completion_length: int | None = None,
    num_tokens: float | None = None,
) -> PolicyLoss:
    """One objective from its parts: ratio, clip, KL and averaging.

    Args:
        policy_log_probs: [B, T] of the policy in training.
        advantages: [B], one per completion.
        mask: [B, T], 1 on the tokens that count; elsewhere nothing is read.
        loss_type: see the module; `grpo.loss` in params has the same names.
        old_log_probs: [B, T] of the policy before the first update on these completions; None
            means this very policy (ratio 1, but with its gradient). `reinforce` does not read it.
        clip_low: ε; the ratio is held above 1 − ε.
        clip_high: ε_high; the ratio is held below 1 + ε_high. None: ε.
        ratio_level: "sequence" is GSPO.
        correction: [B, 1] or [B, T], multiplies the token losses but not the KL penalty.
        reference_log_probs: [B, T] of the reference policy, needed when `kl_coef` is not 0.
        kl_coef: β.
        kl_estimator: TRL and GRPO use k3.
        kl_weighted: multiply the estimate by ρ (DeepSeek-V3.2, arXiv:2512.02556; TRL's default),
            which makes k1 and k3 unbiased for the policy in training, in value and gradient.
        max_completion_length: for `dr_grpo`.
        num_tokens: for `dapo`, see `aggregate_token_losses`.

    Raises:
        ValueError: unknown names, wrong shapes, or a missing argument.
    """
    check_choice("loss_type", loss_type, get_args(LossType))
    if advantages.shape != policy_log_probs.shape[:1]:
        raise ValueError(f"advantages: expected [{len(policy_log_probs)}], got {advantages.shape}")
    credit, ignored = advantages.unsqueeze(-1), ~mask.bool()
    log_probs = policy_log_probs.masked_fill(ignored, 0)
    if old_log_probs is None or loss_type == "reinforce":
        old = log_probs.detach()
    else:
        old = old_log_probs.masked_fill(ignored, 0)
    log_ratio = log_importance_ratio(log_probs, old, mask, level=ratio_level)
    if loss_type == "reinforce":
        losses, clipped = -credit * log_probs, torch.zeros_like(ignored)
    else:
        losses, clipped = clipped_surrogate(credit, log_ratio, low=clip_low, high=clip_high)
    if correction is not None:
        losses = losses * correction
    kl = torch.zeros_like(log_probs)
    if kl_coef:
        if reference_log_probs is None:
            raise ValueError(f"kl_coef={kl_coef} needs `reference_log_probs`")
        reference = reference_log_probs.masked_fill(ignored, 0)
        kl = kl_per_token(log_probs, reference, estimator=kl_estimator)
        if kl_weighted:
            kl = kl * log_ratio.exp()
        losses = losses + kl_coef * kl
    loss = aggregate_token_losses(
        losses,
        mask,
        loss_type=loss_type,
        max_completion_length=max_completion_length,
        num_tokens=num_tokens,
    )
    return PolicyLoss(loss, clipped, kl.detach())


def clipped_surrogate(
    advantages: Tensor, log_ratio: Tensor, *, low: float, high: float | None
) -> tuple[Tensor, Tensor]:
    """Per-token loss, and where the clip removed the gradient."""
    ratio = log_ratio.exp()
    held = ratio.clamp(1 - low, 1 + (low if high is None else high))
    unclipped, clipped = ratio * advantages, held * advantages
    return -torch.minimum(unclipped, clipped), clipped < unclipped


def log_importance_ratio(
    policy_log_probs: Tensor, old_log_probs: Tensor, mask: Tensor, *, level: RatioLevel
) -> Tensor:
    """How much likelier the completion's tokens have become since they were sampled, log ρ.

    Returns:
        [B, T] for "token"; [B, 1] for "sequence", the mean over the tokens that count (the
        geometric mean of the token ratios; 0 for a row without tokens).

    Raises:
        ValueError: unknown level.
    """
    check_choice("ratio_level", level, get_args(RatioLevel))
    log_ratio = policy_log_probs - old_log_probs
    if level == "token":
        return log_ratio
    total = torch.where(mask.bool(), log_ratio, 0).sum(-1, keepdim=True)
    return total / mask.sum(-1, keepdim=True).clamp(min=1)


def sampler_correction(
    trainer_log_probs: Tensor, sampler_log_probs: Tensor, mask: Tensor, *, most: float
) -> Tensor:
    """Weight of a completion whose sampler computes with other kernels than the trainer.

    w = Π_t π_trainer(y_t) / π_sampler(y_t) over the whole completion, and 0 where that exceeds
    `most`: such a completion is hardly one of the policy's (TRL's `sequence_mask`).

    Args:
        trainer_log_probs: [B, T] under the weights that the completion was sampled from.
        sampler_log_probs: [B, T] that the sampler reported.
        mask: [B, T], 1 on the tokens that count.

    Returns:
        [B, 1], without gradient.
    """
    gap = torch.where(mask.bool(), trainer_log_probs.detach() - sampler_log_probs, 0)
    ratio = gap.sum(-1, keepdim=True).exp()
    return torch.where(ratio > most, 0, ratio)


def aggregate_token_losses(
    token_losses: Tensor,
    mask: Tensor,
    *,
    loss_type: LossType,
    max_completion_length: int | None = None,
    num_tokens: float | None = None,
) -> Tensor:
    """Average a loss over tokens and completions, as the objective named `loss_type` does.

    Micro-batches of equal size give the full batch's loss: averaged for reinforce, grpo and
    dr_grpo, *added up* for dapo with the whole step's `num_tokens`. For bnpo they do not: its
    divisor is the micro-batch's own.

    Args:
        token_losses: [B, T].
        mask: [B, T], 1 on the tokens that count.
        loss_type: see the module.
        max_completion_length: divisor per completion of `dr_grpo`, which needs it.
        num_tokens: divisor of `dapo`, the tokens that count in all micro-batches of the
            optimiser step; None: those of this batch.

    Raises:
        ValueError: unknown loss type, or `dr_grpo` without `max_completion_length`.
    """
    check_choice("loss_type", loss_type, get_args(LossType))
    kept = torch.where(mask.bool(), token_losses, 0)
    if loss_type in ("reinforce", "grpo"):
        return (kept.sum(-1) / mask.sum(-1).clamp(min=1)).mean()
    if loss_type == "dr_grpo":
        if max_completion_length is None:
            raise ValueError("dr_grpo divides by max_completion_length, which is missing")
        return kept.sum() / (len(kept) * max_completion_length)
    if loss_type == "dapo" and num_tokens is not None:
        return kept.sum() / max(num_tokens, 1)
    return kept.sum() / mask.sum().clamp(min=1)


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuse a name that is not one of `choices`.

    Raises:
        ValueError: lists them.
    """
    if value not in choices:
        raise ValueError(f"{name}: no `{value}`; there are {', '.join(choices)}")
