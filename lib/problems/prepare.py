"""Build the SFT, GRPO, validation and benchmark sets from the `prepare` section of params.

The steps in order:

1. `gathered_sets` reads the sources and drops bad rows, duplicates, leaks and excluded problems.
2. `tokenizer_problems` gives the remaining problems to a tokenizer that is trained here.
3. `finish_sets` cuts by length and difficulty, holds validation back, mixes and draws.
4. `write_sets` writes.

Each step counts its dropped rows in the table's `Drops`.
"""

import dataclasses
import heapq
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from lib.artifacts import replacing
from lib.artifacts.problems import INSTRUCTION, Problem, write_problems
from lib.core.errors import UserError
from lib.params.data import AnySource, GeneratorSource, GrpoData, LimitedSource, Prepare, SftData
from lib.params.section import HELD_BACK_SET
from lib.params.training import Validation
from lib.problems.filters import (
    check_correct,
    check_numeric,
    decontaminate,
    drop_exact_duplicates,
    drop_near_duplicates,
    index_benchmark,
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
from lib.problems.sources import SourceRows, read_source
from lib.problems.store import Drops, ProblemTable, join, scratch_folder, write_table
from lib.verifier import reference_problem


@dataclasses.dataclass(kw_only=True)
class TrainingSet:
    """One training set while it is built.

    Attributes:
        data: its params section.
        train: its problems; before `finish_sets`, all of them.
        validation: the held-back problems.
        overlaps: numbers of shared problems by benchmark, from `decontaminate`.
        limits: length limits in tokens, `prompt` and `total`; {} before `finish_sets`.
    """

    name: str
    data: SftData | GrpoData
    train: ProblemTable
    validation: ProblemTable
    overlaps: dict[str, dict[str, int]]
    limits: dict[str, int] = dataclasses.field(default_factory=dict)

    def refuse_empty(self) -> None:
        """Raise UserError if no training problem is left; it counts what was dropped."""
        drops = self.train.drops
        if not len(self.train):
            raise UserError(f"{self.name}: no problem is left of {drops.num_read} ({drops})")

    def metrics(self) -> dict[str, Any]:
        """The numbers for the metrics file."""
        return {
            **self.train.drops.metrics(),
            "train": len(self.train),
            "validation": len(self.validation),
            "max_tokens": self.limits,
            "overlap": self.overlaps,
        }


@dataclasses.dataclass(frozen=True)
class ProblemSets:
    """All sets; each table counts its dropped rows.

    Attributes:
        training: `sft`, then `grpo`.
        benchmarks: by name.
    """

    training: tuple[TrainingSet, TrainingSet]
    benchmarks: dict[str, ProblemTable]

    def validation(self) -> Iterator[Problem]:
        """Yield the problems held back from either training set, each once."""
        # Both sets can hold the same problem back, since `split` depends on its words only.
        seen: set[str] = set()
        for problem in (problem for each in self.training for problem in each.validation):
            if problem.id not in seen:
                seen.add(problem.id)
                yield problem


@contextmanager
def gathered_sets(prepare: Prepare, *, seed: int, raw: Path) -> Iterator[ProblemSets]:
    """Yield all sets without bad rows, duplicates, leaks and excluded problems.

    The tables' Arrow files exist only within the `with` block.

    Args:
        prepare: the params section.
        seed: seed of the generator.
        raw: the folder of all path sources.

    Raises:
        UserError: a source cannot be read or has no good row, a row is bad and `bad_rows` is not
            `drop`, or a training set ends up empty.
    """
    # Cached: generated once for all sources, and only if one of them needs it.
    generated = cache(lambda: synthetic_sets(prepare.synthetic, seed=seed))

    def read(source: AnySource) -> SourceRows:
        """Yield (row, problem or fault) of any source, the generator's sets too."""
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
            **needs: Any,
        ) -> ProblemTable:
            """Read the good rows of one source into a table, cut to the source's `limit`.

            `key` names the source in errors and its file, `number` is its place in the set;
            `needs` are options of `good_rows`.
            """
            rows = good_rows(read(source), drops, prepare.bad_rows, **needs)
            try:
                table = write_table(folder / f"{key}.arrow", rows, drops, source=number)
                if not len(table):
                    # All rows are bad: read again to raise the first fault, even under `drop`.
                    list(good_rows(read(source), Drops(), "refuse", **needs))
                    raise UserError("has no row")
            except UserError as error:
                # Name the params key too: one file may be two sources, with different columns.
                raise UserError(f"{key}: {error.message}") from error
            if not isinstance(source, LimitedSource) or source.limit == "all":
                return table
            # A constant seed, so that a limited source has the same problems in every run.
            kept = draw(table, source.limit, seed=0)
            drops.count("over_limit", len(table) - len(kept))
            return kept

        # Benchmarks first: training sets are decontaminated against them.
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
            # Content hash → reference, since the two sources share a problem's text but no key.
            truths = dict(zip(*map(with_truth.column, ("id", "reference")), strict=True))
        training = []
        for name, data in (("sft", prepare.sft), ("grpo", prepare.grpo)):
            # All sources of a set share these counts.
            drops, tables = Drops(), []
            needs: dict[str, Any] = {}
            if isinstance(data, SftData):
                needs = {"bare_answers": data.bare_answers, "truths": truths}
            for number, source in enumerate(entry.source for entry in data.sources):
                key = f"prepare.{name}.sources[{number}]"
                tables.append(table_of(source, drops, key, number=number, **needs))
            # After joining, so that the first of two sources with the same problem keeps it.
            table = drop_exact_duplicates(join(tables))
            if prepare.near_duplicate_similarity < 1:
                table = drop_near_duplicates(table, similarity=prepare.near_duplicate_similarity)
            table, overlaps = decontaminate(table, indices, size=size)
            if data.numeric_only:
                table = table.keep(check_numeric)
            # After the cheap filters, since it parses every solution.
            if isinstance(data, SftData) and data.correct_only:
                table = table.keep(check_correct)
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
    rows: SourceRows,
    drops: Drops,
    bad_rows: str,
    *,
    bare_answers: bool = True,
    truths: Mapping[str, str] | None = None,
) -> Iterator[Problem]:
    """Yield a source's usable problems; count the bad rows in `drops`, or raise.

    Args:
        bad_rows: "error" or "drop"; "refuse" is an error that does not offer "drop", for a source
            without a good row.
        bare_answers: True if rows without a worked solution are good.
        truths: references by problem id (`truth_from`); they replace the rows' own.

    Raises:
        UserError: a bad row unless `bad_rows` is "drop", or columns that params have to name.
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
        # An undecidable column affects every row and needs params, so `drop` does not hide it.
        if bad_rows != "drop" or fault.reason == "undecidable":
            raise bad_row_error(row, fault, bad_rows)
        drops.add(fault.reason, row=row.place, detail=str(fault), text=text)


def _missing_part(problem: Problem, *, bare_answers: bool) -> RowFault | None:
    """Return the fault of a problem without a part that its set needs; None if it has all."""
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
    """Yield the problems to train a tokenizer on: SFT's, and GRPO's unless all sets are generated.

    Generated sets share their words. In other sets, a word that SFT lacks would cost a token per
    letter.
    """
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
        max_seq_length: most tokens of prompt and completion together.
        seed: seed of the draw.

    Raises:
        UserError: the prompts leave no token for a completion, or no problem is left.
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
        # Before mixing, so that new weights move no problem to the other side.
        table, each.validation = split(table, share=share)
        each.train = mix(table, data.sources, limit=data.num_train_examples, seed=seed)
        # After mixing, which orders problems by source.
        if band and band.easy_first:
            each.train = easy_to_hard(each.train, rates)
    # A problem held back in one set must not be trained on in the other.
    held_back = {name for each in sets.training for name in each.validation.column("id")}

    def is_held_back(_: int, problem: Problem) -> tuple[str, str] | None:
        reason = ("in_validation", "held back from the other training set")
        return reason if problem.id in held_back else None

    for each in sets.training:
        each.train = each.train.keep(is_held_back)
        each.refuse_empty()


def refuse_few_problems(sets: ProblemSets, *, prompts_per_step: int) -> None:
    """Refuse fewer GRPO problems than one step takes, before SFT trains for hours.

    Raises:
        UserError: too few; counts what was dropped.
    """
    grpo = sets.training[1].train
    if len(grpo) < prompts_per_step:
        raise UserError(
            f"grpo.prompts_per_step={prompts_per_step}: only {len(grpo)} GRPO problems are left "
            f"of {grpo.drops.num_read} ({grpo.drops}); lower it, or let `prepare.grpo` keep more"
        )


def write_sets(sets: ProblemSets, folder: Path, *, validation: Validation) -> None:
    """Write all sets as JSON lines; an error leaves the old folder.

    ::

        sft.jsonl  grpo.jsonl  benchmarks/<name>.jsonl
        validation.jsonl         all held-back problems
        validation/<name>.jsonl  `validation.num_problems` of each of `validation.sets`, for
                                 validation during training

    Raises:
        UserError: a set of `validation.sets` has no problem.
    """
    with replacing(folder) as partial:
        for name in validation.sets:
            problems = sets.validation() if name == HELD_BACK_SET else sets.benchmarks[name]
            # Chosen by content hash, so that the rows' order does not matter, and a larger number
            # only adds problems.
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
    """Return the metrics of all sets: sizes, drops, and training's token limits and overlaps."""
    sft = sets.training[0].train
    return {
        **{f"num_{each.name}": len(each.train) for each in sets.training},
        "num_validation": sum(1 for _ in sets.validation()),
        "bare_answer_share": sum(not text for text in sft.column("solution")) / len(sft),
        **{f"num_{name}": len(problems) for name, problems in sets.benchmarks.items()},
        **{each.name: each.metrics() for each in sets.training},
        "benchmarks": {name: table.drops.metrics() for name, table in sets.benchmarks.items()},
    }


def set_lines(sets: ProblemSets) -> Iterator[str]:
    """Report the rows read, kept and dropped, and every set smaller than params ask for."""
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
    """Return a few of each set's dropped rows by reason, for provenance."""
    tables = {**{each.name: each.train for each in sets.training}, **sets.benchmarks}
    return {name: table.drops.examples for name, table in tables.items() if table.drops.examples}
