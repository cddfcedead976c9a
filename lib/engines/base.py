"""What an engine is: it turns prompts into completions, and says how each one ended."""

import dataclasses
from collections.abc import Sequence
from typing import Protocol

from lib.prompts import Message


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampling:
    """How completions are drawn.

    Attributes:
        num_completions: completions per prompt.
        max_new_tokens: longest completion.
        temperature: softmax temperature; 0 is greedy decoding.
        top_p: nucleus, 1 for the whole distribution.
        seed: of the draws; the same seed and batches give the same completions.
    """

    num_completions: int
    max_new_tokens: int
    temperature: float
    top_p: float = 1.0
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class Completion:
    """One completion.

    Attributes:
        text: decoded, without special tokens.
        token_ids: as generated, the end-of-sequence token included.
        truncated: ended by the length limit, not by the model.
    """

    text: str
    token_ids: tuple[int, ...]
    truncated: bool


class Engine(Protocol):
    """Generates; implementations differ in speed and rounding alone."""

    def generate(
        self, prompts: Sequence[list[Message]], sampling: Sampling
    ) -> list[list[Completion]]:
        """`sampling.num_completions` completions for each of the prompts, in their order."""
        ...
