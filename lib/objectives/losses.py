"""Policy-gradient losses: REINFORCE, the clipped surrogate, CISPO, and how tokens are averaged.

With A the advantage of completion i, ρ_t = π(y_t) / π_old(y_t), and m the mask of the L_i tokens
that count:

    reinforce      ℓ_t = −A · log π(y_t)                         Williams (1992)
    clipped        ℓ_t = −min(ρ_t A, clip(ρ_t, 1−ε, 1+ε_high) A) PPO, arXiv:1707.06347
                   ε_high > ε: "clip higher"                     DAPO, arXiv:2503.14476
    two-sided      ρ_t A becomes min(ρ_t, δ) A, δ > 1 + ε_high   INTELLECT-2, arXiv:2505.07291
    cispo          ℓ_t = −sg(min(ρ_t, 1+ε_high)) A log π(y_t)    CISPO, arXiv:2506.13585
    sequence level ρ = exp(mean_t log ρ_t), one for all tokens   GSPO, arXiv:2507.18071
    corrected      w_i · ℓ_t                                     see `lib.objectives.sampler`
    with KL        ℓ_t + β · ρ_t KL_t, or β · KL_t               see `lib.objectives.kl`
    with entropy   L − c · Σ_i Σ_t m H_t / Σ_i L_i               see `lib.objectives.entropy`

    grpo           mean_i (Σ_t m ℓ / L_i)                        GRPO, arXiv:2402.03300
    bnpo           Σ_i Σ_t m ℓ / Σ_i L_i, over this micro-batch  TRL's name
    dapo, cispo    the same, L_i summed over the optimiser step  DAPO, arXiv:2503.14476
    dr_grpo        Σ_i Σ_t m ℓ / (B · longest allowed)           Dr. GRPO, arXiv:2503.20783

Differs from the papers in: GSPO's own clip ranges (3e-4, 4e-4) are the caller's to choose, the
sequence's ratio multiplies every token's term (with `grpo` averaging that is the paper's
objective), and a row without tokens counts as 0 rather than as 0/0. `reinforce` averages like
`grpo`. CISPO's lower bound, which the paper sets so low that it never binds, is left out; the
upper one is the paper's 1 + ε_high, where TRL's `epsilon_high` is that sum.

sg: no gradient goes through. The surrogate drops a token whose ratio left the clip range; CISPO
bounds its weight, and every token keeps a gradient. Where A < 0 the surrogate bounds ρ from below
only: a token that became 100 times likelier has 100 times the loss, which δ ends.

Shapes: B completions, T tokens.
"""

import dataclasses
from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor

from lib.objectives.kl import KLEstimator, kl_per_token

LossType = Literal["reinforce", "grpo", "bnpo", "dr_grpo", "dapo", "cispo"]
TokenLoss = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""One's own: log-probs [B, T], old log-probs [B, T], advantages [B, 1] and mask [B, T] to losses of
the tokens [B, T], averaged like `dapo`."""
RatioLevel = Literal["token", "sequence"]


@dataclasses.dataclass(frozen=True)
class PolicyLoss:
    """A loss to call backward on, and what to log beside it.

    Attributes:
        loss: scalar.
        clipped: [B, T] bool, [B, 1] for a ratio per sequence: where the clip removed the gradient,
            of `cispo` where it bounded the weight of a token with A > 0; padding included.
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
    loss_type: LossType | TokenLoss,
    old_log_probs: Tensor | None = None,
    clip_low: float = 0.2,
    clip_high: float | None = None,
    delta: float | None = None,
    ratio_level: RatioLevel = "token",
    correction: Tensor | None = None,
    reference_log_probs: Tensor | None = None,
    kl_coef: float = 0.0,
    kl_estimator: KLEstimator = "k3",
    kl_weighted: bool = True,
    entropy: Tensor | None = None,
    entropy_coef: float = 0.0,
    max_completion_length: int | None = None,
    num_tokens: float | None = None,
) -> PolicyLoss:
    """One objective from its parts: ratio, clip, KL and averaging.

    Args:
        policy_log_probs: [B, T] of the policy in training.
        advantages: [B], one per completion.
        mask: [B, T], 1 on the tokens that count; elsewhere nothing is read.
        loss_type: see the module; `grpo.loss` in params has the same names. A function in place
            of ratio, clip and averaging.
        old_log_probs: [B, T] of the policy before the first update on these completions; None
            means this very policy (ratio 1, but with its gradient). `reinforce` does not read it.
        clip_low: ε; the ratio is held above 1 − ε.
        clip_high: ε_high; the ratio is held below 1 + ε_high. None: ε.
        delta: δ; None for the one-sided clip where A < 0. `reinforce` and `cispo` do not read it.
        ratio_level: "sequence" is GSPO.
        correction: [B, 1] or [B, T], multiplies the token losses but not the KL penalty.
        reference_log_probs: [B, T] of the reference policy, needed when `kl_coef` is not 0.
        kl_coef: β.
        kl_estimator: TRL and GRPO use k3.
        kl_weighted: multiply the estimate by ρ (DeepSeek-V3.2, arXiv:2512.02556; TRL's default),
            which makes k1 and k3 unbiased for the policy in training, in value and gradient.
        entropy: [B, T], with gradient; needed when `entropy_coef` is not 0.
        entropy_coef: c.
        max_completion_length: for `dr_grpo`.
        num_tokens: for `dapo`, `cispo` and the entropy, see `aggregate_token_losses`.

    Raises:
        ValueError: unknown names, wrong shapes, or a missing argument.
    """
    if not callable(loss_type):
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
    if callable(loss_type):
        losses, clipped = loss_type(log_probs, old, credit, ~ignored), torch.zeros_like(ignored)
    elif loss_type == "reinforce":
        losses, clipped = -credit * log_probs, torch.zeros_like(ignored)
    elif loss_type == "cispo":
        ratio, most = log_ratio.detach().exp(), 1 + (clip_low if clip_high is None else clip_high)
        losses = -ratio.clamp(max=most) * credit * log_probs
        clipped = (ratio > most) & (credit > 0)
    else:
        losses, clipped = clipped_surrogate(
            credit, log_ratio, low=clip_low, high=clip_high, delta=delta
        )
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
        loss_type="dapo" if callable(loss_type) else loss_type,
        max_completion_length=max_completion_length,
        num_tokens=num_tokens,
    )
    if entropy_coef:
        if entropy is None:
            raise ValueError(f"entropy_coef={entropy_coef} needs `entropy`")
        mean = aggregate_token_losses(entropy, mask, loss_type="dapo", num_tokens=num_tokens)
        loss = loss - entropy_coef * mean
    return PolicyLoss(loss, clipped, kl.detach())


def clipped_surrogate(
    advantages: Tensor,
    log_ratio: Tensor,
    *,
    low: float,
    high: float | None,
    delta: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Per-token loss, and where the clip removed the gradient."""
    ratio = log_ratio.exp()
    held = ratio.clamp(1 - low, 1 + (low if high is None else high))
    bounded = ratio if delta is None else ratio.clamp(max=delta)
    unclipped, clipped = bounded * advantages, held * advantages
    removed = (clipped < unclipped) | ((bounded < ratio) & (advantages < 0))
    return -torch.minimum(unclipped, clipped), removed


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
    dr_grpo, *added up* for dapo and cispo with the whole step's `num_tokens`. For bnpo they do
    not: its divisor is the micro-batch's own.

    Args:
        token_losses: [B, T].
        mask: [B, T], 1 on the tokens that count.
        loss_type: see the module.
        max_completion_length: divisor per completion of `dr_grpo`, which needs it.
        num_tokens: divisor of `dapo` and `cispo`, above 0: the tokens that count in all
            micro-batches of the optimiser step; None: those of this batch.

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
    if loss_type in ("dapo", "cispo") and num_tokens is not None:
        return kept.sum() / num_tokens
    return kept.sum() / mask.sum().clamp(min=1)


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuse a name that is not one of `choices`.

    Raises:
        ValueError: lists them.
    """
    if value not in choices:
        raise ValueError(f"{name}: no `{value}`; there are {', '.join(choices)}")
