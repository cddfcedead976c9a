"""Training objectives as plain torch functions, importable by themselves.

`docs/objectives.md` lists them with equations and papers; `examples.cs336` is the public course's
contract on top of them. This module has the table of built-in losses, and the sizes for computing
log-probs in chunks. It does not import torch, so that params and plans can use it.
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
        uses_ratio: True if it has the ratio π / π_old, which corrects for rollouts of an older
            policy.
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
"""The losses by their names in `grpo.loss`. A new loss is a line here, its formula in
`lib.objectives.losses`, and a row in docs/objectives.md."""

Baseline = Literal["none", "mean", "group", "batch", "rloo"]
"""The names of `grpo.advantage`. A new one is a word here, its formula in
`lib.objectives.advantages`, and a row in docs/objectives.md."""

CHUNK_NUMEL = {"cpu": 2**25, "cuda": 2**27}
"""Number of logits (rows × vocabulary V) in a chunk of `fused_scores`, by device. On a CPU it is
128 MiB in float32, or 220 rows at V = 151,936: half the rows took a tenth more time, and twice the
rows saved none. A GPU waits for each kernel launch, so its chunks have 883 rows (chosen by its
kernels' shapes, not measured on a GPU)."""

MAX_WHOLE_LOGITS = 2**26
"""Largest number of logits of a micro-batch computed as a whole (256 MiB in float32). Above it,
chunks bound the memory, for one more product with the output layer (docs/objectives.md)."""
