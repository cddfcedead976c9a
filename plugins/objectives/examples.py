"""A plugin loss and a plugin advantage, for `grpo.loss` and `grpo.advantage`.

B completions, T tokens; P problems, G completions of each.
"""

from torch import Tensor


def squared(log_probs: Tensor, old: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """Compute REINFORCE [B, T] with a quadratic tie to the sampling policy in place of clipping."""
    return -advantages * log_probs + 0.5 * (log_probs - old) ** 2


def best_of_group(rewards: Tensor) -> Tensor:
    """Return 1 [P, G] for a problem's best completions, 0 for the others, minus their mean."""
    best = (rewards == rewards.amax(-1, keepdim=True)).float()
    return best - best.mean(-1, keepdim=True)
