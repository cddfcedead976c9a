"""Training objectives as plain torch functions, importable by themselves.

`docs/objectives.md` lists them with equations and papers. This module does not import torch, so
that params and plans can use it.
"""

import dataclasses
from typing import Literal

Average = Literal["completions", "micro_batch_tokens", "step_tokens", "longest"]
"""How token losses are averaged:

    completions         mean over each completion's tokens, then over the completions
    micro_batch_tokens  sum divided by the tokens of the micro-batch
    step_tokens         sum divided by the tokens of the optimiser step
    longest             sum divided by completions times the longest length allowed
"""


@dataclasses.dataclass(frozen=True)
class LossFacts:
    """The properties of a loss, readable without torch.

    Attributes:
        average: see `Average`.
        clips: True if tokens outside of the clip range lose their gradient.
        uses_ratio: True if it has the ratio π / π_old.
        masks_tokens: True if it drops tokens by their own probabilities: it has neither a ratio of
            sequences nor a limit `delta`.
        in_trl: True if TRL's trainer has it under this name.
    """

    average: Average
    clips: bool = True
    uses_ratio: bool = True
    masks_tokens: bool = False
    in_trl: bool = True


LOSSES = {
    "grpo": LossFacts("completions"),
    "bnpo": LossFacts("micro_batch_tokens"),
    "dr_grpo": LossFacts("longest"),
    "dapo": LossFacts("step_tokens"),
    "dppo": LossFacts("step_tokens", masks_tokens=True, in_trl=False),
    "cispo": LossFacts("step_tokens", clips=False),
    "reinforce": LossFacts("completions", clips=False, uses_ratio=False, in_trl=False),
}
"""The losses by their names in `grpo.loss`; formulas are in `lib.objectives.losses`."""

Baseline = Literal["none", "mean", "group", "batch", "rloo"]
"""The names of `grpo.advantage`; formulas are in `lib.objectives.advantages`."""

CHUNK_NUMEL = {"cpu": 2**25, "cuda": 2**27}
"""Number of logits (rows × vocabulary V) in a chunk of `fused_scores`, by device. On a CPU, 128 MiB
in float32: half the rows took a tenth more time, twice the rows saved none. A GPU waits for each
kernel launch, so its chunks are larger (not measured)."""

MAX_WHOLE_LOGITS = 2**26
"""Largest number of logits of a micro-batch computed as a whole (256 MiB in float32); above it in
chunks, for one more product with the output layer."""
