"""The numbers of GRPO's curve: collected over a step's micro-batches and ranks, and over the steps
between two points.

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
    """Means over steps, of means and extremes over a step."""

    def __init__(self, accelerator: Accelerator) -> None:
        self.accelerator = accelerator
        self.values: dict[str, list[float]] = defaultdict(list)
        """Of the steps since the last point."""
        # Of the step that is under way, on this process: [sum, count], and numbers to choose from.
        self._sums: dict[str, Tensor] = defaultdict(lambda: torch.zeros(2, dtype=torch.float64))
        self._extremes: dict[str, list[float]] = defaultdict(list)

    def record(self, name: str, value: float) -> None:
        """One number of this step, the same on all ranks."""
        self.values[name].append(value)

    def add(self, numbers: Mapping[str, float]) -> None:
        """Add a completion's numbers to means over the step; other ranks may have other names."""
        for name, number in numbers.items():
            self._sums[name] += torch.tensor([number, 1.0])

    def gather(self, local: Sequence[Any]) -> Tensor:
        """The rows of all ranks."""
        rows = torch.tensor(local, device=self.accelerator.device, dtype=torch.float32)
        gathered: Tensor = self.accelerator.gather(rows)
        return gathered

    def add_rewards(self, names: Sequence[str], rewards: Tensor, totals: Tensor) -> None:
        """Record what all ranks' completions earned.

        Args:
            rewards: [B, F].
            totals: weighted sums.
        """
        for index, name in enumerate(names):
            self.record(f"rewards/{name}/mean", rewards[:, index].mean().item())
            self.record(f"rewards/{name}/std", _std(rewards[:, index]))
        self.record("reward", totals.mean().item())
        self.record("reward_std", _std(totals.flatten()))

    def add_lengths(self, lengths: Sequence[int], truncated: Sequence[bool]) -> None:
        """Record how long this process's completions are, and how many are cut."""
        every, cut = self.gather(list(zip(lengths, truncated, strict=True))).T
        self.record("completions/clipped_ratio", cut.mean().item())
        ended = torch.zeros(1) if cut.all() else every[cut == 0]
        for name, values in (("length", every), ("terminated_length", ended)):
            for statistic in ("mean", "min", "max"):
                value = getattr(values, statistic)().item()
                self.record(f"completions/{statistic}_{name}", value)

    def add_comparison(self, comparison: SamplerComparison, mask: Tensor) -> None:
        """Add how far a micro-batch's sampler is from its trainer."""
        gap, weights = comparison.gap, comparison.weights
        self._add(f"{GAP}/mean", gap, mask)
        self._add(f"{RATIO}/mean", weights, mask)
        self._add(SQUARE, weights.square(), mask)
        if mask.any():
            self._extremes[f"{GAP}/max"].append(gap.max().item())
            self._extremes[f"{RATIO}/min"].append(weights.amin().item())
            self._extremes[f"{RATIO}/max"].append(weights.amax().item())

    def add_loss(
        self, loss: PolicyLoss, *, entropy: Tensor, advantages: Tensor, mask: Tensor, kl: bool
    ) -> None:
        """Add what a micro-batch's loss was made of.

        Args:
            entropy: [b, T] of the policy.
            advantages: [b].
            kl: there is a penalty.
        """
        credit = advantages.unsqueeze(-1)
        low, high = loss.clipped & (credit < 0), loss.clipped & (credit > 0)
        self._add("entropy", entropy, mask)
        for name, clipped in {"low": low, "high": high, "region": low | high}.items():
            self._add(f"clip_ratio/{name}_mean", clipped.float(), mask)
        if kl:
            self._add("kl", loss.kl, mask)
        self._extremes["clip_ratio/low_min"] += _row_means(low.float(), mask)
        self._extremes["clip_ratio/high_max"] += _row_means(high.float(), mask)

    def _add(self, name: str, values: Tensor, mask: Tensor) -> None:
        """Add to a mean over the step's tokens that count, or over its completions where `values`
        has one number for each."""
        kept = mask.any(-1, keepdim=True) if values.shape[1] == 1 else mask
        self._sums[name] += torch.stack([(values * kept).sum(), kept.sum()]).cpu().double()

    def close_step(self) -> Mapping[str, float]:
        """The step's means; where no token counted, there is none.

        Once a step, since ranks leave out unequally many micro-batches, and log what they like: a
        collective in each of them would meet another one.
        """
        own = {name: total.tolist() for name, total in self._sums.items()}
        ranks = gather_object([(own, dict(self._extremes))])
        self._sums.clear()
        self._extremes.clear()
        means: dict[str, float] = {}
        for name in sorted({name for sums, _ in ranks for name in sums}):
            totals = [sums[name] for sums, _ in ranks if name in sums]
            if count := sum(count for _, count in totals):
                means[name] = sum(total for total, _ in totals) / count
        if (square := means.pop(SQUARE, None)) is not None:
            means[ESS] = effective_sample_share(means[f"{RATIO}/mean"], square)
        for name, value in means.items():
            self.record(name, value)
        for name in sorted({name for _, extremes in ranks for name in extremes}):
            every = [value for _, extremes in ranks for value in extremes.get(name, ())]
            if every:
                self.record(name, min(every) if name.endswith("min") else max(every))
        return means

    def take_point(self) -> dict[str, float]:
        """Means over the steps since the last call."""
        means: dict[str, float] = {}
        for name, values in self.values.items():
            known = [value for value in values if not math.isnan(value)]
            if known:
                means[name] = sum(known) / len(known)
        self.values.clear()
        return means


def _std(values: Tensor) -> float:
    """Unbiased; NaN for fewer than two."""
    if len(values) < 2:
        return math.nan
    variance = (values - values.mean()).square().mean() * (len(values) / (len(values) - 1))
    return math.sqrt(variance.item())


def _row_means(values: Tensor, mask: Tensor) -> list[float]:
    """Means over the tokens that count, of rows that have any."""
    counts = mask.sum(-1)
    return ((values * mask).sum(-1) / counts)[counts > 0].tolist()
