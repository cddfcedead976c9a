"""The metrics of GRPO's training curve, collected over micro-batches, ranks and logged steps.

A step's mean is taken over all micro-batches and ranks, a point of the curve is the mean of the
steps since the last point (`grpo.logging_steps`).

B completions of this process, F reward functions, b rows of a micro-batch, T tokens.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor

from lib.objectives.losses import PolicyLoss
from lib.objectives.sampler import SamplerComparison, effective_sample_share
from lib.training.phase.warning_signs import GAP

RATIO = "sampling/importance_sampling_ratio"
SQUARE = f"{RATIO}/mean_square"
ESS = "sampling/effective_sample_share"


class Curve:
    """Collects each step's means, minima and maxima, and averages them over logged steps."""

    def __init__(self, accelerator: Accelerator) -> None:
        self.accelerator = accelerator
        self.values: dict[str, list[float]] = defaultdict(list)
        """Column name → one value per step since the last point."""
        # This process's numbers of the current step, by column. `_sums`: [2], a sum and a count.
        # `_extremes`: tensors [2, n], n candidates for a minimum or maximum, and for each a 1 if it
        # counts, else a 0. All stay on the device, since a read would wait for its queue.
        self._sums: dict[str, Tensor] = defaultdict(lambda: torch.zeros(2, dtype=torch.float64))
        self._extremes: dict[str, list[Tensor]] = defaultdict(list)

    def record(self, name: str, value: float) -> None:
        """Record one number of this step; every rank must pass the same number."""
        self.values[name].append(value)

    def add(self, numbers: Mapping[str, float]) -> None:
        """Add a completion's numbers to the step's means; other ranks may have other names."""
        for name, number in numbers.items():
            self._sums[name] += torch.tensor([number, 1.0])

    def gather(self, local: Sequence[Any]) -> Tensor:
        """Concatenate the rows of all ranks: [n, ...] on each rank -> [n · ranks, ...], float32."""
        rows = torch.tensor(local, device=self.accelerator.device, dtype=torch.float32)
        # Collective: every rank calls it equally often.
        gathered: Tensor = self.accelerator.gather(rows)
        return gathered

    def add_rewards(self, names: Sequence[str], rewards: Tensor, totals: Tensor) -> None:
        """Record the rewards of all ranks' completions.

        Args:
            rewards: [B · ranks, F].
            totals: [groups, G] the weighted sums over F.
        """
        for index, name in enumerate(names):
            self.record(f"rewards/{name}/mean", rewards[:, index].mean().item())
            self.record(f"rewards/{name}/std", _std(rewards[:, index]))
        self.record("reward", totals.mean().item())
        self.record("reward_std", _std(totals.flatten()))

    def add_lengths(self, lengths: Sequence[int], truncated: Sequence[bool]) -> None:
        """Record the lengths of this process's completions, and the truncated share."""
        # [B · ranks] each: lengths in tokens, and 1 for a truncated completion.
        every, cut = self.gather(list(zip(lengths, truncated, strict=True))).T
        self.record("completions/clipped_ratio", cut.mean().item())
        # TRL logs 0 where no completion ended by itself.
        ended = torch.zeros(1) if cut.all() else every[cut == 0]
        for name, values in (("length", every), ("terminated_length", ended)):
            for statistic in ("mean", "min", "max"):
                value = getattr(values, statistic)().item()
                self.record(f"completions/{statistic}_{name}", value)

    def add_comparison(self, comparison: SamplerComparison, mask: Tensor) -> None:
        """Add a micro-batch's distance between sampler and trainer."""
        gap, weights = comparison.gap, comparison.weights
        self._add(f"{GAP}/mean", gap, mask)
        self._add(f"{RATIO}/mean", weights, mask)
        self._add(SQUARE, weights.square(), mask)
        extremes = {f"{GAP}/max": gap.max(), f"{RATIO}/min": weights.amin()}
        for name, value in {**extremes, f"{RATIO}/max": weights.amax()}.items():
            self._add_candidates(name, value.view(1), mask.any().view(1))

    def add_loss(
        self, loss: PolicyLoss, *, entropy: Tensor, advantages: Tensor, mask: Tensor, kl: bool
    ) -> None:
        """Add the entropy, clipped shares and KL of a micro-batch.

        Args:
            entropy: [b, T] of the policy.
            advantages: [b].
            kl: True if the loss has a KL penalty; without one, no KL is added.
        """
        credit = advantages.unsqueeze(-1)
        # The clip bounds the ratio from below where A < 0 (δ from above), from above where A > 0.
        low, high = loss.clipped & (credit < 0), loss.clipped & (credit > 0)
        self._add("entropy", entropy, mask)
        for name, clipped in {"low": low, "high": high, "region": low | high}.items():
            self._add(f"clip_ratio/{name}_mean", clipped.float(), mask)
        if kl:
            self._add("kl", loss.kl, mask)
        tokens = mask.sum(-1)
        for name, clipped in {"low_min": low, "high_max": high}.items():
            # [b] the clipped share of each completion's tokens; NaN without tokens, not counted.
            shares = (clipped.float() * mask).sum(-1) / tokens
            self._add_candidates(f"clip_ratio/{name}", shares, tokens > 0)

    def _add_candidates(self, name: str, values: Tensor, kept: Tensor) -> None:
        """Add n candidates [n] for the step's minimum or maximum; those with mask `kept` count."""
        self._extremes[name].append(torch.stack([values.double(), kept.double()]))

    def _add(self, name: str, values: Tensor, mask: Tensor) -> None:
        """Add a micro-batch to a mean of the step.

        The mean is over the tokens that count for values [b, T], and over the completions with such
        a token for values [b, 1]. The mask is [b, T].
        """
        kept = mask.any(-1, keepdim=True) if values.shape[1] == 1 else mask
        self._sums[name] = torch.stack(
            [(values * kept).sum(), kept.sum()]
        ).double() + self._sums.get(name, 0)

    def close_step(self) -> Mapping[str, float]:
        """Record the step's means, minima and maxima over all ranks, and return the means by name.

        A column is left out if no rank has a number that counts. The numbers of micro-batches are
        gathered only here, once a step: ranks skip different numbers of micro-batches and log
        different columns, so that collective calls in each micro-batch would not match up.
        """
        own = {name: total.tolist() for name, total in self._sums.items()}
        choices = {name: torch.cat(parts, 1).T.tolist() for name, parts in self._extremes.items()}
        kept = {name: [value for value, valid in rows if valid] for name, rows in choices.items()}
        # A pair for each rank: column → [sum, count], and column → candidates that count.
        ranks = gather_object([(own, kept)])
        self._sums.clear()
        self._extremes.clear()
        means: dict[str, float] = {}
        for name in sorted({name for sums, _ in ranks for name in sums}):
            totals = [sums[name] for sums, _ in ranks if name in sums]
            if count := sum(count for _, count in totals):
                means[name] = sum(total for total, _ in totals) / count
        if (square := means.pop(SQUARE, None)) is not None:
            # Kish's effective sample size as a share, from the mean weight and mean squared weight.
            means[ESS] = effective_sample_share(means[f"{RATIO}/mean"], square)
        for name, value in means.items():
            self.record(name, value)
        for name in sorted({name for _, extremes in ranks for name in extremes}):
            every = [value for _, extremes in ranks for value in extremes.get(name, ())]
            if every:
                self.record(name, min(every) if name.endswith("min") else max(every))
        return means

    def take_point(self) -> dict[str, float]:
        """Return each column's mean over the steps since the last call; NaN values are left out."""
        means: dict[str, float] = {}
        for name, values in self.values.items():
            known = [value for value in values if not math.isnan(value)]
            if known:
                means[name] = sum(known) / len(known)
        self.values.clear()
        return means


def _std(values: Tensor) -> float:
    """Return the unbiased standard deviation; NaN for fewer than two values."""
    if len(values) < 2:
        return math.nan
    variance = (values - values.mean()).square().mean() * (len(values) / (len(values) - 1))
    return math.sqrt(variance.item())
