"""The two terms added to the policy loss: the KL penalty and the entropy bonus.

KL(π ‖ π_ref) is estimated from the log-probs of tokens y drawn from π, with
d = log π(y) − log π_ref(y):

    k3 = e^(−d) − 1 + d       unbiased, ≥ 0, low variance: GRPO's (arXiv:2402.03300, eq. 4)

Differentiated through log π, k3 has the expected gradient of KL(π_ref ‖ π). Multiplied by the ratio
ρ = π/π_old (`kl_weighted` in `policy_loss`; DeepSeek-V3.2, arXiv:2512.02556; TRL's default), it has
that of KL(π ‖ π_ref), also for tokens of an older policy.

The coefficient of the entropy bonus: fixed, or steered towards a target.

    L = L_policy − c · mean_t H(π(· | y_<t))         A3C, arXiv:1602.01783
    steered, after each step with mean entropy H:    Skywork-OR1, arXiv:2505.22312
        c ← min(c + 0.005, 1) where H ≤ target, else max(c − 0.005, 0)
        and the next step adds the bonus only where H ≤ target

Differs from the papers in: the first step of a steered run has no bonus, since no entropy is known
yet; the constants are TRL's. The mean runs over the tokens of the optimiser step, so that
micro-batches add up to the full batch.
"""

import dataclasses
import math

from torch import Tensor


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
