"""A loss and an advantage of one's own, for `grpo.loss` and `grpo.advantage`.

B completions, T tokens; P problems, G completions of each.
"""

from torch import Tensor


def squared(log_probs: Tensor, old: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """[B, T] REINFORCE with a quadratic tie to the policy that sampled, in place of clipping."""
    return -advantages * log_probs + 0.5 * (log_probs - old) ** 2


def best_of_group(rewards: Tensor) -> Tensor:
    """[P, G] 1 for the best completions of a problem, 0 for the others, minus the mean of that."""
    best = (rewards == rewards.amax(-1, keepdim=True)).float()
    return best - best.mean(-1, keepdim=True)
