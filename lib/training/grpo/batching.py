"""Micro-batches of a GRPO step: rows of like prompt and length share one.

b rows of a micro-batch, p distinct prompts among them, C tokens of the longest prompt, T of the
longest completion.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lib.objectives.losses import LossInputs
from lib.rewards.rollout import Rollout


@dataclasses.dataclass(kw_only=True)
class MicroBatch(LossInputs):
    """The rows of one forward pass, with all inputs of their loss.

    `reference_log_probs` is None without a KL penalty, `old_log_probs` and `correction` before the
    first pass.

    Attributes:
        rows: [b] indices of its rollouts among the step's B rollouts.
        prompts: [p, C] the distinct prompts, padded on the left with -1.
        owner: [b] for each row, the index of its prompt in `prompts`.
        prompt_ids, prompt_mask: [b, C], padded on the left.
        completion_ids, completion_mask: [b, T], padded on the right.
        sampled_mask: [b, T] False on padding and on a tool's tokens, which get no score.
        places: [n] flat indices of the sampled tokens in a mask [b, T + 1].
        signal: True if any row has a gradient.
        last: True for the last micro-batch of the step.
    """

    rows: Sequence[int]
    prompts: Tensor
    owner: Tensor
    prompt_ids: Tensor
    prompt_mask: Tensor
    completion_ids: Tensor
    completion_mask: Tensor
    sampled_mask: Tensor
    places: Tensor
    signal: bool
    sampler_log_probs: Tensor
    last: bool


def pad_rows(rows: Sequence[Sequence[Any]], *, value: Any, left: bool = False) -> Tensor:
    """Pad rows with `value` to a tensor [b, longest]: [[1, 2], [3]] -> [[1, 2], [3, value]].

    Args:
        left: pad before a row's entries, not after them.
    """
    width = max(len(row) for row in rows)
    padded = []
    for row in rows:
        fill = [value] * (width - len(row))
        padded.append([*fill, *row] if left else [*row, *fill])
    return torch.tensor(padded)


def sorted_rows(rollouts: Sequence[Rollout], signals: Sequence[bool]) -> list[int]:
    """Return the indices of the rollouts in the order of the micro-batches.

    Groups without signal come first: their micro-batches can be skipped. Both parts are sorted by
    length and tokens of the prompt, since each distinct prompt is computed once, then by length.

    Args:
        signals: [B] True for all rollouts of a group with an advantage other than 0.
    """

    def key(row: int) -> tuple[Any, ...]:
        rollout = rollouts[row]
        return signals[row], len(rollout.prompt_ids), rollout.prompt_ids, rollout.num_tokens

    return sorted(range(len(rollouts)), key=key)


def collate(
    rollouts: Sequence[Rollout],
    *,
    counted: Sequence[bool],
    pad: int,
    device: torch.device,
    **fields: Any,
) -> MicroBatch:
    """Pad b rollouts to the tensors of a micro-batch.

    Args:
        counted: [b] True for a completion in the loss.
        pad: the tokenizer's padding.
        fields: the fields of `MicroBatch` without padding.
    """
    prompts = [rollout.prompt_ids for rollout in rollouts]
    ids = [rollout.token_ids or () for rollout in rollouts]
    # A completion may have no log-probs (`GeneratedCompletion.log_probs`); its row is then 0.
    log_probs = [rollout.log_probs or () for rollout in rollouts]
    # [b, C] and [b, T], padded with -1, which is no token. They stay on the CPU until the end: on a
    # GPU, the sizes of `unique` and `nonzero` would wait for all queued kernels.
    padded, completions = pad_rows(prompts, value=-1, left=True), pad_rows(ids, value=-1)
    # [p, C], and for each row the index of its prompt among these, [b].
    distinct, owner = torch.unique(padded, dim=0, return_inverse=True)
    real = completions >= 0  # [b, T] True for tokens, False for padding
    sampled = real & pad_rows(
        [one.sampled or [True] * one.num_tokens for one in rollouts], value=False
    )
    # The model computes logits at T + 1 positions: a column of False for the last one, which
    # predicts what follows.
    places = torch.nn.functional.pad(sampled, (0, 1)).flatten().nonzero()[:, 0]
    tensors = {
        "prompts": distinct,
        "owner": owner,
        "places": places,
        "prompt_ids": padded.where(padded >= 0, pad),
        "prompt_mask": (padded >= 0).long(),
        "completion_ids": completions.where(real, pad),
        "completion_mask": real.long(),
        "sampled_mask": sampled,
        "loss_mask": sampled & torch.tensor(counted).unsqueeze(-1),
        "sampler_log_probs": pad_rows(log_probs, value=0.0),
    }
    return MicroBatch(**{name: each.to(device) for name, each in tensors.items()}, **fields)
