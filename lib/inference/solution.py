"""How a completion is drawn, and what is read from it."""

import dataclasses
from typing import Literal

from lib.prompts import PromptFormat
from lib.verifier.extract import extract_answer

Finish = Literal["eos", "stop", "length"]
"""What ended a completion: the model, a stop string of its format, or the limit on tokens."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decoding:
    """How completions are drawn; top-p and top-k are those of the model's generation config.

    Attributes:
        max_new_tokens: longest completion; what the model's positions leave, where that is less.
        temperature: softmax temperature; 0 is greedy decoding.
        seed: of the draws; None draws anew each time.

    Raises:
        ValueError: no token allowed, or a negative temperature.
    """

    max_new_tokens: int = 200
    temperature: float = 0.9
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be at least 1, got {self.max_new_tokens}")
        if not self.temperature >= 0:
            raise ValueError(f"temperature must be at least 0, got {self.temperature}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Solution:
    """One question answered.

    Attributes:
        question: as asked.
        prompt: what the model was given, as its chat template renders it.
        completion: what it said, without special tokens, a stop string included.
        reasoning: the working, None where the format's marks for it are missing or unknown.
        answer: what the verifier would grade, None where there is none.
        finish: what ended the completion.
        num_tokens: tokens generated, the end-of-sequence token included.
    """

    question: str
    prompt: str
    completion: str
    reasoning: str | None
    answer: str | None
    finish: Finish
    num_tokens: int


def read_solution(
    completion: str,
    *,
    question: str,
    prompt: str,
    prompt_format: PromptFormat | None,
    finish: Finish,
    num_tokens: int,
) -> Solution:
    """Find working and answer in a completion, as grading does."""
    return Solution(
        question=question,
        prompt=prompt,
        completion=completion,
        reasoning=prompt_format.parse(completion).reasoning if prompt_format else None,
        answer=extract_answer(completion, prompt_format=prompt_format),
        finish=finish,
        num_tokens=num_tokens,
    )


def up_to_stop(text: str, stop_strings: tuple[str, ...]) -> tuple[str, bool]:
    """`text` to the end of its first stop string, and whether it has one.

    The token that completes a stop string may hold more characters ("</answer>\\n"): they go.
    """
    ends = [text.find(stop) + len(stop) for stop in stop_strings if stop in text]
    return (text[: min(ends)], True) if ends else (text, False)
