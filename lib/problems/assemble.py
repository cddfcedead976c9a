"""From sources to training sets, in two steps with the tokenizer between them.

`gather` reads a set's sources and drops what is bad, double, a leak or not wanted; where the
tokenizer is trained here, it is trained on what that leaves. `finish` cuts by length and
difficulty, splits, mixes and draws. What each step drops is counted in the set's `Drops`.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from lib.errors import UserError
from lib.problems.adapters import INSTRUCTION
from lib.problems.answer_filters import keep_correct, keep_numeric
from lib.problems.decontaminate import BenchmarkIndex, Overlap, decontaminate
from lib.problems.difficulty import PassRate, easy_to_hard, keep_band
from lib.problems.drops import Drops
from lib.problems.duplicates import drop_exact_duplicates, drop_near_duplicates
from lib.problems.lengths import (
    CountTokens,
    LengthRules,
    Limits,
    Rendering,
    drop_too_long,
    limits,
    measure,
)
from lib.problems.mixture import Limit, Weight, draw, mixture_counts
from lib.problems.rows import RawRow, RowFault, fail
from lib.problems.schema import Problem
from lib.problems.splits import in_validation
from lib.problems.store import ProblemTable, join, write_table
from lib.verifier import reference_problem

NOT_DRAWN = "not_drawn"

Rows = Iterable[tuple[RawRow, Problem | RowFault]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ingredient:
    """One source of a set.

    Attributes:
        label: what messages call it.
        rows: reads it.
        weight: its part in the mixture, see `mixture_counts`.
    """

    label: str
    rows: Callable[[], Rows]
    weight: Weight = "all"


@dataclasses.dataclass(frozen=True, kw_only=True)
class GatherRules:
    """What a set keeps before lengths are known.

    Attributes:
        bad_rows: "error" stops at the first bad row, "drop" leaves it out and counts it.
        needs_solution: rows without a worked solution are bad.
        needs_reference: rows without a reference that the verifier can read are bad.
        near_duplicate_similarity: see `drop_near_duplicates`; 1 for exact duplicates alone.
        numeric_only: references that are no number go.
        correct_only: workings that do not come to the reference go.
    """

    bad_rows: Literal["error", "drop"]
    needs_solution: bool
    needs_reference: bool
    near_duplicate_similarity: float
    numeric_only: bool
    correct_only: bool


@dataclasses.dataclass
class Gathered:
    """A set before lengths: its problems, the weights of its sources, what went and why."""

    name: str
    table: ProblemTable
    weights: list[Weight]
    drops: Drops
    overlaps: dict[str, Overlap]


def read_set(
    name: str, ingredients: Sequence[Ingredient], rules: GatherRules, *, cache: Path, drops: Drops
) -> ProblemTable:
    """Read every source of a set into Arrow files under `cache`.

    Raises:
        UserError: a bad row where rules say "error", or a source without a single good row.
    """
    tables = []
    for number, ingredient in enumerate(ingredients):
        good = _good_rows(ingredient, rules, drops)
        table = write_table(cache / f"{name}-{number}.arrow", good, source=number)
        if not len(table):
            reasons = ", ".join(f"{count} {reason}" for reason, count in drops.counts.items())
            raise UserError(f"{name}: {ingredient.label} has no usable row ({reasons or 'empty'})")
        tables.append(table)
    return join(tables)


def _good_rows(ingredient: Ingredient, rules: GatherRules, drops: Drops) -> Iterator[Problem]:
    for row, read in ingredient.rows():
        drops.num_read += 1
        fault = read if isinstance(read, RowFault) else _unmet(read, rules)
        if isinstance(read, Problem) and fault is None:
            yield read
        elif fault is not None:
            # Columns that leave the answer open are a matter of params, not of one row.
            if rules.bad_rows == "error" or fault.reason == "undecidable":
                raise fail(row, fault)
            text = read.problem if isinstance(read, Problem) else ""
            drops.add(fault.reason, row=row.place, detail=str(fault), text=text)


def _unmet(problem: Problem, rules: GatherRules) -> RowFault | None:
    """What the set needs and this problem lacks."""
    if rules.needs_solution and not problem.solution:
        detail = "no worked solution; set `bare_answers: true` if answers alone are meant"
        return RowFault("missing_field", field="solution", detail=detail)
    if not rules.needs_reference or INSTRUCTION in problem.tags:
        return None
    unreadable = reference_problem(problem.reference)
    if unreadable:
        detail = f"{problem.reference!r} cannot be graded by: {unreadable}"
        return RowFault("unparseable_answer", field="reference", detail=detail)
    return None


def gather(
    name: str,
    ingredients: Sequence[Ingredient],
    rules: GatherRules,
    *,
    benchmarks: Sequence[BenchmarkIndex],
    cache: Path,
) -> Gathered:
    """Read a training set and drop duplicates, leaks, and what the rules exclude.

    Raises:
        UserError: see `read_set`, and where nothing is left.
    """
    drops = Drops()
    table = read_set(name, ingredients, rules, cache=cache, drops=drops)
    table = drop_exact_duplicates(table, drops=drops)
    if rules.near_duplicate_similarity < 1:
        table = drop_near_duplicates(table, similarity=rules.near_duplicate_similarity, drops=drops)
    cleaned = decontaminate(table, benchmarks, drops=drops)
    table = cleaned.table
    if rules.numeric_only:
        table = keep_numeric(table, drops=drops)
    if rules.correct_only:
        table = keep_correct(table, drops=drops)
    _refuse_empty(name, table, drops)
    weights = [ingredient.weight for ingredient in ingredients]
    return Gathered(name, table, weights, drops, cleaned.overlaps)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Difficulty:
    """Pass rates by content hash, the band to keep, and whether easy problems come first."""

    rates: Mapping[str, PassRate]
    lowest: float
    highest: float
    easy_first: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinishRules:
    """What a set keeps once lengths are known.

    Attributes:
        lengths: what is too long.
        count_completions: the worked solution has to fit too (SFT data).
        difficulty: None where no pass rates are given.
        validation_share: part held back by content hash.
        num_train_examples: rows to draw of what is left for training.
        seed: of that draw.
    """

    lengths: LengthRules
    count_completions: bool
    difficulty: Difficulty | None
    validation_share: float
    num_train_examples: Limit
    seed: int


@dataclasses.dataclass(frozen=True)
class TrainingSet:
    """A finished set: `train`, `validation`, the limits its lengths came to, and its record."""

    train: ProblemTable
    validation: ProblemTable
    limits: Limits
    gathered: Gathered

    def metrics(self) -> dict[str, Any]:
        """Numbers for the metrics file."""
        overlaps = self.gathered.overlaps.items()
        return {
            **self.gathered.drops.metrics(),
            "train": len(self.train),
            "validation": len(self.validation),
            "max_tokens": dataclasses.asdict(self.limits),
            "overlap": {name: overlap.metrics() for name, overlap in overlaps},
        }


def finish(
    gathered: Gathered, rules: FinishRules, *, rendering: Rendering, count_tokens: CountTokens
) -> TrainingSet:
    """Cut by length and difficulty, hold validation back, mix the sources and draw.

    Raises:
        UserError: the prompts leave no room for a completion, or nothing is left for training.
    """
    table, drops = gathered.table, gathered.drops
    counted = measure(
        table,
        rendering=rendering,
        count_tokens=count_tokens,
        completions=rules.count_completions,
    )
    allowed = limits(counted.prompts, rules.lengths)
    table = drop_too_long(table, counted, allowed, drops=drops)
    if rules.difficulty:
        table = keep_band(
            table,
            rules.difficulty.rates,
            lowest=rules.difficulty.lowest,
            highest=rules.difficulty.highest,
            drops=drops,
        )
    train, validation = _split(table, share=rules.validation_share)
    train = _mix(train, gathered.weights, rules, drops)
    if rules.difficulty and rules.difficulty.easy_first:
        train = easy_to_hard(train, rules.difficulty.rates)
    _refuse_empty(gathered.name, train, drops)
    return TrainingSet(train, validation, allowed, gathered)


def _split(table: ProblemTable, *, share: float) -> tuple[ProblemTable, ProblemTable]:
    sides: tuple[list[int], list[int]] = ([], [])
    for index, problem_id in enumerate(table.column("id")):
        sides[in_validation(problem_id, share=share)].append(index)
    return table.select(sides[0]), table.select(sides[1])


def _mix(
    table: ProblemTable, weights: Sequence[Weight], rules: FinishRules, drops: Drops
) -> ProblemTable:
    rows_of: list[list[int]] = [[] for _ in weights]
    for index, source in enumerate(table.sources()):
        rows_of[source].append(index)
    counts = mixture_counts(
        [len(rows) for rows in rows_of], weights, limit=rules.num_train_examples
    )
    drawn = [
        draw(table.select(rows), count, seed=rules.seed)
        for rows, count in zip(rows_of, counts, strict=True)
    ]
    mixed = join(drawn)
    if len(mixed) < len(table):
        drops.counts[NOT_DRAWN] = len(table) - len(mixed)
    return mixed


def _refuse_empty(name: str, table: ProblemTable, drops: Drops) -> None:
    if not len(table):
        reasons = ", ".join(f"{count} {reason}" for reason, count in drops.counts.items())
        raise UserError(f"{name}: no problem is left of {drops.num_read} ({reasons})")
