"""The coefficient of the entropy bonus: fixed, or steered towards a target.

    L = L_policy − c · mean_t H(π(· | y_<t))         A3C, arXiv:1602.01783
    steered, after each step with mean entropy H:    Skywork-OR1, arXiv:2505.22312
        c ← min(c + 0.005, 1) where H ≤ target, else max(c − 0.005, 0)
        and the next step adds the bonus only where H ≤ target

Differs from the papers in: nothing; the first step of a steered run has no bonus, since no entropy
is known yet, and the constants are TRL's. The mean runs over the tokens of the optimiser step, so
that micro-batches add up to the full batch (TRL averages the micro-batches' means).
"""

import dataclasses
import math


@dataclasses.dataclass
class EntropyCoefficient:
    """The coefficient c of the module's equation, with its steering.

    Attributes:
        coefficient: c, of a steered run the first one.
        target: nats per token; 0 keeps c as it is.
        last: mean entropy of the step before.
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
        """The coefficient in this step's loss."""
        return self.coefficient if not self.target or self.last <= self.target else 0.0

    def update(self, entropy: float) -> None:
        """Steer by a step's mean entropy over all ranks."""
        if self.target:
            # A fixed step in the direction of the target: entropy's gradient is too noisy to
            # follow.
            change = self.STEP if entropy <= self.target else -self.STEP
            self.coefficient = min(max(self.coefficient + change, 0.0), self.MOST)
        self.last = entropy
