"""A completion that GRPO learned from, as `grpo` keeps some of each step's to be read."""

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lib.artifacts import read_records


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TrainingRollout:
    """One completion of one step; the fields of one line of `data/rollouts/grpo.jsonl`.

    Attributes:
        step: the optimiser step that learned from it first.
        prompt: as the policy read it, special tokens included.
        sample: number of the completion in its group.
        rewards: by name of the reward function, None where it does not apply; `reward` is their
            weighted sum.
        num_loss_tokens: tokens that the loss counts: none of a completion that `mask_truncated`
            or the sampler's correction leaves out.
        log_prob_gap: |log π − log q| of trainer and sampler in nats, mean over the completion's
            tokens; None where no gradient was due, so that the trainer never scored it.
        extra: what reward functions logged of it through `log_extra`.
    """

    step: int
    problem: str
    reference: str
    prompt: str
    sample: int
    completion: str
    rewards: Mapping[str, float | None]
    reward: float
    advantage: float
    num_tokens: int
    num_loss_tokens: int
    truncated: bool
    log_prob_gap: float | None
    extra: Mapping[str, Any]


def read_rollouts(path: Path) -> Iterator[TrainingRollout]:
    """One completion a line; none where the file is missing or empty.

    Raises:
        UserError: a line is no rollout; names file and line.
    """
    if not path.exists():
        return iter(())
    return read_records(
        path,
        lambda row: TrainingRollout(**row),
        what="a rollout of training",
        remedy="`grpo` writes this file: run `dvc repro`",
    )
