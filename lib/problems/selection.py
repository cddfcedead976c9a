"""Which of the clean problems a set gets: by length, difficulty and content hash.

A prompt may be as long as the percentile `prepare.lengths.prompt_percentile` of all prompts, and
prompt and completion together as long as `model.max_seq_length`. Both are counted with the
tokenizer that trains, the prompt as the prompt format renders it, the completion with its EOS.

Pass rates are measured by `make difficulty`: k completions of a checkpoint for each problem. They
are kept under data/raw, keyed by the problems' content hash, so that the DAG has no circle: what a
checkpoint can do decides its own data only through a file that somebody chose to write.

Which side of training and validation a problem is on, and whether it is drawn, depends on its words
only: adding rows moves none of the others, and the same problem in two sets is on the same side in
both.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from tokenizers import Tokenizer

from lib.artifacts import read_records, write_jsonl
from lib.artifacts.problems import Problem
from lib.core.errors import UserError
from lib.params.data import Difficulty, Ingredient, LengthSettings
from lib.problems.filters import digest
from lib.problems.store import ProblemTable, batches, join
from lib.prompts import PromptFormat, prompt_text, special_tokens
from lib.prompts.formats import target_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenCounter:
    """Counts what problems become when a model is trained on them.

    Attributes:
        count: tokens of each text, no special tokens added.
        prompt_format: renders prompts and targets.
        system: system prompt, '' for none.
        bos_token: '' for a tokenizer that has none.
        eos_token: ends every completion.
    """

    count: Callable[[Sequence[str]], list[int]]
    prompt_format: PromptFormat
    system: str
    bos_token: str
    eos_token: str

    def prompts(self, problems: Sequence[Problem]) -> list[int]:
        """Tokens of each prompt."""
        bos, system = self.bos_token, self.system
        return self.count(
            [
                prompt_text(self.prompt_format, each.problem, system=system, bos_token=bos)
                for each in problems
            ]
        )

    def completions(self, problems: Sequence[Problem]) -> list[int]:
        """Tokens of each completion that SFT learns."""
        return self.count(
            [target_of(each, self.prompt_format) + self.eos_token for each in problems]
        )


def token_counter(checkpoint: Path, *, prompt_format: PromptFormat, system: str) -> TokenCounter:
    """Counts with the `tokenizer.json` of a checkpoint, without torch or transformers."""
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def count(texts: Sequence[str]) -> list[int]:
        encoded = tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [len(encoding) for encoding in encoded]

    return TokenCounter(
        count=count, prompt_format=prompt_format, system=system, **special_tokens(checkpoint)
    )


def drop_too_long(
    name: str,
    table: ProblemTable,
    counter: TokenCounter,
    settings: LengthSettings,
    *,
    max_seq_length: int,
    completions: bool,
) -> tuple[ProblemTable, dict[str, int]]:
    """The rows within all limits, each other row counted under the first it exceeds; and the most
    tokens that a prompt, and prompt and completion together (`total`), may have.

    Args:
        name: the set's, for errors.
        completions: whether SFT learns from the rows: their solutions have to fit too.

    Raises:
        UserError: that percentile of the prompts leaves no room for a completion.
    """
    prompts: list[int] = []
    answers: list[int] = []
    for batch in batches(table):
        prompts += counter.prompts(batch)
        answers += counter.completions(batch) if completions else [0] * len(batch)
    # The nearest rank: a length that occurs.
    longest = int(np.percentile(prompts, settings.prompt_percentile, method="inverted_cdf"))
    if longest >= max_seq_length:
        raise UserError(
            f"{name}: {settings.prompt_percentile:g} % of the prompts need up to {longest} tokens, "
            f"which leaves none for a completion in model.max_seq_length={max_seq_length}; raise "
            "it, or lower prepare.lengths.prompt_percentile"
        )
    most = min(max_seq_length, settings.max_tokens or max_seq_length)

    def too_long(index: int, _: Problem) -> tuple[str, str] | None:
        prompt, total = prompts[index], prompts[index] + answers[index]
        if prompt > longest:
            return "prompt_too_long", f"{prompt} prompt tokens; at most {longest}"
        return ("too_long", f"{total} tokens; at most {most}") if total > most else None

    return table.keep(too_long), {"prompt": longest, "total": most}


@dataclasses.dataclass(frozen=True)
class PassRate:
    """How often a checkpoint solves a problem: `num_correct` of `num_completions`."""

    num_correct: int
    num_completions: int

    @property
    def value(self) -> float:
        return self.num_correct / self.num_completions


def write_pass_rates(path: Path, rates: Mapping[str, PassRate]) -> None:
    """Write one JSON object a line, by content hash."""
    write_jsonl(path, [{"id": key, **dataclasses.asdict(rates[key])} for key in sorted(rates)])


def read_pass_rates(path: Path) -> dict[str, PassRate]:
    """Read what `write_pass_rates` wrote.

    Raises:
        UserError: the file is missing or a line is no pass rate.
    """
    if not path.is_file():
        raise UserError(
            f"prepare.grpo.difficulty.file: {path} is missing; `make difficulty` writes it"
        )

    def parse(row: Any) -> tuple[str, PassRate]:
        rate = PassRate(int(row["num_correct"]), int(row["num_completions"]))
        if not 0 <= rate.num_correct <= rate.num_completions or not rate.num_completions:
            raise ValueError(f"{rate.num_correct} of {rate.num_completions}")
        return str(row["id"]), rate

    remedy = "`make difficulty` writes this file"
    return dict(read_records(path, parse, what="a pass rate", remedy=remedy))


def keep_band(table: ProblemTable, rates: Mapping[str, PassRate], band: Difficulty) -> ProblemTable:
    """Keep problems whose pass rate is in the band, ends included; one without a rate goes too."""

    def outside(_: int, problem: Problem) -> tuple[str, str] | None:
        rate = rates.get(problem.id)
        if rate is None:
            return "no_pass_rate", "not in the file"
        if band.lowest <= rate.value <= band.highest:
            return None
        return "pass_rate_outside_band", f"{rate.num_correct} of {rate.num_completions} right"

    return table.keep(outside)


def easy_to_hard(table: ProblemTable, rates: Mapping[str, PassRate]) -> ProblemTable:
    """Order by falling pass rate; problems alike, or without a rate, stay in the order they had."""
    ranks = [-rates[key].value if key in rates else 1.0 for key in table.column("id")]
    return table.select(sorted(range(len(ranks)), key=ranks.__getitem__))


def position(problem_id: str, *, salt: str) -> float:
    """A place in [0, 1) that `problem_id` has for this purpose; even over all problems."""
    return digest(f"{salt}:{problem_id}") / 2**64


def split(table: ProblemTable, *, share: float) -> tuple[ProblemTable, ProblemTable]:
    """What is trained on, and the `share` that is held back; a larger share only adds to that."""
    sides: dict[bool, list[int]] = {False: [], True: []}
    for index, problem_id in enumerate(table.column("id")):
        sides[position(problem_id, salt="validation") < share].append(index)
    return table.select(sides[False]), table.select(sides[True])


def mix(
    table: ProblemTable,
    ingredients: Sequence[Ingredient],
    *,
    limit: int | Literal["all"],
    seed: int,
) -> ProblemTable:
    """The rows to take of each source, source by source; what stays is counted as `not_drawn`."""
    rows_of: list[list[int]] = [[] for _ in ingredients]
    for index, source in enumerate(table.column("source")):
        rows_of[source].append(index)
    weights = [ingredient.weight for ingredient in ingredients]
    counts = mixture_counts([len(rows) for rows in rows_of], weights, limit=limit)
    mixed = join(
        [
            draw(table.select(rows), count, seed=seed)
            for rows, count in zip(rows_of, counts, strict=True)
        ]
    )
    table.drops.count("not_drawn", len(table) - len(mixed))
    return mixed


def mixture_counts(
    available: Sequence[int],
    weights: Sequence[float | Literal["all"]],
    *,
    limit: int | Literal["all"],
) -> list[int]:
    """Rows to take of each source.

    Sources with a weight are taken in the ratio of their weights, none is used twice, and together
    they are as many as that allows. A source of weight "all" gives every row. A limit scales all of
    them down in proportion, to exactly that many rows: the largest remainders are rounded up.

    Args:
        available: rows of each source.
        weights: a number above 0, or "all", for each source.
        limit: rows in all; "all" for as many as there are.
    """
    pairs = list(zip(available, weights, strict=True))
    unit = min((count / weight for count, weight in pairs if weight != "all"), default=0.0)
    counts = [
        # 1e-9: a third of 300 must not become 99 by rounding.
        count if weight == "all" else min(count, math.floor(unit * weight + 1e-9))
        for count, weight in pairs
    ]
    total = sum(counts)
    if limit == "all" or limit >= total:
        return counts
    scaled = [count * limit // total for count in counts]
    remainders = sorted(
        range(len(counts)), key=lambda index: (-(counts[index] * limit % total), index)
    )
    for index in remainders[: limit - sum(scaled)]:
        scaled[index] += 1
    return scaled


def draw(table: ProblemTable, count: int, *, seed: int) -> ProblemTable:
    """`count` of the problems, selected by content hash, in the order they were in.

    A smaller count takes a part of what a larger one takes.
    """
    places = [position(problem_id, salt=f"draw:{seed}") for problem_id in table.column("id")]
    nearest = sorted(range(len(places)), key=places.__getitem__)[:count]
    return table.select(sorted(nearest))
