"""Lengths in tokens: what fits, and how long a completion may get.

A prompt may be as long as the given percentile of all prompts. What `max_seq_length` leaves beyond
that is the longest completion allowed. Both are counted with the tokenizer that trains, the prompt
as the prompt format renders it, the completion with its EOS.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence

from lib.errors import UserError
from lib.problems.drops import Drops
from lib.problems.schema import Problem
from lib.problems.store import ProblemTable
from lib.prompts import PromptFormat, prompt_text

CountTokens = Callable[[Sequence[str]], list[int]]
"""Tokens of each text, no special tokens added."""

PROMPT_TOO_LONG = "prompt_too_long"
COMPLETION_TOO_LONG = "completion_too_long"
TOO_LONG = "too_long"


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class LengthRules:
    """What is too long.

    Attributes:
        max_seq_length: tokens of prompt and completion together that training holds.
        prompt_percentile: prompts longer than this percentile of all prompts go; 100 keeps all.
        max_tokens: hard cut on prompt and completion together (2048, 4096); 0 for none beside
            max_seq_length.
    """

    max_seq_length: int
    prompt_percentile: float
    max_tokens: int


@dataclasses.dataclass(frozen=True)
class Lengths:
    """Tokens of each row: its prompt, and its completion (0 where completions are not counted)."""

    prompts: list[int]
    completions: list[int]


@dataclasses.dataclass(frozen=True)
class Limits:
    """The limits that rules come to for one set of prompts, in tokens."""

    prompt: int
    completion: int
    total: int


def measure(
    table: ProblemTable, *, rendering: Rendering, count_tokens: CountTokens, completions: bool
) -> Lengths:
    """Count every row; `completions` is for data that SFT learns from."""
    lengths = Lengths([], [])
    for batch in table.batches():
        lengths.prompts.extend(count_tokens([rendering.prompt(problem) for problem in batch]))
        lengths.completions.extend(_completion_counts(batch, rendering, count_tokens, completions))
    return lengths


def _completion_counts(
    batch: Sequence[Problem], rendering: Rendering, count_tokens: CountTokens, completions: bool
) -> list[int]:
    if not completions:
        return [0] * len(batch)
    return count_tokens([rendering.completion(problem) for problem in batch])


def limits(prompts: Sequence[int], rules: LengthRules) -> Limits:
    """The longest prompt, completion and whole that `rules` allow these prompts.

    Raises:
        UserError: that percentile of the prompts leaves no room for a completion.
    """
    longest = percentile(prompts, rules.prompt_percentile)
    if longest >= rules.max_seq_length:
        raise UserError(
            f"model.max_seq_length={rules.max_seq_length}: {rules.prompt_percentile:g} % of the "
            f"prompts need up to {longest} tokens, which leaves none for a completion; raise it, "
            "or lower prepare.lengths.prompt_percentile"
        )
    total = rules.max_seq_length
    return Limits(
        prompt=longest,
        completion=total - longest,
        total=min(total, rules.max_tokens) if rules.max_tokens else total,
    )


def percentile(values: Sequence[int], percent: float) -> int:
    """The smallest of `values` that at least `percent` % of them do not exceed (nearest rank)."""
    if not values:
        return 0
    rank = max(1, math.ceil(len(values) * percent / 100))
    return sorted(values)[rank - 1]


def drop_too_long(
    table: ProblemTable, lengths: Lengths, allowed: Limits, *, drops: Drops
) -> ProblemTable:
    """Keep the rows within all limits; each other row is counted under the first it exceeds."""
    kept = []
    for index, over in enumerate(_excesses(lengths, allowed)):
        if over is None:
            kept.append(index)
        else:
            reason, detail = over
            row = table.rows[index]
            drops.add(reason, row=row["id"], detail=detail, text=row["problem"])
    return table if len(kept) == len(table) else table.select(kept)


def _excesses(lengths: Lengths, allowed: Limits) -> Iterator[tuple[str, str] | None]:
    for prompt, completion in zip(lengths.prompts, lengths.completions, strict=True):
        if prompt > allowed.prompt:
            yield PROMPT_TOO_LONG, f"{prompt} prompt tokens; at most {allowed.prompt}"
        elif completion > allowed.completion:
            yield (
                COMPLETION_TOO_LONG,
                f"{completion} completion tokens; at most {allowed.completion}",
            )
        elif prompt + completion > allowed.total:
            yield TOO_LONG, f"{prompt + completion} tokens; at most {allowed.total}"
        else:
            yield None
