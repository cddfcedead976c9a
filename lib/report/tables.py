"""The report's tables, as text in cells; Markdown, HTML and the terminal print the same ones."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from lib.report.comparisons import Comparison
from lib.report.inputs import Metrics, Run
from lib.report.text import MISSING, decimal, p_value, percent, points

Formatter = Callable[[float | None, float | None], str]


@dataclasses.dataclass(frozen=True)
class Table:
    """A table whose first column names the rows.

    Attributes:
        strong: rows that carry the message.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    strong: frozenset[int] = frozenset()


@dataclasses.dataclass(frozen=True)
class Measure:
    """A row of the headline table: where the number stands and how it is printed."""

    title: str
    mode: str
    name: str
    format: Formatter = percent
    strong: bool = False

    @property
    def is_rate(self) -> bool:
        return self.format is percent


CLASSES = {
    "11": "format right, answer right",
    "10": "format right, answer wrong",
    "01": "format wrong, answer right",
    "00": "format wrong, answer wrong",
}
REASONS = {
    "exact": "the same text as the reference",
    "number": "compared as numbers",
    "normalized": "compared as text in one spelling",
    "choice": "compared as letters of multiple choice",
    "time": "compared as times of day",
    "text": "compared as words",
    "number word": "compared as a number written in words",
    "empty set": "both say that there is none",
    "structure": "compared part by part as formulas",
    "units": "compared as quantities with units",
    "percent": "compared as percentages",
    "ratio": "compared as ratios",
    "equation": "compared as equations",
    "decimal": "a decimal, compared with the exact number that it may stand for",
    "numeric": "compared by their values at several points",
    "decimal comma": "compared with the comma read as a decimal point",
    "separators": "compared with the commas read as separators",
    "common logarithm": "compared with log read as the common logarithm",
    "symbolic": "compared by computer algebra",
    "no answer": "no answer was found, and none equals nothing",
    "unparsed": "the answer could not be read as mathematics, so it counts as wrong",
    "undecided": "whether the two are equal could not be decided, so it counts as wrong",
    "limit": "too large to compare, so it counts as wrong",
    "timeout": "the comparison took too long, so it counts as wrong",
    "worker failure": "the comparison broke down, so it counts as wrong",
    "failure": "the comparison met a fault of the verifier, so it counts as wrong",
    "not graded": "nothing here has a right answer; a judge compares such completions elsewhere",
}
"""What decided a grade (`decided_by`, docs/verifier.md), in words for a reader."""

BREAKDOWNS = {"by_level": "level", "by_tag": "tag", "by_subject": "subject"}


def measures(modes: Mapping[str, Mapping[str, Any]]) -> Iterator[Measure]:
    """The rows that a benchmark's metrics can fill."""
    k = int(modes.get("sampled", {}).get("num_samples", 0))
    if "greedy" in modes:
        yield Measure("answer accuracy, greedy", "greedy", "answer_accuracy", strong=True)
    if k:
        yield Measure("pass@1, sampled", "sampled", "pass_at_1", strong=True)
    if k > 1:
        yield Measure(f"pass@{k}, sampled", "sampled", f"pass_at_{k}")
        yield Measure(f"maj@{k}, sampled", "sampled", f"maj_at_{k}")
    mode = "greedy" if "greedy" in modes else "sampled"
    yield Measure("strict answer accuracy", mode, "strict_accuracy")
    yield Measure("format accuracy", mode, "format_accuracy")
    yield Measure("reasoning present", mode, "reasoning_present")
    yield Measure("reasoning length, characters", mode, "mean_reasoning_chars", _one_digit)
    yield Measure("equations written", mode, "mean_equations", decimal)
    yield Measure("total reward", mode, "mean_reward", decimal)
    yield Measure("response tokens", mode, "mean_response_tokens", _one_digit)
    yield Measure("truncated", mode, "truncated")


def _one_digit(value: float | None, se: float | None = None) -> str:
    return decimal(value, se, digits=1)


def checkpoint_titles(checkpoints: Sequence[str], skipped: frozenset[str]) -> tuple[str, ...]:
    """Column heads; a phase that was skipped says so."""
    return tuple(f"{name} (skipped)" if name in skipped else name for name in checkpoints)


def headline(
    metrics: Mapping[str, Metrics], benchmark: str, *, skipped: frozenset[str] = frozenset()
) -> Table:
    """Measures down, checkpoints across; every rate with its standard error.

    Args:
        metrics: by checkpoint, in the order of the columns.
        benchmark: which of their benchmarks.
        skipped: phases that passed their checkpoint on unchanged.
    """
    columns = [metrics[name].get(benchmark, {}) for name in metrics]
    listed = list(measures(columns[0]))
    filled = [
        (measure, tuple(_cell(measure, modes) for modes in columns))
        for measure in listed
        if any(measure.name in modes.get(measure.mode, {}) for modes in columns)
    ]
    return Table(
        title=f"{benchmark}, {_sizes(columns)}",
        header=("", *checkpoint_titles(list(metrics), skipped)),
        rows=tuple((measure.title, *cells) for measure, cells in filled),
        strong=frozenset(row for row, (measure, _) in enumerate(filled) if measure.strong),
    )


def _cell(measure: Measure, modes: Mapping[str, Any]) -> str:
    numbers = modes.get(measure.mode, {})
    return measure.format(numbers.get(measure.name), numbers.get(f"{measure.name}_se"))


def _sizes(columns: Sequence[Mapping[str, Any]]) -> str:
    modes = columns[0]
    n = next((int(numbers["n"]) for numbers in modes.values() if "n" in numbers), 0)
    k = modes.get("sampled", {}).get("num_samples")
    return f"n = {n} problems" + (f", {k} samples each" if k else "")


def comparison_table(comparisons: Sequence[Comparison], benchmark: str) -> Table:
    """The paired differences, in points, with interval, p-value and what could have been seen."""
    rows = [
        (
            f"{comparison.before} → {comparison.after}, {comparison.mode}",
            points(comparison.found.difference.value),
            _range(comparison),
            p_value(comparison.found.p_value),
            str(comparison.found.difference.n),
            points(comparison.detectable).lstrip("+"),
        )
        for comparison in comparisons
        if comparison.benchmark == benchmark
    ]
    header = ("", "difference", "95 % interval", "p", "n", "detectable")
    return Table(f"{benchmark}, paired differences in percentage points", header, tuple(rows))


def _range(comparison: Comparison) -> str:
    """The interval; none where all problems changed alike, which tells nothing of the spread."""
    interval = comparison.found.interval
    if comparison.found.difference.se == 0:
        return MISSING
    return f"{points(interval.low)} … {points(interval.high)}"


def breakdown(run: Run, benchmark: str, group: str) -> Table | None:
    """Greedy answer accuracy by level, tag or subject; None where the metrics have no such group.

    Args:
        run: the run.
        benchmark: which benchmark.
        group: a key of `BREAKDOWNS`.
    """
    mode = "greedy" if "greedy" in run.metrics[run.checkpoints[0]][benchmark] else "sampled"
    columns = [
        run.metrics[name].get(benchmark, {}).get(mode, {}).get(group, {})
        for name in run.checkpoints
    ]
    keys = list(dict.fromkeys(key for column in columns for key in column))
    rows = tuple(
        (key, str(_first_n(columns, key)), *(_accuracy(column.get(key, {})) for column in columns))
        for key in sorted(keys, key=natural_order)
    )
    titles = checkpoint_titles(run.checkpoints, run.skipped)
    title = f"{benchmark} by {BREAKDOWNS[group]}, answer accuracy ({mode})"
    return Table(title, (BREAKDOWNS[group], "n", *titles), rows) if rows else None


def natural_order(key: str) -> tuple[bool, float, str]:
    """Numbers before words, 2 before 10."""
    return (False, float(key), "") if key.isdecimal() else (True, 0.0, key)


def _accuracy(numbers: Mapping[str, float]) -> str:
    return percent(numbers.get("answer_accuracy"), numbers.get("answer_accuracy_se"))


def _first_n(columns: Sequence[Mapping[str, Any]], key: str) -> int | str:
    return next((int(column[key]["n"]) for column in columns if key in column), MISSING)


def format_table(run: Run) -> Table | None:
    """The headline benchmark in every prompt format, same weights; None where there is one alone.

    Strict accuracy counts an answer in the format's place only, answer accuracy one anywhere.
    """
    if run.formats is None:
        return None
    benchmark = run.benchmarks[0]
    table = headline(run.formats.metrics, benchmark)
    wanted = ("answer accuracy", "pass@1", "strict", "format", "truncated")
    rows = tuple(row for row in table.rows if row[0].startswith(wanted))
    title = f"{run.formats.checkpoint} in other prompt formats, {table.title}"
    return Table(title, table.header, rows)


def class_table(run: Run, benchmark: str) -> Table:
    """Share of the four classes, format digit first, by checkpoint."""
    mode = "greedy" if "greedy" in run.metrics[run.checkpoints[0]][benchmark] else "sampled"
    columns = [run.metrics[name].get(benchmark, {}).get(mode, {}) for name in run.checkpoints]
    rows = tuple(
        (f"{label} {meaning}", *(percent(column.get(f"class_{label}")) for column in columns))
        for label, meaning in CLASSES.items()
    )
    titles = checkpoint_titles(run.checkpoints, run.skipped)
    return Table(f"{benchmark}, four classes ({mode}, % of completions)", ("", *titles), rows)
