"""The metrics of GRPO's training curve, collected over micro-batches, ranks and logged steps.

A step's mean is taken over all micro-batches and ranks, a point of the curve is the mean of the
steps since the last point (`grpo.logging_steps`).

B completions of this process, F reward functions, b rows of a micro-batch, T tokens.
"""

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor

from lib.objectives.losses import LossInputs, PolicyLoss
from lib.objectives.sampler import SamplerComparison, effective_sample_share
from lib.rewards.rollout import ANSWER_ACCURACY, DECIDED_BY, Rollout, call_metrics, judged_metrics
from lib.training.phase.warning_signs import GAP

RATIO = "sampling/importance_sampling_ratio"
SQUARE = f"{RATIO}/mean_square"
ESS = "sampling/effective_sample_share"

OWN_COLUMNS = re.compile(
    r"(loss|grad_norm|learning_rate|epoch|step|reward|reward_std|frac_reward_zero_std|num_tokens"
    r"|answer_accuracy|entropy|entropy_coef|kl|teacher_kl|(rewards?|completions|calls|sampling|clip_ratio"
    r"|dynamic_sampling|curriculum|validation)/.*)"
)
"""Names of the curve's own columns, which a reward function's `log_metric` may not take."""


class Curve:
    """Collects each step's means, and averages them over logged steps."""

    def __init__(self, accelerator: Accelerator) -> None:
        self.accelerator = accelerator
        self.values: dict[str, list[float]] = defaultdict(list)
        """Column name → one value per step since the last point."""
        # [2] per column: sum and count of this process's numbers in the step. They stay on the GPU,
        # since reading one would wait for its queue.
        self._sums: dict[str, Tensor] = defaultdict(lambda: torch.zeros(2, dtype=torch.float64))

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
        """Record mean and standard deviation of each reward function's rewards, and of the totals.

        Args:
            names: [F] names of the reward functions.
            rewards: [B · ranks, F] of all ranks' completions.
            totals: [P · ranks, G] the weighted sums over F.
        """
        for index, name in enumerate(names):
            self.record(f"rewards/{name}/mean", rewards[:, index].mean().item())
            self.record(f"rewards/{name}/std", _std(rewards[:, index]))
        self.record("reward", totals.mean().item())
        self.record("reward_std", _std(totals.flatten()))

    def add_rollouts(self, rollouts: Sequence[Rollout], *, judged: bool = True) -> None:
        """Record the lengths and the truncated share of all ranks' completions.

        Also add the answer accuracy and the reward functions' metrics to the means of the step.

        Args:
            rollouts: [B] of this process.
            judged: False for no verdicts, and so no answer accuracy.
        """
        # [B · ranks] each: lengths in tokens, and 1 for a truncated completion.
        lengths, truncated = self.gather([(one.num_tokens, one.truncated) for one in rollouts]).T
        self.record("completions/clipped_ratio", truncated.mean().item())
        # Lengths of the completions that ended by themselves; a 0 if all were truncated, as in TRL.
        ended = torch.zeros(1) if truncated.all() else lengths[truncated == 0]
        self.record("completions/mean_length", lengths.mean().item())
        self.record("completions/mean_terminated_length", ended.mean().item())
        shares = judged_metrics(rollouts) if judged else {}
        for name, share in shares.items():
            # A share of the right answers counts by their number.
            count = len(rollouts) * (shares[ANSWER_ACCURACY] if name.startswith(DECIDED_BY) else 1)
            self._sums[name] += torch.tensor([share * count, count], dtype=torch.float64)
        for name, pair in call_metrics(rollouts, judged=judged).items():
            self._sums[name] += torch.tensor(pair, dtype=torch.float64)
        # Means over the completions scored in one call, of the first sampling or a refill: a call
        # counts by the number of its completions in training.
        for rollout in rollouts:
            for name, number in rollout.metrics.items():
                self._sums[name] += torch.tensor([number, 1.0])

    def add_comparison(self, comparison: SamplerComparison, mask: Tensor) -> None:
        """Add a micro-batch's gaps between sampler and trainer, and its importance weights.

        Args:
            comparison: has the gaps [b, T], and the importance weights [b, T] or [b, 1].
            mask: [b, T] True for the tokens in the loss.
        """
        gap, weights = comparison.gap, comparison.weights
        self._add(f"{GAP}/mean", gap, mask)
        self._add(f"{RATIO}/mean", weights, mask)
        # Not a column itself: `close_step` needs it for the effective sample size.
        self._add(SQUARE, weights.square(), mask)

    def add_loss(self, loss: PolicyLoss, entropy: Tensor, batch: LossInputs) -> None:
        """Add a micro-batch's entropy, clipped shares and its KL to reference and teacher.

        Args:
            entropy: [b, T] of the policy.
        """
        credit, mask = batch.advantages.unsqueeze(-1), batch.loss_mask
        # [b, T], or [b, 1] for a ratio per sequence. With A < 0 a ratio above δ counts as low too.
        low, high = loss.clipped & (credit < 0), loss.clipped & (credit > 0)
        self._add("entropy", entropy, mask)
        for name, clipped in {"low": low, "high": high, "region": low | high}.items():
            self._add(f"clip_ratio/{name}_mean", clipped.float(), mask)
        if batch.reference_log_probs is not None:
            self._add("kl", loss.kl, mask)
        if loss.teacher_kl is not None:
            self._add("teacher_kl", loss.teacher_kl, mask)

    def _add(self, name: str, values: Tensor, mask: Tensor) -> None:
        """Add a micro-batch to a mean of the step.

        The values are [b, T] or [b, 1], the mask is [b, T]; for what counts see `_counted`.
        """
        counted = _counted(values, mask)
        pair = torch.stack([(values * counted).sum(), counted.sum()]).double()
        # Not `+=`: a new entry of `_sums` is a tensor on the CPU. `get` makes none.
        self._sums[name] = pair + self._sums.get(name, 0)

    def close_step(self) -> Mapping[str, float]:
        """Record the step's means over all ranks, and return them by name.

        A column is left out if no rank has a number that counts. Gathered once a step, since ranks
        skip different numbers of micro-batches and log different columns.
        """
        own_sums = {name: pair.tolist() for name, pair in self._sums.items()}
        self._sums.clear()
        # By column, [sum, count] of each rank.
        pairs: dict[str, list[list[float]]] = defaultdict(list)
        for rank_sums in gather_object([own_sums]):
            for name, pair in rank_sums.items():
                pairs[name].append(pair)
        means: dict[str, float] = {}
        for name in sorted(pairs):
            total, count = map(sum, zip(*pairs[name], strict=True))
            if name.startswith(DECIDED_BY):
                # All right answers: a rank on which the step accepted none has no entry.
                means[name] = total / sum(right for right, _ in pairs[ANSWER_ACCURACY])
            elif count:
                means[name] = total / count
        square = means.pop(SQUARE, None)
        if square is not None:
            means[ESS] = effective_sample_share(means[f"{RATIO}/mean"], square)
        for name, value in means.items():
            self.record(name, value)
        return means

    def take_point(self) -> dict[str, float]:
        """Return each column's mean over the steps since the last call; NaN values are left out."""
        means: dict[str, float] = {}
        for name, values in self.values.items():
            known = [value for value in values if not math.isnan(value)]
            count = len(known)
            if name.startswith(DECIDED_BY):
                # All steps with right answers: without one that was accepted so, there is no value.
                count = sum(accuracy > 0 for accuracy in self.values[ANSWER_ACCURACY])
            if known:
                means[name] = sum(known) / count
        self.values.clear()
        return means


def _counted(values: Tensor, mask: Tensor) -> Tensor:
    """Return which values count, in their shape.

    Of values [b, T], the tokens whose mask is True; of values [b, 1], the completions with at least
    one such token. The mask is [b, T].
    """
    return mask.any(-1, keepdim=True) if values.shape[1] == 1 else mask


def _std(values: Tensor) -> float:
    """Return the unbiased standard deviation; NaN for fewer than two values."""
    return values.std().item() if len(values) > 1 else math.nan
