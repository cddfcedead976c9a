"""Policy-gradient losses: REINFORCE, the clipped surrogate, CISPO, and how tokens are averaged.

With A the advantage of completion i, ρ_t = π(y_t) / π_old(y_t), and m the mask of the L_i tokens
that count:

    reinforce      ℓ_t = −A · log π(y_t)                         Williams (1992)
    clipped        ℓ_t = −min(ρ_t A, clip(ρ_t, 1−ε, 1+ε_high) A) PPO, arXiv:1707.06347
                   ε_high > ε: "clip higher"                     DAPO, arXiv:2503.14476
    two-sided      ρ_t A becomes min(ρ_t, δ) A, δ > 1 + ε_high   INTELLECT-2, arXiv:2505.07291
    cispo          ℓ_t = −sg(min(ρ_t, 1+ε_high)) A log π(y_t)    CISPO, arXiv:2506.13585
    dppo           ℓ_t = −ρ_t A, and 0 where A (π − π_old)(y_t)  DPPO, arXiv:2602.04879
                   leaves [−ε |A|, ε_high |A|] on its own side
    sequence level ρ = exp(mean_t log ρ_t), one for all tokens   GSPO, arXiv:2507.18071
    corrected      w_i · ℓ_t                                     see `lib.objectives.sampler`
    with teacher   A_t = A + c (log π_T − log π_old)(y_t)        GKD, arXiv:2306.13649
                   or ℓ_t + c · KL(π ‖ π_T) over the vocabulary  see `lib.objectives.logprobs`
    with KL        ℓ_t + β · ρ_t KL_t, or β · KL_t               k3 below, arXiv:2402.03300, eq. 4
    with entropy   L − c · Σ_i Σ_t m H_t / Σ_i L_i               A3C, arXiv:1602.01783

    grpo           mean_i (Σ_t m ℓ / L_i)                        GRPO, arXiv:2402.03300
    bnpo           Σ_i Σ_t m ℓ / Σ_i L_i, over this micro-batch  TRL's name
    dapo, cispo,   the same, L_i summed over the optimiser step  DAPO, arXiv:2503.14476
    dppo
    average prompt mean_p (Σ_i Σ_t m ℓ / Σ_i L_i), i of prompt p ScaleRL, arXiv:2510.13786
    dr_grpo        Σ_i Σ_t m ℓ / (B · longest allowed)           Dr. GRPO, arXiv:2503.20783

Differs from the papers in: GSPO's own clip ranges (3e-4, 4e-4) are the caller's to choose, the
sequence's ratio multiplies every token's term (with `grpo` averaging that is the paper's
objective), and a row without tokens counts as 0 rather than as 0/0. `reinforce` averages like
`grpo`. CISPO's lower bound is left out: it never binds. TRL's `epsilon_high` is 1 + ε_high. A
teacher's term estimates the reverse KL(π ‖ π_T) of each token, with its prefix held fixed.

With d = log π(y) − log π_ref(y), k3 = e^(−d) − 1 + d is unbiased, ≥ 0 and of low variance.
Differentiated through log π, it has the expected gradient of KL(π_ref ‖ π); multiplied by the ratio
ρ (`kl_weighted`; DeepSeek-V3.2, arXiv:2512.02556; TRL's default), that of KL(π ‖ π_ref), also for
tokens of an older policy.

The entropy's c is fixed, or steered towards a target (Skywork-OR1, arXiv:2505.22312; constants are
TRL's): after each step with mean entropy H, c ← min(c + 0.005, 1) where H ≤ target, else
max(c − 0.005, 0), and the next step adds the bonus only where H ≤ target. Unlike there, the first
step of a steered run has no bonus, since no entropy is known yet. The mean runs over the tokens of
the optimiser step, so that micro-batches add up to the full batch.

sg: no gradient goes through. CISPO bounds the weight of tokens that the surrogate drops.

Shapes: B completions, T tokens.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from lib.objectives import LOSSES, Average
from lib.objectives.logprobs import TokenScores

TokenLoss = Callable[..., Tensor]
"""A plugin's loss: maps log-probs [B, T], old log-probs [B, T], advantages [B, 1], mask [B, T], and
by the keyword `sampler` the engine's log-probs [B, T], to token losses [B, T], which are averaged
like `dapo`'s."""
RatioLevel = Literal["token", "sequence"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Objective:
    """The settings of a loss, the same for a whole run.

    Attributes:
        loss: a name from the module's table, or a plugin's function.
        clip_low, clip_high, delta: ε, ε_high and δ; None for no bound where A < 0.
        ratio_level: "sequence" is GSPO.
        kl_coef: β.
        kl_weighted: multiply the KL estimate by ρ.
        teacher_coef: c of the teacher's term; of the KL itself if the scores have it.
        max_completion_length: the longest length allowed, in tokens; the divisor of `dr_grpo`.
    """

    loss: str | TokenLoss
    clip_low: float = 0.2
    clip_high: float = 0.2
    delta: float | None = None
    ratio_level: RatioLevel = "token"
    kl_coef: float = 0.0
    kl_weighted: bool = True
    teacher_coef: float = 0.0
    max_completion_length: int | None = None


@dataclasses.dataclass(kw_only=True)
class LossInputs:
    """One micro-batch as a loss reads it, beside the policy's scores.

    Attributes:
        advantages: [B].
        loss_mask: [B, T], 1 on the tokens that count; elsewhere nothing is read.
        old_log_probs: [B, T] of the policy before the first update on these completions; None for
            the policy itself (ratio 1, with its gradient).
        correction: [B, 1] or [B, T] weights w (`lib.objectives.sampler`); None for 1.
        reference_log_probs: [B, T] of the reference policy, needed with a `kl_coef`.
        teacher_log_probs: [B, T] of the teacher; None without one, or with the KL in the scores.
        num_tokens, num_completions: divisors, see `average_token_losses`.
        sampler_log_probs: [B, T] as the engine reported them, for a plugin's loss.
    """

    advantages: Tensor
    loss_mask: Tensor
    old_log_probs: Tensor | None = None
    correction: Tensor | None = None
    reference_log_probs: Tensor | None = None
    teacher_log_probs: Tensor | None = None
    num_tokens: float | Tensor | None = None
    num_completions: float | None = None
    sampler_log_probs: Tensor | None = None


@dataclasses.dataclass(frozen=True)
class PolicyLoss:
    """The loss of a micro-batch for the backward pass, with the clip mask and the KL to log.

    Attributes:
        loss: scalar.
        clipped: bool, [B, T], or [B, 1] for a ratio per sequence. True where the clip removed the
            gradient; with `cispo`, where it bounded the weight of a token with A > 0.
        kl: [B, T] KL estimate as it entered the loss.
        teacher_kl: [B, T] KL towards the teacher, or its estimate; None without one.
    """

    loss: Tensor
    clipped: Tensor
    kl: Tensor
    teacher_kl: Tensor | None = None


def policy_loss(
    scores: TokenScores, inputs: LossInputs, objective: Objective, *, entropy_coef: float = 0.0
) -> PolicyLoss:
    """Compute the loss of one micro-batch: token losses, correction, KL, average, entropy bonus.

    Args:
        scores: [B, T] of the policy; the entropy must have a gradient if `entropy_coef` is not 0.
        entropy_coef: c in this step.

    Raises:
        ValueError: the objective needs an input that is None.
    """
    mask = inputs.loss_mask.bool()
    # [B, 1]
    credit = inputs.advantages.unsqueeze(-1)
    # Padding may hold −∞: 0 · −∞ is NaN.
    log_probs = scores.log_probs.masked_fill(~mask, 0)
    old = log_probs.detach()
    if inputs.old_log_probs is not None:
        old = inputs.old_log_probs.masked_fill(~mask, 0)
    teacher_kl = scores.teacher_kl
    if inputs.teacher_log_probs is not None:
        # [B, T] an advantage per token, without gradient.
        teacher_kl = old - inputs.teacher_log_probs.masked_fill(~mask, 0)
        credit = credit - objective.teacher_coef * teacher_kl
    log_ratio = log_importance_ratio(log_probs, old, mask, level=objective.ratio_level)

    clipped = torch.zeros_like(mask)
    token_loss = objective.loss
    if callable(token_loss):
        sampler = old if inputs.sampler_log_probs is None else inputs.sampler_log_probs
        losses = token_loss(log_probs, old, credit, mask, sampler=sampler.masked_fill(~mask, 0))
    elif token_loss == "reinforce":
        losses = -credit * log_probs
    elif token_loss == "cispo":
        # The ratio is a weight without gradient (arXiv:2506.13585, equation 4).
        ratio, bound = log_ratio.detach().exp(), 1 + objective.clip_high
        losses = -ratio.clamp(max=bound) * credit * log_probs
        # Only A > 0 is counted, as for the surrogate, whose upper bound acts there only.
        clipped = (ratio > bound) & (credit > 0)
    elif token_loss == "dppo":
        losses = -(log_probs - old).exp() * credit
        # The sampled token against all others: half the total variation of the two (binary TV).
        moved = log_probs.detach().exp() - old.exp()
        clipped = torch.where(credit > 0, moved > objective.clip_high, -moved > objective.clip_low)
        losses = losses.masked_fill(clipped, 0)
    else:
        losses, clipped = clipped_surrogate(
            credit,
            log_ratio,
            low=objective.clip_low,
            high=objective.clip_high,
            delta=objective.delta,
        )
    if inputs.correction is not None:
        losses = losses * inputs.correction
    kl = torch.zeros_like(log_probs)
    if objective.kl_coef:
        if inputs.reference_log_probs is None:
            raise ValueError(f"kl_coef={objective.kl_coef} needs `reference_log_probs`")
        kl = kl_per_token(log_probs, inputs.reference_log_probs.masked_fill(~mask, 0))
        if objective.kl_weighted:
            kl = kl * log_ratio.exp()
        losses = losses + objective.kl_coef * kl
    if scores.teacher_kl is not None:
        losses = losses + objective.teacher_coef * scores.teacher_kl
    loss = average_token_losses(
        losses,
        mask,
        average=LOSSES["dapo" if callable(token_loss) else token_loss].average,
        max_completion_length=objective.max_completion_length,
        num_tokens=inputs.num_tokens,
        num_completions=inputs.num_completions,
    )
    if entropy_coef:
        loss = loss - entropy_coef * average_token_losses(
            scores.entropy, mask, average="step_tokens", num_tokens=inputs.num_tokens
        )
    return PolicyLoss(
        loss, clipped, kl.detach(), None if teacher_kl is None else teacher_kl.detach()
    )


def clipped_surrogate(
    advantages: Tensor,
    log_ratio: Tensor,
    *,
    low: float,
    high: float,
    delta: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Return PPO's loss per token, and a mask of the tokens without gradient because of the clip.

    Args:
        advantages: [B, 1].
        log_ratio: [B, T], or [B, 1] for a ratio per sequence; both results have this shape.
        low, high, delta: ε, ε_high and δ (None: no bound).
    """
    ratio = log_ratio.exp()
    clipped_ratio = ratio.clamp(1 - low, 1 + high)
    # δ binds only where A < 0: for A > 0 the clip at 1 + ε_high comes first.
    bounded = ratio if delta is None else ratio.clamp(max=delta)
    unclipped, clipped = bounded * advantages, clipped_ratio * advantages
    # Where a bound replaces ρ, the gradient is 0.
    removed = (clipped < unclipped) | ((bounded < ratio) & (advantages < 0))
    return -torch.minimum(unclipped, clipped), removed


def log_importance_ratio(
    policy_log_probs: Tensor, old_log_probs: Tensor, mask: Tensor, *, level: RatioLevel
) -> Tensor:
    """Return log ρ: [B, T] for "token"; for "sequence" its mean [B, 1] over the tokens that count.

    Args:
        policy_log_probs, old_log_probs, mask: [B, T].
    """
    log_ratio = policy_log_probs - old_log_probs
    if level == "token":
        return log_ratio
    total = torch.where(mask.bool(), log_ratio, 0).sum(-1, keepdim=True)
    # Length-normalised, or long completions would always be clipped (arXiv:2507.18071, equation 7).
    return total / mask.sum(-1, keepdim=True).clamp(min=1)


def average_token_losses(
    token_losses: Tensor,
    mask: Tensor,
    *,
    average: Average,
    max_completion_length: int | None = None,
    num_tokens: float | Tensor | None = None,
    num_completions: float | None = None,
) -> Tensor:
    """Average token losses to a scalar.

    Micro-batches of equal size give the full batch's loss: averaged for "completions" and
    "longest", *added up* for "step_tokens" with the whole step's `num_tokens`. For
    "micro_batch_tokens" they do not: its divisor is the micro-batch's own.

    Args:
        token_losses: [B, T].
        mask: [B, T], 1 on the tokens that count.
        max_completion_length: divisor per completion of "longest", which needs it.
        num_tokens: divisor of "step_tokens", above 0: the tokens that count in all micro-batches of
            the optimiser step; [B] one for each completion; None: the tokens of this batch.
        num_completions: divisor of "completions" and "longest"; None: B.

    Raises:
        ValueError: "longest" without `max_completion_length`.
    """
    losses = torch.where(mask.bool(), token_losses, 0)
    if average == "completions":
        per_completion = losses.sum(-1) / mask.sum(-1).clamp(min=1)
        return per_completion.sum() / (num_completions or len(losses))
    if average == "longest":
        if max_completion_length is None:
            raise ValueError("dr_grpo divides by max_completion_length, which is missing")
        return losses.sum() / ((num_completions or len(losses)) * max_completion_length)
    if average == "step_tokens" and isinstance(num_tokens, Tensor):
        return (losses.sum(-1) / num_tokens).sum()
    if average == "step_tokens" and num_tokens is not None:
        return losses.sum() / num_tokens
    # "micro_batch_tokens", or "step_tokens" with this batch as the whole step.
    return losses.sum() / mask.sum().clamp(min=1)


def kl_per_token(policy_log_probs: Tensor, reference_log_probs: Tensor) -> Tensor:
    """Return the estimate k3 of KL(π ‖ π_ref) per token [B, T], in nats; differentiable.

    Args:
        policy_log_probs, reference_log_probs: [B, T], of tokens drawn from the policy.
    """
    difference = policy_log_probs - reference_log_probs
    # expm1 keeps precision near 0, where policy and reference agree.
    return (-difference).expm1() + difference


@dataclasses.dataclass
class EntropyCoefficient:
    """The coefficient c of the entropy bonus, fixed or steered towards a target entropy.

    Attributes:
        coefficient: c; in a steered run it starts here and changes with each step.
        target: the target entropy in nats per token; 0 keeps c fixed.
        last: mean entropy of the step before, in nats per token.
    """

    coefficient: float
    target: float
    last: float = math.inf

    STEP = 0.005
    MOST = 1.0

    @property
    def is_used(self) -> bool:
        """True if any step of the run has the bonus."""
        return self.coefficient > 0 or self.target > 0

    @property
    def step_coefficient(self) -> float:
        """The coefficient in this step's loss: 0 if a steered run is above its target."""
        return self.coefficient if not self.target or self.last <= self.target else 0.0

    def update(self, entropy: float) -> None:
        """Move c towards the target, by the mean entropy of a step's tokens on all ranks."""
        if self.target:
            # The change has a fixed size, since the entropy's gradient is too noisy to follow.
            change = self.STEP if entropy <= self.target else -self.STEP
            self.coefficient = min(max(self.coefficient + change, 0.0), self.MOST)
        self.last = entropy
