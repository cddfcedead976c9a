"""Build the SFT, GRPO, validation and benchmark sets from the `prepare` section of params.

The steps in order:

1. `gathered_sets` reads the sources and drops bad rows, duplicates, leaks and excluded problems.
2. `tokenizer_problems` gives the remaining problems to a tokenizer that is trained here.
3. `finish_sets` cuts by length and difficulty, holds validation back, mixes and draws.
4. `write_sets` writes.

Each step counts its dropped rows in the table's `Drops`.
"""

import copy
import dataclasses
import heapq
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lib.artifacts import replacing
from lib.artifacts.problems import INSTRUCTION, SHORTER, Problem, long_prompt, write_problems
from lib.core.errors import UserError
from lib.params.data import AnySource, GeneratorSource, GrpoData, LimitedSource, Prepare, SftData
from lib.params.section import HELD_BACK_SET
from lib.params.training import Validation
from lib.problems.filters import (
    BenchmarkIndex,
    check_correct,
    check_numeric,
    decontaminate,
    drop_exact_duplicates,
    drop_near_duplicates,
    index_benchmark,
)
from lib.problems.generated import synthetic_sets
from lib.problems.good_rows import TaskFault, good_rows
from lib.problems.rows import RawRow
from lib.problems.selection import (
    TokenCounter,
    draw,
    drop_controls,
    drop_too_long,
    easy_to_hard,
    keep_band,
    mix,
    read_pass_rates,
    split,
)
from lib.problems.sources import SourceRows, read_source, source_label
from lib.problems.store import Drops, ProblemTable, join, scratch_folder, write_table

WHOLE = 1000
"""Words per n-gram, more than any problem has: only whole problems are compared."""


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
        return {
            # "read", "kept" and "dropped" rows.
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
        for training_set in self.training:
            for problem in training_set.validation:
                if problem.id not in seen:
                    seen.add(problem.id)
                    yield problem


@contextmanager
def gathered_sets(
    prepare: Prepare, *, seed: int, raw: Path, task: TaskFault | None = None
) -> Iterator[ProblemSets]:
    """Yield all sets; training sets have no problem of a benchmark, and none that params exclude.

    Bad rows and duplicates are dropped from every set. No problem is held back for validation yet.
    The tables' Arrow files exist only within the `with` block.

    Args:
        prepare: the params section.
        seed: seed of the generator.
        raw: the folder of all path sources.
        task: tries references in place of the maths verifier.

    Raises:
        UserError: a source cannot be read or has no good row, a row is bad and `bad_rows` is not
            `drop`, or a training set ends up empty.
    """
    with scratch_folder() as folder:
        reader = SourceReader(prepare, seed, raw, folder, task)
        # Benchmarks first: training sets are decontaminated against them.
        benchmarks = {}
        for each in prepare.benchmarks:
            # The first argument is the source's name in errors; each benchmark has its own counts.
            table = reader.table(f"prepare.benchmarks ({each.name})", each.source, Drops())
            benchmarks[each.name] = drop_exact_duplicates(table)
        size = prepare.contamination_ngram
        # For a size of 0 no index is built, so that no problem counts as contaminated.
        indices = [
            index_benchmark(
                each.name,
                list(benchmarks[each.name].column("problem")),
                # Generated problems have sentences in common: only a whole one is a leak.
                size=WHOLE if isinstance(each.source, GeneratorSource) else size,
            )
            for each in prepare.benchmarks
            if size
        ]
        truths = None
        # At most one source.
        for source in prepare.sft.truth_from:
            table = reader.table("prepare.sft.truth_from", source, Drops())
            # Content hash → reference, since a row and its truth share the problem's text, no key.
            truths = dict(zip(table.column("id"), table.column("reference"), strict=True))
        # Whether rows without a worked solution are good; references that replace the rows' own.
        row_options = {"bare_answers": prepare.sft.bare_answers, "truths": truths}
        sft = reader.training_set("sft", prepare.sft, indices, **row_options)
        # Whether GRPO, which accepts bare answers, would read, judge and compare the same rows.
        sources = [[each.source for each in data.sources] for data in (prepare.sft, prepare.grpo)]
        is_same = prepare.sft.bare_answers or not sft.train.drops.counts["missing_field"]
        if sources[0] == sources[1] and truths is None and is_same:
            drops = copy.deepcopy(sft.train.drops)
            grpo = dataclasses.replace(
                sft,
                name="grpo",
                data=prepare.grpo,
                train=ProblemTable(sft.train.rows, drops),
                validation=ProblemTable(sft.validation.rows, drops),
                overlaps=copy.deepcopy(sft.overlaps),
                limits={},
            )
        else:
            grpo = reader.training_set("grpo", prepare.grpo, indices)
        for made in (sft, grpo):
            if made.data.numeric_only:
                made.train = made.train.keep(check_numeric)
        if prepare.sft.correct_only:
            # After the cheap filters, since it parses every solution. Drops solutions that
            # contradict their reference.
            sft.train = sft.train.keep(check_correct)
        sft.refuse_empty()
        grpo.refuse_empty()
        yield ProblemSets((sft, grpo), benchmarks)


@dataclasses.dataclass(frozen=True)
class SourceReader:
    """Reads sources into tables.

    Attributes:
        seed: seed of the generator.
        raw: the folder of all path sources.
        folder: the folder of the tables' Arrow files.
    """

    prepare: Prepare
    seed: int
    raw: Path
    folder: Path
    task: TaskFault | None

    def training_set(
        self,
        name: str,
        data: SftData | GrpoData,
        benchmarks: Sequence[BenchmarkIndex],
        **row_options: Any,
    ) -> TrainingSet:
        """Read a training set without bad rows, duplicates and problems of the benchmarks.

        Args:
            name: `sft` or `grpo`.
            data: its params section.
            benchmarks: the n-grams of every benchmark; () drops no problem.
            row_options: `bare_answers` and `truths` of `good_rows`.
        """
        # All sources of a set share these counts.
        drops = Drops()
        tables = [
            # The good rows of one source. The key in params begins its errors; each row keeps the
            # number of its source, by which `mix` weights the sources later.
            self.table(f"prepare.{name}.sources[{n}]", entry.source, drops, number=n, **row_options)
            for n, entry in enumerate(data.sources)
        ]
        # After joining, so that the first of two sources with the same problem keeps it.
        table = drop_exact_duplicates(join(tables))
        # A similarity of 1 turns this filter off: exact copies are dropped already.
        if (similarity := self.prepare.near_duplicate_similarity) < 1:
            table = drop_near_duplicates(table, similarity=similarity)
        # `overlaps`: the numbers of shared problems by benchmark.
        table, overlaps = decontaminate(table, benchmarks, size=self.prepare.contamination_ngram)
        # Validation is empty until `finish_sets` holds problems back.
        return TrainingSet(
            name=name, data=data, train=table, validation=table.select([]), overlaps=overlaps
        )

    def table(
        self, key: str, source: AnySource, drops: Drops, *, number: int = 0, **row_options: Any
    ) -> ProblemTable:
        """Read the good rows of one source into a table, cut to the source's `limit`.

        Args:
            key: place of the source in params, the beginning of errors. It also names the table's
                Arrow file, since two sources may read one path, with different columns.
            drops: counts the rows that are left out.
            number: index of the source in its set, stored with each row.
            row_options: `bare_answers` and `truths` of `good_rows`.

        Raises:
            UserError: as `good_rows`, and beginning with `key`.
        """
        try:
            rows = good_rows(
                self._rows(source),
                drops,
                self.prepare.bad_rows,
                origin=source_label(source),
                task=self.task,
                **row_options,
            )
            table = write_table(self.folder / f"{key}.arrow", rows, drops, source=number)
        except UserError as error:
            raise UserError(f"{key}: {error.message}") from error
        # Only sources from files and the Hub have a limit, the generator's sets have not.
        if not isinstance(source, LimitedSource) or source.limit == "all":
            return table
        # A constant seed, so that a limited source has the same problems in every run.
        limited = draw(table, source.limit, seed=0)
        drops.count("over_limit", len(table) - len(limited))
        return limited

    def _rows(self, source: AnySource) -> SourceRows:
        if not isinstance(source, GeneratorSource):
            yield from read_source(source, raw=self.raw)
            return
        generated = synthetic_sets(self.prepare.synthetic, seed=self.seed)
        for number, problem in enumerate(generated.named(source.generator), start=1):
            # A generated problem has no raw fields: only the row's place is used, in messages.
            yield RawRow(f"generator {source.generator}", number, {}), problem


def tokenizer_problems(sets: ProblemSets) -> Iterator[Problem]:
    """Yield the problems to train a tokenizer on: SFT's, and GRPO's unless all sets are generated.

    Generated sets have the same words, so SFT's are enough. In other sets, GRPO may have words that
    SFT lacks: a tokenizer that has not seen them would spend a token on each letter.
    """
    sft, grpo = sets.training
    yield from sft.train
    sources = [entry.source for each in sets.training for entry in each.data.sources]
    # The same rows twice would give the same tokens.
    is_same = grpo.train.rows is sft.train.rows
    if not is_same and not all(isinstance(source, GeneratorSource) for source in sources):
        yield from grpo.train


def finish_sets(
    sets: ProblemSets, prepare: Prepare, *, counter: TokenCounter, max_seq_length: int, seed: int
) -> None:
    """Cut the training sets by length and difficulty, hold validation back, mix and draw.

    Sets `train`, `validation` and `limits` of both training sets.

    Args:
        counter: counts tokens as training renders the problems.
        max_seq_length: most tokens of prompt and completion together.
        seed: seed of the draw.

    Raises:
        UserError: the prompts leave no token for a completion, or no problem is left.
    """
    sft, grpo = sets.training
    counted = None
    for each in sets.training:
        rows = drop_controls(
            f"prepare.{each.name}",
            each.train,
            counter,
            targets=each is sft,
            drops_rows=prepare.bad_rows == "drop",
        )
        # Both sets may have the same rows.
        if rows.rows is not counted:
            prompt_tokens = [n for batch in rows.batches() for n in counter.prompts(batch)]
            counted = rows.rows
        each.train, each.limits = drop_too_long(
            each.name,
            rows,
            prompt_tokens,
            counter,
            prepare.lengths,
            max_seq_length=max_seq_length,
            # GRPO generates its completions, so only SFT's solutions have a length here.
            completions=each is sft,
        )
    band = prepare.grpo.difficulty
    # Problem id → pass rate of a checkpoint. Without a file, nothing is cut by difficulty.
    rates = read_pass_rates(Path(band.file)) if band.file else {}
    if band.file:
        grpo.train = keep_band(grpo.train, rates, band)
    for each in sets.training:
        # A set that `validation_from` does not list holds nothing back.
        share = prepare.validation_share if each.name in prepare.validation_from else 0.0
        # Before mixing, so that other weights in the mixture move no problem between training and
        # validation.
        each.train, each.validation = split(each.train, share=share)
    # A problem held back in one set must not be trained on in the other.
    held_back = {
        problem_id for each in sets.training for problem_id in each.validation.column("id")
    }
    fault = ("in_validation", "held back from the other training set")
    for each in sets.training:
        ids = enumerate(each.train.column("id"))
        # Before the draw, which would otherwise lose some of its rows.
        train = each.train.without({index: fault for index, name in ids if name in held_back})
        # Draws rows of the sources by their weights, at most `num_train_examples`.
        each.train = mix(train, each.data.sources, limit=each.data.num_train_examples, seed=seed)
        each.refuse_empty()
    # After mixing, which orders problems by source.
    if band.file and band.easy_first:
        grpo.train = easy_to_hard(grpo.train, rates)


def refuse_few_problems(sets: ProblemSets, *, prompts_per_step: int) -> None:
    """Refuse fewer GRPO problems than one step of GRPO takes: `grpo.prompts_per_step`.

    Checked already here, in `prepare`: GRPO comes after hours of SFT.

    Raises:
        UserError: too few; counts what was dropped.
    """
    # The second training set; the first is SFT's.
    grpo = sets.training[1].train
    if len(grpo) < prompts_per_step:
        raise UserError(
            f"grpo.prompts_per_step={prompts_per_step}: only {len(grpo)} GRPO problems are left "
            f"of {grpo.drops.num_read} ({grpo.drops}); lower it, or let `prepare.grpo` keep more"
        )


def refuse_long_prompts(
    sets: ProblemSets, names: Sequence[str], *, counter: TokenCounter, positions: int | None
) -> None:
    """Refuse a benchmark with a prompt that leaves no position for a completion.

    Checked already here: `evaluate` comes after hours of training.

    Args:
        names: the benchmarks that `evaluate` asks.
        positions: of the evaluation's engine; None for no limit.

    Raises:
        UserError: names the benchmark and the problem.
    """
    if positions is None:
        return
    for name in names:
        for batch in sets.benchmarks[name].batches():
            for problem, length in zip(batch, counter.prompts(batch), strict=True):
                if length >= positions:
                    raise UserError(f"{long_prompt(problem, name, length, positions)}; {SHORTER}")


def write_sets(sets: ProblemSets, folder: Path, *, validation: Validation) -> None:
    """Write all sets as JSON lines; an error leaves the old folder.

    ::

        sft.jsonl  grpo.jsonl    training problems
        benchmarks/<name>.jsonl
        validation.jsonl         all held-back problems
        validation/<name>.jsonl  `validation.num_problems` of each of `validation.sets`, for
                                 validation during training

    Args:
        validation: the params section; of `validation.sets`, "validation" is the held-back
            problems, and any other name a benchmark.

    Raises:
        UserError: a set of `validation.sets` has no problem, or instructions.
    """
    # `partial` replaces `folder` at the end of the block.
    with replacing(folder) as partial:
        for name in validation.sets:
            problems = sets.validation() if name == HELD_BACK_SET else sets.benchmarks[name]
            # The smallest ids, which are content hashes: the choice does not depend on the rows'
            # order, and a larger number only adds problems.
            few = heapq.nsmallest(validation.num_problems, problems, key=lambda each: each.id)
            if not few:
                raise UserError(f"validation.sets: `{name}` has no problem; name another set")
            # They would count as wrong, all of them.
            if any(INSTRUCTION in problem.tags for problem in few):
                raise UserError(
                    f"validation.sets: `{name}` has instructions, which have no right answer; "
                    "name another set"
                )
            write_problems(partial / "validation" / f"{name}.jsonl", few)
        for each in sets.training:
            write_problems(partial / f"{each.name}.jsonl", each.train)
        write_problems(partial / "validation.jsonl", sets.validation())
        for name, problems in sets.benchmarks.items():
            write_problems(partial / "benchmarks" / f"{name}.jsonl", problems)


def set_metrics(sets: ProblemSets) -> dict[str, Any]:
    """Return the metrics of all sets: sizes, drops, and training's token limits and overlaps.

    {"num_sft": 100, "num_grpo": 50, "num_validation": 5, "bare_answer_share": 0.2, "num_gsm8k": 30,
    "sft": {"read": 120, …}, "grpo": {…}, "benchmarks": {"gsm8k": {"read": 30, …}}}
    """
    # `training` is (SFT's set, GRPO's set).
    sft = sets.training[0].train
    return {
        **{f"num_{each.name}": len(each.train) for each in sets.training},
        "num_validation": sum(1 for _ in sets.validation()),
        # Share of SFT's problems without a worked solution: their target is the answer only.
        "bare_answer_share": sum(not text for text in sft.column("solution")) / len(sft),
        **{f"num_{name}": len(problems) for name, problems in sets.benchmarks.items()},
        **{each.name: each.metrics() for each in sets.training},
        "benchmarks": {name: table.drops.metrics() for name, table in sets.benchmarks.items()},
    }


def set_lines(sets: ProblemSets) -> Iterator[str]:
    """Yield lines for the log: rows read, kept and dropped, and sets smaller than params ask for.

    Called after `finish_sets`, which sets each `limits`.
    """
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
