"""Statistics of graded completions: rates, pass@k and differences with their errors.

The unit of random sampling is the problem. Completions of one problem are not independent, so
every standard error of a run is computed over problems (arXiv:2411.00640). In studies, `seeds`
computes it over seeds too.
"""

from lib.stats.attempts import maj_at_k, pass_at_k, pass_hat_k
from lib.stats.differences import Difference, independent_difference, paired_difference
from lib.stats.estimates import (
    Estimate,
    Interval,
    clustered_mean,
    mean_estimate,
    rate_estimate,
    share_interval,
)
from lib.stats.seeds import SeedsMean, holm, seeds_mean

__all__ = [
    "Difference",
    "Estimate",
    "Interval",
    "SeedsMean",
    "clustered_mean",
    "holm",
    "independent_difference",
    "maj_at_k",
    "mean_estimate",
    "paired_difference",
    "pass_at_k",
    "pass_hat_k",
    "rate_estimate",
    "seeds_mean",
    "share_interval",
]
