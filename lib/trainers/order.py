"""The order of the data in an epoch, as a function of the seed and the epoch alone.

TRL's `RepeatSampler` (GRPO) and transformers' `LengthGroupedSampler` draw each epoch's order from a
generator that has drawn those before it: a run that goes on in a later epoch would start over with
the first epoch's order (trl 1.14, transformers 5.17).
"""

from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import Sampler
from transformers import Trainer
from transformers.trainer_pt_utils import LengthGroupedSampler
from trl.trainer.utils import RepeatSampler


class EpochSampler(Sampler[int]):
    """The orders that `sampler` gives, one epoch after the other, starting at any of them."""

    def __init__(self, sampler: Any, *, seed: int) -> None:
        self.sampler = sampler
        self.seed = seed
        self.epoch = 0
        if getattr(sampler, "generator", None) is None:
            sampler.generator = torch.Generator()

    def set_epoch(self, epoch: int) -> None:
        """Called by the trainer before each epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[int]:
        self.sampler.generator.manual_seed(self.seed)
        for _ in range(self.epoch):
            deque(self.sampler, maxlen=0)
        return iter(self.sampler)


def order_by_epoch(trainer: Trainer) -> None:
    """Make a trainer's order resumable; what it shuffles by epoch already is left alone."""
    original = trainer._get_train_sampler

    def wrapped(*arguments: Any) -> Any:
        sampler = original(*arguments)
        shuffles = isinstance(sampler, LengthGroupedSampler) or (
            isinstance(sampler, RepeatSampler) and sampler.shuffle
        )
        return EpochSampler(sampler, seed=trainer.args.seed) if shuffles else sampler

    trainer._get_train_sampler = wrapped
