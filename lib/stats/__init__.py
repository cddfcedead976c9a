"""Statistics of evaluation: what graded completions show, and how surely.

The unit that is drawn at random is the problem: completions of one problem are not independent,
so every standard error here is computed over problems (arXiv:2411.00640).
"""

from lib.stats.attempts import maj_at_k, pass_at_k, pass_hat_k
from lib.stats.differences import (
    Difference,
    independent_difference,
    minimum_detectable_difference,
    paired_difference,
)
from lib.stats.estimates import (
    Estimate,
    Interval,
    clustered_mean,
    mean_estimate,
    seeds_interval,
    share_interval,
)

__all__ = [
    "Difference",
    "Estimate",
    "Interval",
    "clustered_mean",
    "independent_difference",
    "maj_at_k",
    "mean_estimate",
    "minimum_detectable_difference",
    "paired_difference",
    "pass_at_k",
    "pass_hat_k",
    "seeds_interval",
    "share_interval",
]
