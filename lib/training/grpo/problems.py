"""The problems of a GRPO step: decided by seed and step, so that a resumed run takes the same.

With `grpo.curriculum`, a problem's last group decides how often it is drawn. Dynamic sampling
(DAPO, arXiv:2503.14476) replaces groups that give the policy no gradient. Indices are those of all
processes; each takes its part.

Differs from DAPO in: a round draws only as many new problems as there are such groups, not a whole
batch, and the number of rounds is bounded.
"""

import hashlib
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import compress
from typing import Any

import torch

from lib.core.errors import UserError
from lib.params.training import Grpo
from lib.rewards.rollout import Rollout
from lib.training.phase.checkpoints import SavedState

OUTER_SHARE = 0.25
"""Draws of a problem that is too easy or too hard in `curriculum: pool`, per draw of another."""

POOLS = ("unseen", "hard", "middle", "easy")


class ProblemOrder(SavedState):
    """Decides which of `num_problems` problems a step takes.

    Args:
        seed: of the run.
    """

    def __init__(self, grpo: Grpo, *, num_problems: int, seed: int) -> None:
        self.grpo, self.num_problems, self.seed = grpo, num_problems, seed
        self.rates: list[float | None] = [None] * num_problems
        """The share of right answers in each problem's last group; None before the first."""
        self.due: list[float] = [0.0] * num_problems
        """Each problem's draws so far, one of an outer pool counted 1 / `OUTER_SHARE` times."""

    def of_step(self, step: int) -> list[int]:
        """Return the indices of the step's problems; `grpo.shuffle` shuffles each epoch.

        Args:
            step: optimiser steps so far.
        """
        total = self.grpo.prompts_per_step
        # The number of this roll-out, from 0: `num_iterations` steps train on each.
        generation = step // self.grpo.num_iterations
        if self.grpo.curriculum != "none":
            return self._first_due(total, keyed_seed(self.seed, "curriculum", generation))
        # `position`: the number of the roll-out in its epoch. An epoch of 10 problems, 4 per step,
        # has 2 roll-outs and leaves 2 problems out; each epoch's shuffle leaves out others.
        epoch, position = divmod(generation, self.num_problems // total)
        order = list(range(self.num_problems))
        if self.grpo.shuffle:
            generator = torch.Generator().manual_seed(self.seed)
            # All shuffles since the first epoch, for the order of an uninterrupted run.
            for _ in range(epoch + 1):
                order = torch.randperm(self.num_problems, generator=generator).tolist()
        return order[position * total : (position + 1) * total]

    def of_refill(self, count: int, *, step: int, round_: int) -> list[int]:
        """Draw `count` different problems for a round of dynamic sampling."""
        seed = keyed_seed(self.seed, "refill", step, round_)
        if self.grpo.curriculum != "none":
            return self._first_due(count, seed)
        return random.Random(seed).sample(range(self.num_problems), count)

    def _first_due(self, count: int, seed: int) -> list[int]:
        """Return the `count` problems that are due first; those that are retired come last."""
        generator = random.Random(seed)
        numbers = range(self.num_problems)
        ties = [generator.random() if self.grpo.shuffle else number for number in numbers]
        retires = self.grpo.curriculum == "retire"

        def key(index: int) -> tuple[bool, float, float]:
            return retires and self.pool(index) == "easy", self.due[index], ties[index]

        return sorted(numbers, key=key)[:count]

    def observe(self, indices: Sequence[int], rates: Sequence[float]) -> None:
        """Note the share of right answers in each drawn problem's group, on all processes."""
        for index, rate in zip(indices, rates, strict=True):
            self.rates[index] = rate
            is_outer = self.grpo.curriculum == "pool" and self.pool(index) != "middle"
            self.due[index] += 1 / OUTER_SHARE if is_outer else 1

    def pool(self, index: int) -> str:
        """Return the pool of a problem, one of `POOLS`, by its last group."""
        rate = self.rates[index]
        if rate is None:
            return "unseen"
        if rate <= self.grpo.curriculum_low:
            return "hard"
        return "easy" if rate >= self.grpo.curriculum_high else "middle"

    def pool_sizes(self) -> dict[str, int]:
        counts = Counter(map(self.pool, range(self.num_problems)))
        return {pool: counts[pool] for pool in POOLS}

    def values(self) -> dict[str, Any]:
        return {"rates": list(self.rates), "due": list(self.due)}

    def restore(self, values: Mapping[str, Any]) -> None:
        """Restore the curriculum's state, unless it is of other problems."""
        if len(values["due"]) == self.num_problems:
            self.rates, self.due = list(values["rates"]), list(values["due"])


def refill(trainer: Any, groups: list[list[Rollout]]) -> list[list[Rollout]]:
    """Replace groups without signal by groups of newly drawn problems.

    Sampling is collective under FSDP, so in a round every rank samples as many problems as the rank
    with the most missing groups needs; the other ranks drop their surplus.

    Args:
        trainer: a `PolicyGradientTrainer`.
        groups: the P groups of this process, changed in place and returned.

    Raises:
        UserError: a group is still without signal on some rank after all rounds, and
            `grpo.dynamic_sampling_fallback` is `error`.
    """
    grpo, curve, step = trainer.grpo, trainer.curve, trainer.state.global_step
    # `signals`: [P] True for a group that gives a gradient, and later of every sampled group.
    rounds, signals = grpo.dynamic_sampling, signal_mask(trainer, groups)
    missing = [index for index, signal in enumerate(signals) if not signal]
    round_ = 0
    # `wanted`: the largest number of missing groups on any rank; 0 ends the rounds.
    while (wanted := int(curve.gather([len(missing)]).max())) and round_ < rounds:
        round_ += 1
        count = wanted * trainer.accelerator.num_processes
        new_groups = trainer.sample(
            trainer.order.of_refill(count, step=step, round_=round_), round_=round_
        )
        new_signals = signal_mask(trainer, new_groups)
        signals += new_signals
        spare = list(compress(new_groups, new_signals))
        # Not strict: there may be more missing groups than new ones with signal, or fewer.
        for index, group in zip(missing, spare, strict=False):
            groups[index] = group
        missing = missing[len(spare) :]
    if wanted and grpo.dynamic_sampling_fallback == "error":
        raise UserError(
            f"grpo.dynamic_sampling={rounds}: at step {step + 1}, up to {wanted} of {len(groups)} "
            "groups still have equal rewards when all rounds are used up. The problems are too "
            "easy or too hard for this policy, or its completions too alike: choose others "
            "(`./reckon difficulty`) or a larger grpo.group_size, raise the rounds, or set "
            "grpo.dynamic_sampling_fallback: train"
        )
    curve.record("dynamic_sampling/rounds", round_)
    shares = {
        "frac_without_signal": 1 - sum(signals) / len(signals),
        "frac_unfilled": len(missing) / len(groups),
    }
    for name, share in shares.items():
        curve.record(f"dynamic_sampling/{name}", curve.gather([share]).mean().item())
    return groups


def signal_mask(trainer: Any, groups: Sequence[Sequence[Rollout]]) -> list[bool]:
    """Return a bool per group: True if its rewards differ, and not all of its rollouts are masked.

    With `grpo.mask_truncated`, truncated rollouts are not in the loss.
    """
    rewards = trainer.rewards_of([one for group in groups for one in group])  # [groups · G, F]
    return [
        differ and not (trainer.grpo.mask_truncated and all(one.truncated for one in group))
        for differ, group in zip(trainer.rewards_differ(rewards).tolist(), groups, strict=True)
    ]


def keyed_seed(*parts: object) -> int:
    """Derive a 63-bit seed from a key such as (42, "rollout", step, round).

    Neighbouring keys give unrelated seeds.
    """
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    # 63 bits, so that the seed fits into a signed 64-bit integer.
    return int.from_bytes(digest[:8], "big") >> 1
