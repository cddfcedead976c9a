"""Turn the `prepare` section of params into the sets of problems that the stages read."""

import dataclasses
import heapq
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from lib.artifacts import replacing
from lib.errors import UserError
from lib.params.data import (
    GeneratorSource,
    HubSource,
    PathSource,
    Prepare,
)
from lib.params.section import HELD_BACK
from lib.params.training import Validation
from lib.problems.assemble import (
    Difficulty,
    FinishRules,
    Gathered,
    GatherRules,
    Ingredient,
    Rows,
    TrainingSet,
    finish,
    gather,
    read_set,
)
from lib.problems.decontaminate import BenchmarkIndex, index_benchmark
from lib.problems.difficulty import read_pass_rates
from lib.problems.drops import Drops
from lib.problems.duplicates import drop_exact_duplicates
from lib.problems.generated import GeneratedSets, synthetic_sets
from lib.problems.hub import HubSet
from lib.problems.lengths import CountTokens, LengthRules, Rendering
from lib.problems.mixture import Weight
from lib.problems.places import scratch_folder
from lib.problems.rows import RawRow
from lib.problems.schema import Problem, write_problems
from lib.problems.sources import Source, read_problems_of
from lib.problems.store import ProblemTable

AnySource = GeneratorSource | PathSource | HubSource


@dataclasses.dataclass(frozen=True)
class GatheredSets:
    """All sets before their lengths are known."""

    sft: Gathered
    grpo: Gathered
    benchmarks: dict[str, ProblemTable]
    benchmark_drops: dict[str, Drops]


@dataclasses.dataclass(frozen=True)
class ProblemSets:
    """All sets as the stages read them, with what was dropped on the way."""

    sft: TrainingSet
    grpo: TrainingSet
    benchmarks: dict[str, ProblemTable]
    benchmark_drops: dict[str, Drops]

    def validation(self) -> Iterator[Problem]:
        """What was held back of either training set, each problem once."""
        seen: set[str] = set()
        for problem in (*self.sft.validation, *self.grpo.validation):
            if problem.id not in seen:
                seen.add(problem.id)
                yield problem


@contextmanager
def gathered_sets(prepare: Prepare, *, seed: int, raw: Path) -> Iterator[GatheredSets]:
    """All sets, read and cleaned, as long as the block lasts; see `gather_sets`."""
    with scratch_folder() as cache_dir:
        yield gather_sets(prepare, seed=seed, raw=raw, cache_dir=cache_dir)


def gather_sets(prepare: Prepare, *, seed: int, raw: Path, cache_dir: Path) -> GatheredSets:
    """Read all sources, benchmarks first, since training sets are cleaned of those.

    Args:
        prepare: the section of params.
        seed: the generator's.
        raw: the folder that path sources have to be in.
        cache_dir: where the sets' Arrow files go; it has to outlive them.

    Raises:
        UserError: a source that cannot be read, or a bad row where params do not say `drop`.
    """
    read = _Reader(raw, cache(lambda: synthetic_sets(prepare.synthetic, seed=seed)))
    drops = {benchmark.name: Drops() for benchmark in prepare.benchmarks}
    benchmarks = {
        benchmark.name: drop_exact_duplicates(
            read_set(
                f"benchmark-{benchmark.name}",
                [read.ingredient(benchmark.source)],
                _gather_rules(prepare),
                cache=cache_dir,
                drops=drops[benchmark.name],
            ),
            drops=drops[benchmark.name],
        )
        for benchmark in prepare.benchmarks
    }
    leaks = _index(benchmarks, size=prepare.contamination_ngram)
    sft, grpo = (
        gather(
            name,
            [read.ingredient(entry.source, weight=entry.weight) for entry in data.sources],
            rules,
            benchmarks=leaks,
            cache=cache_dir,
        )
        for name, data, rules in (
            ("sft", prepare.sft, _sft_rules(prepare)),
            ("grpo", prepare.grpo, _grpo_rules(prepare)),
        )
    )
    return GatheredSets(sft, grpo, benchmarks, drops)


def _gather_rules(prepare: Prepare) -> GatherRules:
    return GatherRules(
        bad_rows=prepare.bad_rows,
        needs_solution=False,
        needs_reference=True,
        near_duplicate_similarity=1.0,
        numeric_only=False,
        correct_only=False,
    )


def _grpo_rules(prepare: Prepare) -> GatherRules:
    return dataclasses.replace(
        _gather_rules(prepare),
        numeric_only=prepare.grpo.numeric_only,
        near_duplicate_similarity=prepare.near_duplicate_similarity,
    )


def _sft_rules(prepare: Prepare) -> GatherRules:
    return dataclasses.replace(
        _grpo_rules(prepare),
        needs_solution=not prepare.sft.bare_answers,
        numeric_only=prepare.sft.numeric_only,
        correct_only=prepare.sft.correct_only,
    )


def _index(benchmarks: Mapping[str, ProblemTable], *, size: int) -> list[BenchmarkIndex]:
    if not size:
        return []
    return [
        index_benchmark(name, table.column("problem"), size=size)
        for name, table in benchmarks.items()
    ]


@dataclasses.dataclass(frozen=True)
class _Reader:
    """Opens sources: files under `raw`, the Hub, and the generator, which runs at most once."""

    raw: Path
    generated: Callable[[], GeneratedSets]

    def ingredient(self, source: AnySource, *, weight: Weight = "all") -> Ingredient:
        if isinstance(source, GeneratorSource):
            name = source.generator
            return Ingredient(
                label=f"generator {name}", rows=lambda: self._generate(name), weight=weight
            )
        found = _located(source)
        return Ingredient(
            label=found.label, rows=lambda: read_problems_of(found, raw=self.raw), weight=weight
        )

    def _generate(self, name: str) -> Rows:
        for number, problem in enumerate(self.generated().named(name), start=1):
            yield RawRow(f"generator {name}", number, {}), problem


def _located(source: PathSource | HubSource) -> Source:
    columns = {str(field): column for field, column in source.columns.items()}
    if isinstance(source, PathSource):
        return Source(at=Path(source.path), adapter=source.adapter, columns=columns)
    at = HubSet(
        repo=source.hub,
        revision=source.revision,
        subset=source.subset,
        split=source.split,
        files=source.files,
    )
    return Source(at=at, adapter=source.adapter, columns=columns)


def finish_sets(
    gathered: GatheredSets,
    prepare: Prepare,
    *,
    max_seq_length: int,
    seed: int,
    rendering: Rendering,
    count_tokens: CountTokens,
) -> ProblemSets:
    """Cut by length and difficulty, hold validation back, mix and draw.

    Raises:
        UserError: the prompts leave no room for a completion, or nothing is left for training.
    """
    rules = FinishRules(
        lengths=LengthRules(max_seq_length=max_seq_length, **prepare.lengths.model_dump()),
        count_completions=True,
        difficulty=None,
        validation_share=prepare.validation_share,
        num_train_examples=prepare.sft.num_train_examples,
        seed=seed,
    )
    grpo_rules = dataclasses.replace(
        rules,
        count_completions=False,
        difficulty=_difficulty(prepare),
        num_train_examples=prepare.grpo.num_train_examples,
    )
    return ProblemSets(
        finish(gathered.sft, rules, rendering=rendering, count_tokens=count_tokens),
        finish(gathered.grpo, grpo_rules, rendering=rendering, count_tokens=count_tokens),
        gathered.benchmarks,
        gathered.benchmark_drops,
    )


def _difficulty(prepare: Prepare) -> Difficulty | None:
    wanted = prepare.grpo.difficulty
    if not wanted.file:
        return None
    return Difficulty(
        rates=read_pass_rates(Path(wanted.file)),
        lowest=wanted.lowest,
        highest=wanted.highest,
        easy_first=wanted.easy_first,
    )


def write_sets(sets: ProblemSets, folder: Path, *, validation: Validation) -> None:
    """Write `sft`, `grpo`, `validation` (held back), `benchmarks/<name>` and `validation/<name>`
    (what training is validated on), all as `.jsonl`, or nothing.

    Raises:
        UserError: a set of `validation.sets` has no problem.
    """
    with replacing(folder) as partial:
        for name in validation.sets:
            problems = sets.validation() if name == HELD_BACK else sets.benchmarks[name]
            drawn = heapq.nsmallest(validation.num_problems, problems, key=lambda each: each.id)
            if not drawn:
                raise UserError(f"validation.sets: `{name}` has no problem; name another set")
            write_problems(partial / "validation" / f"{name}.jsonl", drawn)
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
        "benchmarks": {name: drops.metrics() for name, drops in sets.benchmark_drops.items()},
    }


def dropped_examples(sets: ProblemSets) -> dict[str, dict[str, list[dict[str, str]]]]:
    """A few of the rows that each set lost, by reason: for provenance."""
    drops = {
        "sft": sets.sft.gathered.drops,
        "grpo": sets.grpo.gathered.drops,
        **sets.benchmark_drops,
    }
    return {name: dropped.examples for name, dropped in drops.items() if dropped.examples}
