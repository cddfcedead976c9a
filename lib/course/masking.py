"""Means and sums over the tokens that count.

    masked_mean = Σ m·x / Σ m,   masked_normalize = Σ m·x / c

Where the mask is 0 the value is never read: an infinity or a NaN there (padding has no meaningful
log-prob) reaches neither the result nor the gradient.

Shapes: any; in this library mostly B completions × T tokens.
"""

import torch
from torch import Tensor


def masked_mean(tensor: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Average over the positions where the mask is 1.

    Args:
        tensor: values, any shape.
        mask: same shape (or one that broadcasts to it), 0/1 or bool.
        dim: axis to average along; None averages over all positions.

    Returns:
        `tensor`'s shape without `dim`. NaN where the mask is 0 throughout: such a mean does not
        exist. Losses that must survive an empty row use `aggregate_token_losses` instead.
    """
    counted = mask.bool().expand_as(tensor)
    kept = torch.where(counted, tensor, 0)
    if dim is None:
        return kept.sum() / counted.sum()
    return kept.sum(dim=dim) / counted.sum(dim=dim)


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
    kept = torch.where(mask.bool().expand_as(tensor), tensor, 0)
    total = kept.sum() if dim is None else kept.sum(dim=dim)
    return total / normalize_constant
