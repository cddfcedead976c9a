"""A plugin loss and a plugin advantage, for `grpo.loss` and `grpo.advantage`.

B completions, T tokens; P problems, G completions of each.
"""

from torch import Tensor


def squared(log_probs: Tensor, old: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """Return a REINFORCE loss per token [B, T] with a quadratic penalty in place of clipping.

    The penalty is on the change of a log-prob since sampling.

    Args:
        log_probs: [B, T] of the policy.
        old: [B, T] of the policy that sampled.
        advantages: [B, 1], one for each completion.
        mask: [B, T] True for completion tokens. Not needed here: the caller averages the result
            over these tokens only.
    """
    return -advantages * log_probs + 0.5 * (log_probs - old) ** 2


def best_of_group(rewards: Tensor) -> Tensor:
    """Return 1 [P, G] for a problem's best completions, 0 for others, minus their group's mean."""
    best = (rewards == rewards.amax(-1, keepdim=True)).float()
    return best - best.mean(-1, keepdim=True)
