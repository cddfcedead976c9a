"""The two terms added to the policy loss: the KL penalty and the entropy bonus.

KL(π ‖ π_ref), estimated from the log-probs of tokens drawn from π.

With d = log π(y) − log π_ref(y) for a token y drawn from π:

    k1 = d                    unbiased, may be negative, high variance
    k2 = d² / 2               biased, ≥ 0; its gradient is the unbiased one
    k3 = e^(−d) − 1 + d       unbiased, ≥ 0, low variance: GRPO's (arXiv:2402.03300, eq. 4)

Source: J. Schulman, "Approximating KL divergence" (2020, a note without an arXiv number).
The gradient of an estimate need not estimate the KL's gradient. Differentiated through log π on
tokens drawn from π, the expected gradient of k1 is 0, of k2 that of KL(π ‖ π_ref), and of k3 that
of KL(π_ref ‖ π). Multiplied by the ratio ρ = π/π_old (`kl_weighted` in `policy_loss`;
DeepSeek-V3.2, arXiv:2512.02556), k1 and k3 have the gradient of KL(π ‖ π_ref), also for tokens of
an older policy.
Tests verify all of this by enumeration.

Differs from the paper in: nothing; GRPO adds k3 as it is, DeepSeek-V3.2 and TRL ρ·k3.

The coefficient of the entropy bonus: fixed, or steered towards a target.

    L = L_policy − c · mean_t H(π(· | y_<t))         A3C, arXiv:1602.01783
    steered, after each step with mean entropy H:    Skywork-OR1, arXiv:2505.22312
        c ← min(c + 0.005, 1) where H ≤ target, else max(c − 0.005, 0)
        and the next step adds the bonus only where H ≤ target

Differs from the papers in: nothing; the first step of a steered run has no bonus, since no entropy
is known yet, and the constants are TRL's. The mean runs over the tokens of the optimiser step, so
that micro-batches add up to the full batch (TRL averages the micro-batches' means).

Shapes: B completions, T tokens.
"""

import dataclasses
import math
from typing import Literal

from torch import Tensor

KLEstimator = Literal["k1", "k2", "k3"]


def kl_per_token(
    policy_log_probs: Tensor, reference_log_probs: Tensor, *, estimator: KLEstimator = "k3"
) -> Tensor:
    """Estimate how far the policy has moved from the reference policy, per token, in nats.

    Args:
        policy_log_probs: [B, T], of tokens drawn from the policy.
        reference_log_probs: [B, T], of the same tokens.
        estimator: a name from the module's first table.

    Returns:
        [B, T]; differentiable in both arguments.

    Raises:
        ValueError: unknown estimator.
    """
    difference = policy_log_probs - reference_log_probs
    if estimator == "k1":
        return difference
    if estimator == "k2":
        return difference.square() / 2
    if estimator == "k3":
        # expm1 keeps precision near 0, where policy and reference agree.
        return (-difference).expm1() + difference
    raise ValueError(f"no KL estimator `{estimator}`; there are k1, k2, k3")


@dataclasses.dataclass
class EntropyCoefficient:
    """The coefficient c of the entropy bonus, fixed or steered towards a target entropy.

    Attributes:
        coefficient: c; in a steered run it starts here and changes with each step.
        target: the target entropy in nats per token; 0 keeps c fixed.
        last: mean entropy of the step before, in nats per token. It is infinite in the first step,
            so that a steered run has no bonus there.
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
        """The coefficient in this step's loss: c, or 0 if a steered run is above its target."""
        return self.coefficient if not self.target or self.last <= self.target else 0.0

    def update(self, entropy: float) -> None:
        """Raise c by 0.005 if a step's entropy is at or below the target, else lower it.

        Args:
            entropy: mean over the step's tokens on all ranks, in nats.
        """
        # Without a target c is fixed.
        if self.target:
            # The change has a fixed size, since the entropy's gradient is too noisy to follow.
            change = self.STEP if entropy <= self.target else -self.STEP
            self.coefficient = min(max(self.coefficient + change, 0.0), self.MOST)
        # Above the target, `step_coefficient` of the next step is 0.
        self.last = entropy
