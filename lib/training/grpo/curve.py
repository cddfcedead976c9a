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

from lib.objectives.losses import LossInputs, PolicyLoss
from lib.objectives.sampler import SamplerComparison, effective_sample_share
from lib.rewards.rollout import Rollout
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
        # `_extremes`: tensors [n] of candidates for a minimum or maximum, NaN if they do not count.
        # All stay on the device, since a read would wait for its queue.
        self._sums: dict[str, Tensor] = defaultdict(lambda: torch.zeros(2, dtype=torch.float64))
        self._extremes: dict[str, list[Tensor]] = defaultdict(list)

    def record(self, name: str, value: float) -> None:
        """Record one number of this step; every rank must pass the same number."""
        self.values[name].append(value)

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

    def add_rollouts(self, rollouts: Sequence[Rollout]) -> None:
        """Record the lengths of all ranks' completions and their truncated share; add metrics."""
        # [B · ranks] each: lengths in tokens, and 1 for a truncated completion.
        every, cut = self.gather([(one.num_tokens, one.truncated) for one in rollouts]).T
        self.record("completions/clipped_ratio", cut.mean().item())
        # TRL logs 0 where no completion ended by itself.
        ended = torch.zeros(1) if cut.all() else every[cut == 0]
        for name, values in (("length", every), ("terminated_length", ended)):
            for statistic in ("mean", "min", "max"):
                value = getattr(values, statistic)().item()
                self.record(f"completions/{statistic}_{name}", value)
        # Once per completion that is trained on, so that each refill round counts by its share.
        # Other ranks may have metrics of other names.
        for rollout in rollouts:
            for name, number in rollout.metrics.items():
                self._sums[name] += torch.tensor([number, 1.0])

    def add_comparison(self, comparison: SamplerComparison, mask: Tensor) -> None:
        """Add a micro-batch's distance between sampler and trainer."""
        gap, weights = comparison.gap, comparison.weights
        self._add(f"{GAP}/mean", gap, mask)
        self._add(f"{RATIO}/mean", weights, mask)
        self._add(SQUARE, weights.square(), mask)
        extremes = {
            f"{GAP}/max": gap.max(),
            f"{RATIO}/min": weights.min(),
            f"{RATIO}/max": weights.max(),
        }
        for name, value in extremes.items():
            # A micro-batch without a token that counts has no extreme.
            self._extremes[name].append(torch.where(mask.any(), value, math.nan).view(1))

    def add_loss(self, loss: PolicyLoss, entropy: Tensor, batch: LossInputs) -> None:
        """Add the policy's entropy [b, T], clipped shares and, with a KL penalty, KL."""
        credit, mask = batch.advantages.unsqueeze(-1), batch.loss_mask
        # The clip bounds the ratio from below where A < 0 (δ from above), from above where A > 0.
        low, high = loss.clipped & (credit < 0), loss.clipped & (credit > 0)
        self._add("entropy", entropy, mask)
        for name, clipped in {"low": low, "high": high, "region": low | high}.items():
            self._add(f"clip_ratio/{name}_mean", clipped.float(), mask)
        if batch.reference_log_probs is not None:
            self._add("kl", loss.kl, mask)
        tokens = mask.sum(-1)
        for name, clipped in {"low_min": low, "high_max": high}.items():
            # [b] the clipped share of each completion's tokens; NaN without tokens.
            shares = (clipped.float() * mask).sum(-1) / tokens
            self._extremes[f"clip_ratio/{name}"].append(shares)

    def _add(self, name: str, values: Tensor, mask: Tensor) -> None:
        """Add a micro-batch to a mean of the step.

        For values [b, T] the mean is over the tokens whose mask is True; for values [b, 1], over
        the completions with at least one such token. The mask is [b, T].
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
        own_sums = {name: pair.tolist() for name, pair in self._sums.items()}
        own_extremes = {name: torch.cat(parts).tolist() for name, parts in self._extremes.items()}
        self._sums.clear()
        self._extremes.clear()
        # By column, the values of all ranks: pairs of a sum and a count, and candidates.
        pairs: dict[str, list[list[float]]] = defaultdict(list)
        extremes: dict[str, list[float]] = defaultdict(list)
        for rank_sums, rank_extremes in gather_object([(own_sums, own_extremes)]):
            for name, pair in rank_sums.items():
                pairs[name].append(pair)
            for name, values in rank_extremes.items():
                extremes[name] += values
        means: dict[str, float] = {}
        for name in sorted(pairs):
            total, count = map(sum, zip(*pairs[name], strict=True))
            if count:
                means[name] = total / count
        if (square := means.pop(SQUARE, None)) is not None:
            # Kish's effective sample size as a share, from the mean weight and mean squared weight.
            means[ESS] = effective_sample_share(means[f"{RATIO}/mean"], square)
        for name, value in means.items():
            self.record(name, value)
        for name in sorted(extremes):
            counted = [value for value in extremes[name] if not math.isnan(value)]
            if counted:
                self.record(name, min(counted) if name.endswith("min") else max(counted))
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
