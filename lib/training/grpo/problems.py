"""The problems of a GRPO step: decided by seed and step, so that a resumed run takes the same.

Indices are those of all processes; each takes its part.
"""

import hashlib
import random

import torch

from lib.params.training import Grpo


class ProblemOrder:
    """Decides which of `num_problems` problems a step takes.

    Args:
        seed: of the run.
    """

    def __init__(self, grpo: Grpo, *, num_problems: int, seed: int) -> None:
        self.grpo, self.num_problems, self.seed = grpo, num_problems, seed

    def of_step(self, step: int) -> list[int]:
        """Return the indices of the step's problems; `grpo.shuffle` shuffles each epoch.

        Args:
            step: optimiser steps so far.
        """
        total = self.grpo.prompts_per_step
        # The number of this roll-out, from 0: `num_iterations` steps train on each.
        generation = step // self.grpo.num_iterations
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
        return random.Random(seed).sample(range(self.num_problems), count)


def keyed_seed(*parts: object) -> int:
    """Derive a 63-bit seed from a key such as (42, "rollout", step, round).

    Neighbouring keys give unrelated seeds.
    """
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    # 63 bits, so that the seed fits into a signed 64-bit integer.
    return int.from_bytes(digest[:8], "big") >> 1
