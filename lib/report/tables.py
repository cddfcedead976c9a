"""The report's tables, as text in cells; Markdown, HTML and the terminal print the same ones."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from lib.report.comparisons import Comparison
from lib.report.inputs import Formats, Metrics, main_mode
from lib.report.text import Formatter, Table, cell, decimal, p_value, percent, points


@dataclasses.dataclass(frozen=True)
class Measure:
    """A row of the headline table: where its number is in the metrics, and how it is printed."""

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

_ONE_DIGIT = partial(decimal, digits=1)

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
        yield Measure(f"pass^{k}, sampled", "sampled", f"pass_hat_{k}")
        yield Measure(f"maj@{k}, sampled", "sampled", f"maj_at_{k}")
    mode = "greedy" if "greedy" in modes else "sampled"
    yield Measure("strict answer accuracy", mode, "strict_accuracy")
    yield Measure("format accuracy", mode, "format_accuracy")
    yield Measure("reasoning present", mode, "reasoning_present")
    yield Measure("reasoning length, characters", mode, "mean_reasoning_chars", _ONE_DIGIT)
    yield Measure("equations written", mode, "mean_equations", decimal)
    yield Measure("total reward", mode, "mean_reward", decimal)
    yield Measure("response tokens", mode, "mean_response_tokens", _ONE_DIGIT)
    yield Measure("truncated", mode, "truncated")


def _titles(checkpoints: Iterable[str], skipped: frozenset[str]) -> tuple[str, ...]:
    """Column heads; a phase that was skipped is marked."""
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
    columns = [of.get(benchmark, {}) for of in metrics.values()]
    rows: list[tuple[str, ...]] = []
    strong = set()
    for measure in measures(columns[0]):
        numbers = [modes.get(measure.mode, {}) for modes in columns]
        if any(measure.name in of for of in numbers):
            if measure.strong:
                strong.add(len(rows))
            cells = (cell(of, measure.name, measure.format) for of in numbers)
            rows.append((measure.title, *cells))
    n = next((int(of["n"]) for of in columns[0].values() if "n" in of), 0)
    k = columns[0].get("sampled", {}).get("num_samples")
    title = f"{benchmark}, n = {n} problems" + (f", {k} samples each" if k else "")
    return Table(title, ("", *_titles(metrics, skipped)), tuple(rows), frozenset(strong))


def comparison_table(comparisons: Sequence[Comparison], benchmark: str) -> Table:
    """The paired differences, in points, with interval, p-value and what could have been seen."""
    rows = []
    for comparison in comparisons:
        change, interval = comparison.change, comparison.change.interval
        if comparison.benchmark == benchmark:
            rows.append(
                (
                    f"{comparison.before} → {comparison.after}, {comparison.mode}",
                    points(change.difference.value),
                    f"{points(interval.low)} … {points(interval.high)}",
                    p_value(change.p_value),
                    str(change.difference.n),
                    points(comparison.detectable).lstrip("+"),
                )
            )
    header = ("", "difference", "95 % interval", "p", "n", "detectable")
    return Table(f"{benchmark}, paired differences in percentage points", header, tuple(rows))


def breakdown(
    metrics: Mapping[str, Metrics],
    benchmark: str,
    group: str,
    *,
    skipped: frozenset[str] = frozenset(),
) -> Table | None:
    """Greedy answer accuracy by level, tag or subject; None where the metrics have no such group.

    Args:
        metrics: by checkpoint, in the order of the columns.
        benchmark: which benchmark.
        group: a key of `BREAKDOWNS`.
        skipped: phases that passed their checkpoint on unchanged.
    """
    mode, columns = _columns(metrics, benchmark)
    groups = [column.get(group, {}) for column in columns]
    rows = []
    for key in sorted(dict.fromkeys(key for of in groups for key in of), key=natural_order):
        n = next(int(of[key]["n"]) for of in groups if key in of)
        cells = (of.get(key, {}) for of in groups)
        rates = (cell(of, "answer_accuracy") for of in cells)
        rows.append((key, str(n), *rates))
    title = f"{benchmark} by {BREAKDOWNS[group]}, answer accuracy ({mode})"
    header = (BREAKDOWNS[group], "n", *_titles(metrics, skipped))
    return Table(title, header, tuple(rows)) if rows else None


def _columns(metrics: Mapping[str, Metrics], benchmark: str) -> tuple[str, list[Mapping[str, Any]]]:
    """The main mode of a benchmark, and each checkpoint's numbers in it."""
    modes = [of.get(benchmark, {}) for of in metrics.values()]
    mode = main_mode(modes[0])
    return mode, [of.get(mode, {}) for of in modes]


def natural_order(key: str) -> tuple[bool, float, str]:
    """Numbers before words, 2 before 10."""
    return (False, float(key), "") if key.isdecimal() else (True, 0.0, key)


def format_table(formats: Formats, benchmark: str) -> Table:
    """A benchmark in every prompt format, same weights.

    Strict accuracy counts an answer in the format's place only, answer accuracy one anywhere.
    """
    table = headline(formats.metrics, benchmark)
    kinds = ("answer accuracy", "pass@1", "strict", "format", "truncated")
    rows = tuple(row for row in table.rows if row[0].startswith(kinds))
    title = f"{formats.checkpoint} in other prompt formats, {table.title}"
    return Table(title, table.header, rows)


def class_table(
    metrics: Mapping[str, Metrics], benchmark: str, *, skipped: frozenset[str] = frozenset()
) -> Table:
    """Share of the four classes, format digit first, by checkpoint."""
    mode, columns = _columns(metrics, benchmark)
    rows = tuple(
        (f"{label} {meaning}", *(percent(column.get(f"class_{label}")) for column in columns))
        for label, meaning in CLASSES.items()
    )
    title = f"{benchmark}, four classes ({mode}, % of completions)"
    return Table(title, ("", *_titles(metrics, skipped)), rows)
