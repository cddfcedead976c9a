"""What a model says to held-out prompts, and whether another one says the same.

P prompts, V vocabulary. Two logits are compared by their relative error |a - b| / |b| over all of
them: a number of the type's rounding, whatever the size of the model's logits.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lib.engines.base import Sampling, encode
from lib.engines.transformers import TransformersEngine
from lib.prompts import Message

BATCH = 16
"""Prompts at a time; both sides use the same, so that they round alike."""

SAME = 1e-5
"""Largest relative error of logits between equal weights of equal type."""

TOLERANCE = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
"""Largest relative error of logits that a type may cost, against float32."""


@dataclasses.dataclass(frozen=True)
class Said:
    """What a model says.

    Attributes:
        prompts: [P] each prompt as the tokenizer encodes it.
        completions: [P] each greedy completion as token ids, the end of sequence included.
        read: [P] completions that the logits are along; another model's say nothing of this one's
            once a token differs.
        logits: [P, 2, V] float32, of the first and the last token of each completion in `read`.
    """

    prompts: list[list[int]]
    completions: list[list[int]]
    read: list[list[int]]
    logits: torch.Tensor

    def save(self, path: Path) -> None:
        """Write it for another process."""
        torch.save(dataclasses.asdict(self), path)

    @classmethod
    def load(cls, path: Path) -> "Said":
        """Read what `save` wrote."""
        return cls(**torch.load(path, weights_only=True))


@dataclasses.dataclass(frozen=True)
class Difference:
    """How what one model says differs from what another one says.

    Attributes:
        num_prompts: prompts compared.
        same_prompts: whether the tokenizers encode the prompts alike.
        differing: indices of the prompts whose greedy completions differ.
        logit_error: relative error of the logits; infinite where their shapes differ.
    """

    num_prompts: int
    same_prompts: bool
    differing: list[int]
    logit_error: float

    def fault(self, *, tolerance: float, same_tokens: bool) -> str:
        """What is wrong in words, '' where all is well.

        Args:
            tolerance: largest error of the logits.
            same_tokens: whether completions must be the same; where weights are rounded, two
                tokens that are nearly as likely may change places.
        """
        if not self.same_prompts:
            return "its tokenizer encodes the prompts otherwise"
        if self.differing and same_tokens:
            return (
                f"{len(self.differing)} of {self.num_prompts} greedy completions differ from the "
                f"checkpoint's, the first at prompt {self.differing[0]}"
            )
        if not self.logit_error <= tolerance:
            return f"logits are off by {self.logit_error:.2g} (relative), at most {tolerance:g}"
        return ""


def listen(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    conversations: Sequence[list[Message]],
    *,
    max_new_tokens: int,
    stop_strings: Sequence[str],
    along: Sequence[list[int]] = (),
) -> Said:
    """Greedy completions of `model`, and its logits at the ends of each, or of `along`."""
    prompts = encode(tokenizer, conversations)
    engine = TransformersEngine(model, tokenizer, batch_size=BATCH)
    sampling = Sampling(
        num_completions=1,
        max_new_tokens=max_new_tokens,
        temperature=0.0,
        stop_strings=tuple(stop_strings),
    )
    completions = [list(found[0].token_ids) for found in engine.generate(prompts, sampling)]
    read = list(along) or completions
    model.eval()
    rows = [ends_of(model, *pair) for pair in zip(prompts, read, strict=True)]
    return Said(prompts=prompts, completions=completions, read=read, logits=torch.stack(rows))


def ends_of(model: PreTrainedModel, prompt: list[int], completion: list[int]) -> torch.Tensor:
    """[2, V] logits of a completion's first and last token."""
    read = torch.tensor([prompt + completion[:-1]], device=model.device)
    ends = torch.tensor([len(prompt) - 1, read.shape[1] - 1], device=model.device)
    with torch.inference_mode():
        logits: torch.Tensor = model(input_ids=read, logits_to_keep=ends).logits
    return logits[0].float().cpu()


def difference(found: Said, expected: Said) -> Difference:
    """Compare what was found with what was expected, prompt by prompt."""
    pairs = enumerate(zip(found.completions, expected.completions, strict=True))
    error = float("inf")
    if found.logits.shape == expected.logits.shape:
        error = float((found.logits - expected.logits).norm() / expected.logits.norm())
    return Difference(
        num_prompts=len(expected.prompts),
        same_prompts=found.prompts == expected.prompts,
        differing=[number for number, (left, right) in pairs if left != right],
        logit_error=error,
    )
