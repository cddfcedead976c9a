"""From the `prepare` section of params to the sets of problems that the stages read.

The road of a set, top to bottom, with the tokenizer in its middle: `gathered_sets` reads a set's
sources and drops what is bad, double, a leak or not wanted; where the tokenizer is trained here, it
is trained on what that leaves. `finish_sets` cuts by length and difficulty, splits, mixes and
draws; `write_sets` writes. What each step drops is counted in the table's `Drops`.
"""

import dataclasses
import heapq
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

from lib.artifacts import replacing
from lib.artifacts.problems import INSTRUCTION, Problem, write_problems
from lib.errors import UserError
from lib.params.data import (
    GeneratorSource,
    GrpoData,
    HubSource,
    KnownSource,
    LimitedSource,
    PathSource,
    Prepare,
    SftData,
)
from lib.params.section import HELD_BACK
from lib.params.training import Validation
from lib.problems.difficulty import easy_to_hard, keep_band, read_pass_rates
from lib.problems.filters import (
    BenchmarkIndex,
    Overlap,
    decontaminate,
    drop_exact_duplicates,
    drop_near_duplicates,
    index_benchmark,
    not_correct,
    not_numeric,
)
from lib.problems.generated import synthetic_sets
from lib.problems.hub import hub_label
from lib.problems.known import AnySource
from lib.problems.lengths import TokenCounter, TokenLimits, drop_too_long
from lib.problems.rows import RawRow, RowFault, bad_row_error
from lib.problems.sources import Rows, read_source
from lib.problems.splits import draw, mix, split
from lib.problems.store import Drops, ProblemTable, join, scratch_folder, write_table
from lib.verifier import reference_problem

@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingSet:
    """One set on its road.

    Attributes:
        data: its section of params.
        train: its problems; all of them until `finish` splits and draws.
        validation: what is held back.
        limits: what its lengths came to; None before they are known.
        overlaps: with each benchmark, by name.
    """

    name: str
    data: SftData | GrpoData
    train: ProblemTable
    validation: ProblemTable
    overlaps: dict[str, Overlap]
    limits: TokenLimits | None = None

    def __post_init__(self) -> None:
        drops = self.train.drops
        if not len(self.train):
            raise UserError(f"{self.name}: no problem is left of {drops.num_read} ({drops})")

    def metrics(self) -> dict[str, Any]:
        """Numbers for the metrics file."""
        return {
            **self.train.drops.metrics(),
            "train": len(self.train),
            "validation": len(self.validation),
            "max_tokens": dataclasses.asdict(self.limits) if self.limits else {},
            "overlap": {name: vars(overlap) for name, overlap in self.overlaps.items()},
        }


@dataclasses.dataclass(frozen=True)
class ProblemSets:
    """All sets; the table of each counts what was dropped on the way."""

    sft: TrainingSet
    grpo: TrainingSet
    benchmarks: dict[str, ProblemTable]

    def validation(self) -> Iterator[Problem]:
        """What was held back of either training set, each problem once."""
        seen: set[str] = set()
        for problem in (*self.sft.validation, *self.grpo.validation):
            if problem.id not in seen:
                seen.add(problem.id)
                yield problem


@contextmanager
def gathered_sets(prepare: Prepare, *, seed: int, raw: Path) -> Iterator[ProblemSets]:
    """All sets, read and cleaned, in Arrow files that last as long as the block.

    Args:
        prepare: the section of params.
        seed: the generator's.
        raw: the folder that path sources have to be in.

    Raises:
        UserError: a source that cannot be read, a bad row where `bad_rows` is not `drop`, or a
            training set of which nothing is left.
    """
    generated = cache(lambda: synthetic_sets(prepare.synthetic, seed=seed))

    def read(source: AnySource) -> Rows:
        if not isinstance(source, GeneratorSource):
            yield from read_source(source, raw=raw)
            return
        for number, problem in enumerate(generated().named(source.generator), start=1):
            yield RawRow(_label(source), number, {}), problem

    with scratch_folder() as folder:
        read_tables = partial(read_set, prepare=prepare, read=read, folder=folder)
        # Benchmarks first: training sets are cleaned of them.
        benchmarks = {
            each.name: drop_exact_duplicates(read_tables(f"benchmark-{each.name}", [each.source]))
            for each in prepare.benchmarks
        }
        size = prepare.contamination_ngram
        indices = [
            index_benchmark(name, table.column("problem"), size=size)
            for name, table in benchmarks.items()
            if size
        ]
        training = {}
        for name, data in (("sft", prepare.sft), ("grpo", prepare.grpo)):
            table = read_tables(
                name,
                [ingredient.source for ingredient in data.sources],
                needs_solution=isinstance(data, SftData) and not data.bare_answers,
            )
            training[name] = clean(name, table, data, prepare=prepare, benchmarks=indices)
        yield ProblemSets(**training, benchmarks=benchmarks)


def _label(source: AnySource) -> str:
    match source:
        case GeneratorSource():
            return f"generator {source.generator}"
        case PathSource():
            return source.path
        case HubSource():
            return hub_label(source)
        case KnownSource():
            return source.known


def clean(
    name: str,
    table: ProblemTable,
    data: SftData | GrpoData,
    *,
    prepare: Prepare,
    benchmarks: Sequence[BenchmarkIndex],
) -> TrainingSet:
    """A training set without duplicates, leaks, and what params exclude."""
    table = drop_exact_duplicates(table)
    if prepare.near_duplicate_similarity < 1:
        table = drop_near_duplicates(table, similarity=prepare.near_duplicate_similarity)
    table, overlaps = decontaminate(table, benchmarks, size=prepare.contamination_ngram)
    if data.numeric_only:
        table = table.keep(not_numeric)
    if isinstance(data, SftData) and data.correct_only:
        table = table.keep(not_correct)
    nothing = table.select([])
    return TrainingSet(name=name, data=data, train=table, validation=nothing, overlaps=overlaps)


def read_set(
    name: str,
    sources: Sequence[AnySource],
    *,
    prepare: Prepare,
    read: Callable[[AnySource], Rows],
    folder: Path,
    needs_solution: bool = False,
) -> ProblemTable:
    """Read every source of a set into Arrow files under `folder`, which have to outlive the table.

    Args:
        needs_solution: rows without a worked solution are bad.

    Raises:
        UserError: a bad row where `bad_rows` is "error", or a source without a single good row.
    """
    drops = Drops()

    def good_rows(source: AnySource) -> Iterator[Problem]:
        for row, problem in read(source):
            drops.num_read += 1
            if isinstance(problem, RowFault):
                fault, text = problem, ""
            elif missing := _missing_part(problem, needs_solution=needs_solution):
                fault, text = missing, problem.problem
            else:
                yield problem
                continue
            # Columns that leave the answer open are a matter of params, not of one row.
            if prepare.bad_rows == "error" or fault.reason == "undecidable":
                raise bad_row_error(row, fault)
            drops.add(fault.reason, row=row.place, detail=str(fault), text=text)

    tables = []
    for number, source in enumerate(sources):
        file = folder / f"{name}-{number}.arrow"
        table = write_table(file, good_rows(source), drops, source=number)
        if not len(table):
            raise UserError(f"{name}: {_label(source)} has no usable row ({str(drops) or 'empty'})")
        if isinstance(source, LimitedSource) and source.limit != "all":
            # By content hash, whatever the seed: the same problems in every run.
            kept = draw(table, source.limit, seed=0)
            drops.count("over_limit", len(table) - len(kept))
            table = kept
        tables.append(table)
    return join(tables)


def _missing_part(problem: Problem, *, needs_solution: bool) -> RowFault | None:
    """The part that a set needs and this problem does not have."""
    if needs_solution and not problem.solution:
        detail = "no worked solution; set `bare_answers: true` if bare answers are meant"
        return RowFault("missing_field", field="solution", detail=detail)
    if INSTRUCTION in problem.tags:
        return None
    if unreadable := reference_problem(problem.reference):
        detail = f"{problem.reference!r} cannot be graded by: {unreadable}"
        return RowFault("unparseable_answer", field="reference", detail=detail)
    return None


def finish_sets(
    sets: ProblemSets, prepare: Prepare, *, counter: TokenCounter, max_seq_length: int, seed: int
) -> ProblemSets:
    """Cut by length and difficulty, hold validation back, mix and draw; see `finish`."""
    finish_set = partial(
        finish, prepare=prepare, counter=counter, max_seq_length=max_seq_length, seed=seed
    )
    sft, grpo = finish_set(sets.sft), finish_set(sets.grpo)
    # Where both sets give, the same problems are held back of both.
    if prepare.validation_share and "sft" not in prepare.validation_from:
        sft = _without(sft, grpo.validation)
    if prepare.validation_share and "grpo" not in prepare.validation_from:
        grpo = _without(grpo, sft.validation)
    return dataclasses.replace(sets, sft=sft, grpo=grpo)


def _without(training: TrainingSet, validation: ProblemTable) -> TrainingSet:
    """`training` without the problems that the other set holds back."""
    held_back = set(validation.column("id"))

    def reason(_: int, problem: Problem) -> tuple[str, str] | None:
        if problem.id not in held_back:
            return None
        return "in_validation", "held back of the other training set"

    return dataclasses.replace(training, train=training.train.keep(reason))


def finish(
    gathered: TrainingSet,
    *,
    prepare: Prepare,
    counter: TokenCounter,
    max_seq_length: int,
    seed: int,
) -> TrainingSet:
    """One set, cut, split, mixed and drawn.

    Args:
        counter: counts tokens as training renders the problems.
        max_seq_length: tokens of prompt and completion together that training holds.
        seed: of the draw.

    Raises:
        UserError: the prompts leave no room for a completion, or nothing is left for training.
    """
    data = gathered.data
    table, limits = drop_too_long(
        gathered.train,
        counter,
        prepare.lengths,
        max_seq_length=max_seq_length,
        completions=isinstance(data, SftData),
    )
    band = data.difficulty if isinstance(data, GrpoData) and data.difficulty.file else None
    rates = read_pass_rates(Path(band.file)) if band else {}
    if band:
        table = keep_band(table, rates, band)
    held_back = prepare.validation_share if gathered.name in prepare.validation_from else 0.0
    train, validation = split(table, share=held_back)
    train = mix(train, data.sources, limit=data.num_train_examples, seed=seed)
    if band and band.easy_first:
        train = easy_to_hard(train, rates)
    return dataclasses.replace(gathered, train=train, validation=validation, limits=limits)


def write_sets(sets: ProblemSets, folder: Path, *, validation: Validation) -> None:
    """Write `sft`, `grpo`, `validation` (held back), `benchmarks/<name>` and `validation/<name>`
    (what training is validated on), all as `.jsonl`, or nothing.

    Raises:
        UserError: a set of `validation.sets` has no problem.
    """
    with replacing(folder) as partial:
        for name in validation.sets:
            problems = sets.validation() if name == HELD_BACK else sets.benchmarks[name]
            few = heapq.nsmallest(validation.num_problems, problems, key=lambda each: each.id)
            if not few:
                raise UserError(f"validation.sets: `{name}` has no problem; name another set")
            write_problems(partial / "validation" / f"{name}.jsonl", few)
        write_problems(partial / "sft.jsonl", sets.sft.train)
        write_problems(partial / "grpo.jsonl", sets.grpo.train)
        write_problems(partial / "validation.jsonl", sets.validation())
        for name, problems in sets.benchmarks.items():
            write_problems(partial / "benchmarks" / f"{name}.jsonl", problems)


def set_metrics(sets: ProblemSets) -> dict[str, Any]:
    """Sizes, and for each set what was dropped, its limits in tokens, its overlap with each."""
    bare = sum(not solution for solution in sets.sft.train.column("solution"))
    return {
        "num_sft": len(sets.sft.train),
        "num_grpo": len(sets.grpo.train),
        "num_validation": sum(1 for _ in sets.validation()),
        "bare_answer_share": bare / len(sets.sft.train),
        **{f"num_{name}": len(problems) for name, problems in sets.benchmarks.items()},
        "sft": sets.sft.metrics(),
        "grpo": sets.grpo.metrics(),
        "benchmarks": {name: table.drops.metrics() for name, table in sets.benchmarks.items()},
    }


def summary_lines(sets: ProblemSets) -> Iterator[str]:
    """What was read, kept and dropped, and where fewer problems are left than params ask for."""
    for name, table in sets.benchmarks.items():
        yield f"{name}: {len(table)} problems; dropped: {str(table.drops) or 'none'}"
    for each in (sets.sft, sets.grpo):
        drops, requested = each.train.drops, each.data.num_train_examples
        yield (
            f"{each.name}: {drops.num_read} rows read, {len(each.train)} for training, "
            f"{len(each.validation)} for validation; dropped: {str(drops) or 'none'}"
        )
        if requested != "all" and len(each.train) < requested:
            yield (
                f"{each.name}: only {len(each.train)} problems are left of the {requested} that "
                f"prepare.{each.name}.num_train_examples asks for"
            )


def dropped_examples(sets: ProblemSets) -> dict[str, dict[str, list[dict[str, str]]]]:
    """A few of the rows that each set lost, by reason: for provenance."""
    tables = {"sft": sets.sft.train, "grpo": sets.grpo.train, **sets.benchmarks}
    return {name: table.drops.examples for name, table in tables.items() if table.drops.examples}
