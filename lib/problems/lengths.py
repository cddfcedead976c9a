"""Lengths in tokens: what fits, and how long a completion may get.

A prompt may be as long as the percentile `prepare.lengths.prompt_percentile` of all prompts, and
prompt and completion together as long as `model.max_seq_length`. Both are counted with the
tokenizer that trains, the prompt as the prompt format renders it, the completion with its EOS.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path

from tokenizers import Tokenizer

from lib.artifacts import read_json
from lib.artifacts.problems import Problem
from lib.errors import UserError
from lib.params.data import LengthSettings
from lib.problems.store import Drops, ProblemTable, keep
from lib.prompts import PromptFormat, prompt_text

CountTokens = Callable[[Sequence[str]], list[int]]
"""Tokens of each text, no special tokens added."""


def token_counter(checkpoint: Path) -> CountTokens:
    """Counts with the `tokenizer.json` of a checkpoint, without torch or transformers."""
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def count(texts: Sequence[str]) -> list[int]:
        encoded = tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [len(encoding) for encoding in encoded]

    return count


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rendering:
    """How problems become the text that is counted.

    Attributes:
        prompt_format: renders prompts and targets.
        system: system prompt, '' for none.
        bos_token: '' for a tokenizer that has none.
        eos_token: ends every completion.
    """

    prompt_format: PromptFormat
    system: str
    bos_token: str
    eos_token: str

    def prompt(self, problem: Problem) -> str:
        return prompt_text(
            self.prompt_format, problem.problem, system=self.system, bos_token=self.bos_token
        )

    def completion(self, problem: Problem) -> str:
        target = self.prompt_format.target(solution=problem.solution, reference=problem.reference)
        return target + self.eos_token


def rendering_of(checkpoint: Path, *, prompt_format: PromptFormat, system: str) -> Rendering:
    """How problems are rendered for a checkpoint's tokenizer."""
    config = read_json(checkpoint / "tokenizer_config.json")

    def special(name: str) -> str:
        token = config.get(name) or ""
        return str(token["content"]) if isinstance(token, dict) else str(token)

    return Rendering(
        prompt_format=prompt_format,
        system=system,
        bos_token=special("bos_token"),
        eos_token=special("eos_token"),
    )


@dataclasses.dataclass(frozen=True)
class Lengths:
    """Tokens of each row: its prompt, and its completion (0 where completions are not counted)."""

    prompts: list[int]
    completions: list[int]


@dataclasses.dataclass(frozen=True)
class TokenLimits:
    """The most tokens that one set's prompts, and prompts and completions together, may have."""

    prompt: int
    total: int


def measure(
    table: ProblemTable, *, rendering: Rendering, count_tokens: CountTokens, completions: bool
) -> Lengths:
    """Count every row; `completions` is for data that SFT learns from."""
    lengths = Lengths([], [])
    for batch in table.batches():
        lengths.prompts.extend(count_tokens([rendering.prompt(problem) for problem in batch]))
        lengths.completions.extend(
            count_tokens([rendering.completion(problem) for problem in batch])
            if completions
            else [0] * len(batch)
        )
    return lengths


def token_limits(
    prompts: Sequence[int], lengths: LengthSettings, *, max_seq_length: int
) -> TokenLimits:
    """The longest prompt, and prompt with completion, that params allow.

    Raises:
        UserError: that percentile of the prompts leaves no room for a completion.
    """
    longest = percentile(prompts, lengths.prompt_percentile)
    if longest >= max_seq_length:
        raise UserError(
            f"model.max_seq_length={max_seq_length}: {lengths.prompt_percentile:g} % of the "
            f"prompts need up to {longest} tokens, which leaves none for a completion; raise it, "
            "or lower prepare.lengths.prompt_percentile"
        )
    return TokenLimits(
        prompt=longest,
        total=min(max_seq_length, lengths.max_tokens or max_seq_length),
    )


def percentile(values: Sequence[int], percent: float) -> int:
    """The smallest of `values` that at least `percent` % of them do not exceed (nearest rank)."""
    if not values:
        return 0
    rank = max(1, math.ceil(len(values) * percent / 100))
    return sorted(values)[rank - 1]


def drop_too_long(
    table: ProblemTable, lengths: Lengths, limits: TokenLimits, *, drops: Drops
) -> ProblemTable:
    """Keep the rows within all limits; each other row is counted under the first it exceeds."""

    def too_long(index: int, _: Problem) -> tuple[str, str] | None:
        prompt, completion = lengths.prompts[index], lengths.completions[index]
        if prompt > limits.prompt:
            return "prompt_too_long", f"{prompt} prompt tokens; at most {limits.prompt}"
        if prompt + completion > limits.total:
            return "too_long", f"{prompt + completion} tokens; at most {limits.total}"
        return None

    return keep(table, too_long, drops=drops)
