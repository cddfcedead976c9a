"""From the `prepare` section of params to the sets of problems that the stages read.

The road of a set, top to bottom, with the tokenizer in its middle: `gathered_sets` reads a set's
sources and drops what is bad, double, a leak or not wanted; where the tokenizer is trained here, it
is trained on what that leaves. `finish_sets` cuts by length and difficulty, splits, mixes and
draws; `write_sets` writes. What each step drops is counted in the table's `Drops`.
"""

import dataclasses
import heapq
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

from lib.artifacts import replacing
from lib.artifacts.problems import INSTRUCTION, Problem, write_problems
from lib.core.errors import UserError
from lib.params.data import AnySource, GeneratorSource, GrpoData, LimitedSource, Prepare, SftData
from lib.params.section import HELD_BACK
from lib.params.training import Validation
from lib.problems.filters import (
    decontaminate,
    drop_exact_duplicates,
    drop_near_duplicates,
    index_benchmark,
    not_correct,
    not_numeric,
)
from lib.problems.generated import synthetic_sets
from lib.problems.rows import RawRow, RowFault, bad_row_error
from lib.problems.selection import (
    TokenCounter,
    draw,
    drop_too_long,
    easy_to_hard,
    keep_band,
    mix,
    read_pass_rates,
    split,
)
from lib.problems.sources import Rows, read_source
from lib.problems.store import Drops, ProblemTable, join, scratch_folder, write_table
from lib.verifier import reference_problem


@dataclasses.dataclass(kw_only=True)
class TrainingSet:
    """One set on its road.

    Attributes:
        data: its section of params.
        train: its problems; all of them until `finish_sets` splits and draws.
        validation: what is held back.
        overlaps: with each benchmark, by name.
        limits: what its lengths came to; {} before they are known.
    """

    name: str
    data: SftData | GrpoData
    train: ProblemTable
    validation: ProblemTable
    overlaps: dict[str, dict[str, int]]
    limits: dict[str, int] = dataclasses.field(default_factory=dict)

    def refuse_empty(self) -> None:
        drops = self.train.drops
        if not len(self.train):
            raise UserError(f"{self.name}: no problem is left of {drops.num_read} ({drops})")

    def metrics(self) -> dict[str, Any]:
        """Numbers for the metrics file."""
        return {
            **self.train.drops.metrics(),
            "train": len(self.train),
            "validation": len(self.validation),
            "max_tokens": self.limits,
            "overlap": self.overlaps,
        }


@dataclasses.dataclass(frozen=True)
class ProblemSets:
    """All sets; the table of each counts what was dropped on the way."""

    training: tuple[TrainingSet, TrainingSet]
    """`sft`, `grpo`."""
    benchmarks: dict[str, ProblemTable]

    def validation(self) -> Iterator[Problem]:
        """What was held back of either training set, each problem once."""
        seen: set[str] = set()
        for problem in (problem for each in self.training for problem in each.validation):
            if problem.id not in seen:
                seen.add(problem.id)
                yield problem


@contextmanager
def gathered_sets(prepare: Prepare, *, seed: int, raw: Path) -> Iterator[ProblemSets]:
    """All sets, read and cleaned of duplicates, of leaks and of what params exclude, in Arrow files
    that last as long as the block.

    Args:
        prepare: the section of params.
        seed: the generator's.
        raw: the folder that path sources have to be in.

    Raises:
        UserError: a source that cannot be read or has no good row, a bad row where `bad_rows` is
            not `drop`, or a training set of which nothing is left.
    """
    generated = cache(lambda: synthetic_sets(prepare.synthetic, seed=seed))

    def read(source: AnySource) -> Rows:
        if not isinstance(source, GeneratorSource):
            yield from read_source(source, raw=raw)
            return
        for number, problem in enumerate(generated().named(source.generator), start=1):
            yield RawRow(f"generator {source.generator}", number, {}), problem

    with scratch_folder() as folder:

        def table_of(
            source: AnySource,
            drops: Drops,
            key: str,
            *,
            number: int = 0,
            bare_answers: bool = True,
            truths: Mapping[str, str] | None = None,
        ) -> ProblemTable:
            good = partial(good_rows, bare_answers=bare_answers, truths=truths)
            rows = good(read(source), drops, prepare.bad_rows)
            try:
                table = write_table(folder / f"{key}.arrow", rows, drops, source=number)
                if not len(table):
                    # Whatever is dropped: where all rows are bad, the first says what params lack.
                    list(good(read(source), Drops(), "error"))
                    raise UserError("has no row")
            except UserError as error:
                # The path is not enough: one file may be a source twice, with other columns.
                raise UserError(f"{key}: {error.message}") from error
            if not isinstance(source, LimitedSource) or source.limit == "all":
                return table
            # By content hash, whatever the seed: the same problems in every run.
            kept = draw(table, source.limit, seed=0)
            drops.count("over_limit", len(table) - len(kept))
            return kept

        # Benchmarks first: training sets are cleaned of them.
        benchmarks = {
            each.name: drop_exact_duplicates(
                table_of(each.source, Drops(), f"prepare.benchmarks ({each.name})")
            )
            for each in prepare.benchmarks
        }
        size = prepare.contamination_ngram
        indices = [
            index_benchmark(name, table.column("problem"), size=size)
            for name, table in benchmarks.items()
            if size
        ]
        truths = None
        for source in prepare.sft.truth_from:
            with_truth = table_of(source, Drops(), "prepare.sft.truth_from")
            truths = dict(zip(*map(with_truth.column, ("id", "reference")), strict=True))
        training = []
        for name, data in (("sft", prepare.sft), ("grpo", prepare.grpo)):
            drops, tables = Drops(), []
            for number, source in enumerate(entry.source for entry in data.sources):
                key = f"prepare.{name}.sources[{number}]"
                needs: dict[str, Any] = {}
                if isinstance(data, SftData):
                    needs = {"bare_answers": data.bare_answers, "truths": truths}
                tables.append(table_of(source, drops, key, number=number, **needs))
            table = drop_exact_duplicates(join(tables))
            if prepare.near_duplicate_similarity < 1:
                table = drop_near_duplicates(table, similarity=prepare.near_duplicate_similarity)
            table, overlaps = decontaminate(table, indices, size=size)
            if data.numeric_only:
                table = table.keep(not_numeric)
            if isinstance(data, SftData) and data.correct_only:
                table = table.keep(not_correct)
            training.append(
                TrainingSet(
                    name=name,
                    data=data,
                    train=table,
                    validation=table.select([]),
                    overlaps=overlaps,
                )
            )
            training[-1].refuse_empty()
        sft, grpo = training
        yield ProblemSets((sft, grpo), benchmarks)


def good_rows(
    rows: Rows,
    drops: Drops,
    bad_rows: str,
    *,
    bare_answers: bool = True,
    truths: Mapping[str, str] | None = None,
) -> Iterator[Problem]:
    """The problems of a source, its bad rows counted.

    Args:
        truths: references by problem id, in place of the rows' own.
        bare_answers: whether rows without a worked solution are good.

    Raises:
        UserError: a bad row where `bad_rows` is "error", or columns that params have to name.
    """
    for row, problem in rows:
        drops.num_read += 1
        if truths is not None and isinstance(problem, Problem):
            problem = dataclasses.replace(problem, reference=truths.get(problem.id, ""))
        if isinstance(problem, RowFault):
            fault, text = problem, ""
        elif missing := _missing_part(problem, bare_answers=bare_answers):
            fault, text = missing, problem.problem
        else:
            yield problem
            continue
        # Columns that leave the answer open are a matter of params, not of one row.
        if bad_rows == "error" or fault.reason == "undecidable":
            raise bad_row_error(row, fault)
        drops.add(fault.reason, row=row.place, detail=str(fault), text=text)


def _missing_part(problem: Problem, *, bare_answers: bool) -> RowFault | None:
    """The part that a set needs and this problem does not have."""
    if not (bare_answers or problem.solution):
        detail = "no worked solution; set `bare_answers: true` if bare answers are meant"
        return RowFault("missing_field", field="solution", detail=detail)
    if not problem.reference and INSTRUCTION not in problem.tags:
        detail = "no reference of its own; name a set that has it in `truth_from:`"
        return RowFault("missing_field", field="reference", detail=detail)
    if INSTRUCTION not in problem.tags and (unreadable := reference_problem(problem.reference)):
        detail = f"{problem.reference!r} cannot be graded by: {unreadable}"
        return RowFault("unparseable_answer", field="reference", detail=detail)
    return None


def tokenizer_problems(sets: ProblemSets) -> Iterator[Problem]:
    """What a tokenizer of one's own is trained on: SFT's problems, and GRPO's where not all are the
    generator's, whose words are the same in every set. Unseen words are a token per letter."""
    sft, grpo = sets.training
    yield from sft.train
    sources = [entry.source for each in sets.training for entry in each.data.sources]
    if not all(isinstance(source, GeneratorSource) for source in sources):
        yield from grpo.train


def finish_sets(
    sets: ProblemSets, prepare: Prepare, *, counter: TokenCounter, max_seq_length: int, seed: int
) -> None:
    """Cut the training sets by length and difficulty, hold validation back, mix and draw.

    Args:
        counter: counts tokens as training renders the problems.
        max_seq_length: tokens of prompt and completion together that training holds.
        seed: of the draw.

    Raises:
        UserError: the prompts leave no room for a completion, or nothing is left for training.
    """
    for each in sets.training:
        data = each.data
        table, each.limits = drop_too_long(
            each.name,
            each.train,
            counter,
            prepare.lengths,
            max_seq_length=max_seq_length,
            completions=isinstance(data, SftData),
        )
        band = data.difficulty if isinstance(data, GrpoData) and data.difficulty.file else None
        rates = read_pass_rates(Path(band.file)) if band else {}
        if band:
            table = keep_band(table, rates, band)
        share = prepare.validation_share if each.name in prepare.validation_from else 0.0
        table, each.validation = split(table, share=share)
        each.train = mix(table, data.sources, limit=data.num_train_examples, seed=seed)
        if band and band.easy_first:
            each.train = easy_to_hard(each.train, rates)
    # What one set holds back goes from the other; where both give, they hold back the same.
    held_back = {name for each in sets.training for name in each.validation.column("id")}

    def is_held_back(_: int, problem: Problem) -> tuple[str, str] | None:
        reason = ("in_validation", "held back of the other training set")
        return reason if problem.id in held_back else None

    for each in sets.training:
        each.train = each.train.keep(is_held_back)
        each.refuse_empty()


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
        for each in sets.training:
            write_problems(partial / f"{each.name}.jsonl", each.train)
        write_problems(partial / "validation.jsonl", sets.validation())
        for name, problems in sets.benchmarks.items():
            write_problems(partial / "benchmarks" / f"{name}.jsonl", problems)


def set_metrics(sets: ProblemSets) -> dict[str, Any]:
    """Sizes, and for each set what was dropped, its limits in tokens, its overlap with each."""
    sft = sets.training[0].train
    return {
        **{f"num_{each.name}": len(each.train) for each in sets.training},
        "num_validation": sum(1 for _ in sets.validation()),
        "bare_answer_share": sum(not text for text in sft.column("solution")) / len(sft),
        **{f"num_{name}": len(problems) for name, problems in sets.benchmarks.items()},
        **{each.name: each.metrics() for each in sets.training},
        "benchmarks": {name: table.drops.metrics() for name, table in sets.benchmarks.items()},
    }


def summary_lines(sets: ProblemSets) -> Iterator[str]:
    """What was read, kept and dropped, and where fewer problems are left than params ask for."""
    for name, table in sets.benchmarks.items():
        yield f"{name}: {len(table)} problems; dropped: {table.drops}"
    for each in sets.training:
        drops, requested = each.train.drops, each.data.num_train_examples
        yield (
            f"{each.name}: {drops.num_read} rows read, {len(each.train)} for training, "
            f"{len(each.validation)} for validation; prompts of at most {each.limits['prompt']} "
            f"tokens; dropped: {drops}"
        )
        if requested != "all" and len(each.train) < requested:
            yield (
                f"{each.name}: only {len(each.train)} problems are left of the {requested} that "
                f"prepare.{each.name}.num_train_examples asks for"
            )


def dropped_examples(sets: ProblemSets) -> dict[str, dict[str, list[dict[str, str]]]]:
    """A few of the rows that each set lost, by reason: for provenance."""
    tables = {**{each.name: each.train for each in sets.training}, **sets.benchmarks}
    return {name: table.drops.examples for name, table in tables.items() if table.drops.examples}
