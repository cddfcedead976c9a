"""Select a set's problems by length, difficulty and content hash.

Prompts are limited to the percentile `prepare.lengths.prompt_percentile` of all prompts, prompt and
completion together to `model.max_seq_length`. Training's tokenizer counts both: the prompt as
rendered by the prompt format, the completion with its EOS.

`./reckon difficulty` measures pass rates: k completions of a checkpoint per problem. They are kept
under data/raw by content hash, so that the DAG has no cycle: a checkpoint influences its own
training data only through a file that somebody wrote on purpose.

The split depends on a problem's words only: added rows move no other row, and the same problem is
on the same side (training or validation) in two sets. A draw takes the smallest hashes of seed and
words: an added row may take another one's place.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from tokenizers import Tokenizer

from lib.artifacts import read_records, write_jsonl
from lib.artifacts.problems import Problem, excerpt
from lib.core.errors import UserError
from lib.params.data import Difficulty, Ingredient, LengthSettings
from lib.problems.filters import digest
from lib.problems.mixture import mixture_counts
from lib.problems.store import ProblemTable, join
from lib.prompts import PromptFormat, special_tokens
from lib.prompts.formats import conversation
from lib.prompts.targets import Target, render_target
from lib.prompts.template import bounded_rendering, render


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenCounter:
    """Counts the tokens of problems as training renders them.

    Attributes:
        count: counts the tokens of each text, without added special tokens.
        prompt_format: renders prompts and targets.
        system: system prompt, '' for none.
        bos_token: '' for a tokenizer that has none.
        eos_token: ends every completion.
        controls: the tokenizer's control tokens, as text.
        template: the chat template saved with the tokenizer.
    """

    count: Callable[[Sequence[str]], list[int]]
    prompt_format: PromptFormat
    system: str
    bos_token: str
    eos_token: str
    template: str
    controls: tuple[str, ...] = ()

    def fault(self, problem: Problem, target: Target | None) -> tuple[str, str] | None:
        """Return reason and detail if training cannot use a problem, or its target; None if it can.

        A control token, or a tag of the format, would be encoded as that token, and not as text.
        """
        texts = {"problem": problem.problem, "solution": target.text if target else ""}
        for name, text in texts.items():
            marks = self.prompt_format.marks if name == "problem" else ()
            for token in (*self.controls, *marks):
                if token in text:
                    return "control_token", f"the {name} holds `{token}`, a token of its own"
        return ("target_not_in_format", target.fault) if target and target.fault else None

    def prompts(self, problems: Sequence[Problem]) -> list[int]:
        with bounded_rendering("prompt.layout", len(problems)):
            texts = [
                render(
                    conversation(each.problem, system=self.system),
                    template=self.template,
                    bos_token=self.bos_token,
                    eos_token=self.eos_token,
                    add_generation_prompt=True,
                )
                for each in problems
            ]
        return self.count(texts)

    def completions(self, problems: Sequence[Problem]) -> list[int]:
        """Count the tokens of each SFT completion, EOS included."""
        return self.count(
            [render_target(each, self.prompt_format).text + self.eos_token for each in problems]
        )


def token_counter(checkpoint: Path, *, prompt_format: PromptFormat, system: str) -> TokenCounter:
    """Return a counter with the `tokenizer.json` of a checkpoint, without torch or transformers.

    Args:
        system: system prompt, '' for none.
    """
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    # tokenizer.json may store truncation and padding, which would change the counts.
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def count(texts: Sequence[str]) -> list[int]:
        encoded = tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [len(encoding) for encoding in encoded]

    # A format's tags are tokens of a tokenizer that is trained here: in a target, they belong.
    added = tokenizer.get_added_tokens_decoder().values()
    controls = {token.content for token in added if token.special} - set(prompt_format.marks)
    # `special_tokens` returns bos_token and eos_token.
    return TokenCounter(
        count=count,
        prompt_format=prompt_format,
        system=system,
        template=(checkpoint / "chat_template.jinja").read_text("utf-8"),
        controls=tuple(sorted(controls - {""})),
        **special_tokens(checkpoint),
    )


def drop_controls(
    name: str, table: ProblemTable, counter: TokenCounter, *, targets: bool, drops_rows: bool
) -> ProblemTable:
    """Drop problems that hold control tokens or tags, and those whose target is not in its format.

    Args:
        name: the set's name, for errors.
        targets: True for SFT's rows.
        drops_rows: False raises at the first such row.

    Raises:
        UserError: there is such a row, unless `drops_rows`.
    """

    def check(_: int, problem: Problem) -> tuple[str, str] | None:
        target = render_target(problem, counter.prompt_format) if targets else None
        fault = counter.fault(problem, target)
        if fault and not drops_rows:
            raise UserError(
                f"{name}: problem {problem.id}, {excerpt(problem.problem, 60)!r}: {fault[1]}; mend "
                "the row, or set `prepare.bad_rows: drop` to leave such rows out and count them"
            )
        if target and target.is_converted and not fault:
            table.drops.changed["target"] += 1
        return fault

    return table.keep(check)


def drop_too_long(
    name: str,
    table: ProblemTable,
    prompt_tokens: Sequence[int],
    counter: TokenCounter,
    settings: LengthSettings,
    *,
    max_seq_length: int,
    completions: bool,
) -> tuple[ProblemTable, dict[str, int]]:
    """Drop problems with a prompt that is too long, or with too many tokens in total.

    Args:
        name: the set's name, for errors.
        prompt_tokens: [N] tokens of each row's prompt.
        counter: counts tokens as training renders the problems.
        settings: `prompt_percentile` of the prompts' lengths is the limit on prompts. `max_tokens`
            limits prompt and completion together, besides `max_seq_length`; 0 is no limit.
        completions: True for SFT's rows: the total includes the worked solution.

    Returns:
        The remaining problems, and the limits in tokens: {"prompt": …, "total": …}.

    Raises:
        UserError: the limit on prompts leaves no token for a completion.
    """
    # [N] tokens of each completion. GRPO generates its completions, so they count 0 here.
    completion_tokens = [0] * len(table)
    if completions:
        completion_tokens = [n for batch in table.batches() for n in counter.completions(batch)]
    # `inverted_cdf` returns the length of an actual prompt and does not interpolate.
    max_prompt = int(
        np.percentile(prompt_tokens, settings.prompt_percentile, method="inverted_cdf")
    )
    # + 1: GRPO leaves one token of max_seq_length unused (`grpo_setup` says why). So even a prompt
    # of max_seq_length - 1 tokens leaves none for a completion.
    if max_prompt + 1 >= max_seq_length:
        raise UserError(
            f"{name}: {settings.prompt_percentile:g} % of the prompts need up to {max_prompt} "
            f"tokens, which leaves none for a completion in model.max_seq_length={max_seq_length}; "
            "raise it, or lower prepare.lengths.prompt_percentile"
        )
    # `max_tokens` is 0 for no limit of its own.
    max_total = min(max_seq_length, settings.max_tokens or max_seq_length)

    faults = {}
    for index, lengths in enumerate(zip(prompt_tokens, completion_tokens, strict=True)):
        prompt, total = lengths[0], sum(lengths)
        if prompt > max_prompt:
            faults[index] = "prompt_too_long", f"{prompt} prompt tokens; at most {max_prompt}"
        elif total > max_total:
            faults[index] = "too_long", f"{total} tokens; at most {max_total}"
    return table.without(faults), {"prompt": max_prompt, "total": max_total}


@dataclasses.dataclass(frozen=True)
class PassRate:
    """A checkpoint's success on a problem: `num_correct` of `num_completions`."""

    num_correct: int
    num_completions: int

    @property
    def value(self) -> float:
        return self.num_correct / self.num_completions


def write_pass_rates(path: Path, rates: Mapping[str, PassRate]) -> None:
    """Write one JSON object per problem, in the order of the content hashes."""
    write_jsonl(path, [{"id": key, **dataclasses.asdict(rates[key])} for key in sorted(rates)])


def read_pass_rates(path: Path) -> dict[str, PassRate]:
    """Read a file written by `write_pass_rates`: problem id → pass rate.

    A line: {"id": "0123456789abcdef", "num_correct": 3, "num_completions": 8}

    Raises:
        UserError: the file is missing, or a line is no pass rate.
    """
    if not path.is_file():
        raise UserError(
            f"prepare.grpo.difficulty.file: {path} is missing; `./reckon difficulty` writes it"
        )

    def parse(row: Any) -> tuple[str, PassRate]:
        rate = PassRate(int(row["num_correct"]), int(row["num_completions"]))
        # The file is under data/raw, where it may be edited by hand.
        if not 0 <= rate.num_correct <= rate.num_completions or not rate.num_completions:
            raise ValueError(f"{rate.num_correct} of {rate.num_completions}")
        return str(row["id"]), rate

    remedy = "`./reckon difficulty` writes this file"
    return dict(read_records(path, parse, what="a pass rate", remedy=remedy))


def keep_band(table: ProblemTable, rates: Mapping[str, PassRate], band: Difficulty) -> ProblemTable:
    """Keep problems with a pass rate from `band.lowest` to `band.highest`; drop all others.

    Args:
        rates: problem id → pass rate; problems without an entry are dropped too.
    """

    def outside(_: int, problem: Problem) -> tuple[str, str] | None:
        rate = rates.get(problem.id)
        if rate is None:
            return "no_pass_rate", "not in the file"
        if band.lowest <= rate.value <= band.highest:
            return None
        return "pass_rate_outside_band", f"{rate.num_correct} of {rate.num_completions} right"

    return table.keep(outside)


def easy_to_hard(table: ProblemTable, rates: Mapping[str, PassRate]) -> ProblemTable:
    """Sort by falling pass rate; equal problems, and those without a rate, keep their order."""
    # Negated rates are at most 0, so that problems without a rate, at 1, come last.
    ranks = [-rates[key].value if key in rates else 1.0 for key in table.column("id")]
    return table.select(sorted(range(len(ranks)), key=ranks.__getitem__))


def position(problem_id: str, *, salt: str) -> float:
    """Hash `problem_id` to a number in [0, 1), uniform over problems, independent for each salt."""
    return digest(f"{salt}:{problem_id}") / 2**64


def split(table: ProblemTable, *, share: float) -> tuple[ProblemTable, ProblemTable]:
    """Split into (training, held back), with about `share` of the problems held back.

    A larger share holds back the same problems and some more.
    """
    training: list[int] = []
    held_back: list[int] = []
    for index, problem_id in enumerate(table.column("id")):
        # A number in [0, 1) from the content hash. `draw` has another salt, so that the two choices
        # are independent.
        is_held_back = position(problem_id, salt="validation") < share
        (held_back if is_held_back else training).append(index)
    return table.select(training), table.select(held_back)


def mix(
    table: ProblemTable,
    ingredients: Sequence[Ingredient],
    *,
    limit: int | Literal["all"],
    seed: int,
) -> ProblemTable:
    """Draw rows of each source in the ratio of the weights, and join them in the sources' order.

    Rows that are not drawn are counted as dropped, with the reason `not_drawn`.

    Args:
        table: problems of all sources.
        ingredients: the sources in params, with their weights.
        limit: total number of rows; "all" for no limit.
        seed: seed of the draw.
    """
    # The indices of each source's rows; the column `source` holds its place in `ingredients`.
    rows_by_source: list[list[int]] = [[] for _ in ingredients]
    for index, source in enumerate(table.column("source")):
        rows_by_source[source].append(index)
    weights = [ingredient.weight for ingredient in ingredients]
    counts = mixture_counts([len(rows) for rows in rows_by_source], weights, limit=limit)
    mixed = join(
        [
            draw(table.select(rows), count, seed=seed)
            for rows, count in zip(rows_by_source, counts, strict=True)
        ]
    )
    table.drops.count("not_drawn", len(table) - len(mixed))
    return mixed


def draw(table: ProblemTable, count: int, *, seed: int) -> ProblemTable:
    """Select `count` pseudo-random problems by content hash, kept in the table's order.

    A smaller draw is a subset of a larger one.
    """
    # A number in [0, 1) for each row, from its content hash; the smallest ones are drawn.
    hashes = [position(problem_id, salt=f"draw:{seed}") for problem_id in table.column("id")]
    selected = sorted(range(len(hashes)), key=hashes.__getitem__)[:count]
    # Sorted back into the table's order, since a draw does not shuffle.
    return table.select(sorted(selected))
