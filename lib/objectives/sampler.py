"""The mismatch between the sampler's and the trainer's distributions, and its correction.

An engine with its own kernels or weights differs a little, so its tokens are off-policy. With π the
trainer's distribution and q the sampler's, both after temperature, min-p, top-k and top-p:

    r_t = π(y_t) / q(y_t)       E_q[r_t] = 1 where the two have the same support
    token       w_t = g(r_t)                arXiv:2510.18855 (IcePop), whose g is mask
    sequence    w = g(Π_t r_t)              TRL's default, whose g is mask
    truncate    g(r) = clamp(r, floor, cap) truncated importance sampling (Ionides, 2008)
    mask        g(r) = r in [floor, cap],   drops tokens or completions unlike the policy's
                       0 outside
    ESS         (Σ w)² / (n Σ w²)           Kish (1965): 1 for equal weights, 1/n for a single one

The product over a completion is exact, but its variance grows with the length. A token's ratio is
biased, and keeps long completions.

Differs from the papers in: the floor is 0 by default, where IcePop has 0.5 (and a cap of 5).

Shapes: B completions, T tokens.
"""

import dataclasses
from typing import Literal

import torch
from torch import Tensor

Correction = Literal["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]
"""`<level>_<g>` of the module's table; TRL's names."""


@dataclasses.dataclass(frozen=True)
class SamplerComparison:
    """The distance between sampler and trainer, and the weights that correct the loss for it.

    Attributes:
        gap: [B, T] |log π − log q| in nats, 0 where the mask is 0.
        weights: w without gradient, [B, T] for the level "token", [B, 1] for "sequence".
    """

    gap: Tensor
    weights: Tensor


def compare_with_sampler(
    trainer_log_probs: Tensor,
    sampler_log_probs: Tensor,
    mask: Tensor,
    *,
    correction: Correction = "sequence_mask",
    cap: float = 3.0,
    floor: float = 0.0,
) -> SamplerComparison:
    """Return the gap between trainer and sampler, and the importance weights π / q, bounded by g.

    Args:
        trainer_log_probs: [B, T] log π, with the weights that the policy had at sampling.
        sampler_log_probs: [B, T] log q, as the sampler reported them.
        mask: [B, T], 1 on the tokens that count.
        cap, floor: bounds of the ratio in g.
    """
    level, bound = correction.split("_")
    # [B, T] log r_t
    log_ratio = torch.where(mask.bool(), trainer_log_probs.detach() - sampler_log_probs, 0)
    total = log_ratio if level == "token" else log_ratio.sum(-1, keepdim=True)
    ratio = total.exp()
    outside = (ratio < floor) | (ratio > cap)
    weights = ratio.clamp(floor, cap) if bound == "truncate" else torch.where(outside, 0, ratio)
    return SamplerComparison(log_ratio.abs(), weights)


def effective_sample_share(mean: float, mean_square: float) -> float:
    """Return ESS / n, between 0 and 1, from the mean weight and the mean squared weight."""
    return mean**2 / mean_square if mean_square else 0.0
