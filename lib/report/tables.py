"""The report's tables, as text in cells; Markdown, HTML and the terminal print the same ones."""

import dataclasses
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from lib.artifacts.completions import GREEDY, SAMPLED
from lib.report.comparisons import Comparison
from lib.report.inputs import Metrics
from lib.report.text import Table, cell, decimal, p_value, percent, points
from lib.verifier.readings import DESCRIPTIONS

Columns = dict[str, Mapping[str, Any]]
"""By checkpoint, in the order of the columns: its numbers on one benchmark in one mode."""


@dataclasses.dataclass(frozen=True)
class Measure:
    """A row of the headline table: where its number is in the metrics, and how it is printed."""

    title: str
    mode: str
    name: str
    form: Callable[..., str] = percent
    strong: bool = False


CLASSES = {
    "11": "format right, answer right",
    "10": "format right, answer wrong",
    "01": "format wrong, answer right",
    "00": "format wrong, answer wrong",
}
REASONS = DESCRIPTIONS | {
    "not graded": "nothing here has a right answer; a judge compares such completions elsewhere",
}
"""What decided a grade (`decided_by`, docs/verifier.md), in words for a reader."""

_ONE_DIGIT = partial(decimal, digits=1)

BREAKDOWNS = {"by_level": "level", "by_tag": "tag", "by_subject": "subject"}


def measures(metrics: Mapping[str, Metrics], benchmark: str) -> Iterator[tuple[Measure, Columns]]:
    """The rows that the metrics can fill, each with everybody's numbers."""
    mode, columns = main_mode(metrics, benchmark)
    k = num_samples(metrics, benchmark)
    rows = [
        Measure("answer accuracy, greedy", GREEDY, "answer_accuracy", strong=True),
        Measure("pass@1, sampled", SAMPLED, "pass_at_1", strong=True),
        Measure(f"pass@{k}, sampled", SAMPLED, f"pass_at_{k}"),
        Measure(f"pass^{k}, sampled", SAMPLED, f"pass_hat_{k}"),
        Measure(f"maj@{k}, sampled", SAMPLED, f"maj_at_{k}"),
        Measure("strict answer accuracy", mode, "strict_accuracy"),
        Measure("format accuracy", mode, "format_accuracy"),
        Measure("reasoning present", mode, "reasoning_present"),
        Measure("reasoning length, characters", mode, "mean_reasoning_chars", _ONE_DIGIT),
        Measure("equations written", mode, "mean_equations", decimal),
        Measure("total reward", mode, "mean_reward", decimal),
        Measure("response tokens", mode, "mean_response_tokens", _ONE_DIGIT),
        Measure("truncated", mode, "truncated"),
    ]
    if k < 2:  # of one sample all three are pass@1 again
        del rows[2:5]
    for row in rows:
        columns = numbers_of(metrics, benchmark, row.mode)
        if any(row.name in numbers for numbers in columns.values()):
            yield row, columns


def num_samples(metrics: Mapping[str, Metrics], benchmark: str) -> int:
    """How often each problem was sampled."""
    columns = numbers_of(metrics, benchmark, SAMPLED).values()
    return max(int(of.get("num_samples", 0)) for of in columns)


def numbers_of(metrics: Mapping[str, Metrics], benchmark: str, mode: str) -> Columns:
    """Everybody's numbers on a benchmark in a mode; nothing where it was not measured."""
    return {name: of.get(benchmark, {}).get(mode, {}) for name, of in metrics.items()}


def main_mode(metrics: Mapping[str, Metrics], benchmark: str) -> tuple[str, Columns]:
    """What a benchmark is broken down in, greedy where it was answered so, and its numbers."""
    columns = numbers_of(metrics, benchmark, GREEDY)
    if any(columns.values()):
        return GREEDY, columns
    return SAMPLED, numbers_of(metrics, benchmark, SAMPLED)


def groups_of(columns: Columns, group: str) -> Iterator[tuple[str, Columns]]:
    """Each level, tag or subject with everybody's numbers; nothing where one has it not.

    Args:
        group: a key of `BREAKDOWNS`.
    """
    groups = {name: of.get(group, {}) for name, of in columns.items()}
    for key in sorted({key for of in groups.values() for key in of}, key=natural_order):
        yield key, {name: of.get(key, {}) for name, of in groups.items()}


def titled(metrics: Mapping[str, Metrics], skipped: Container[str]) -> dict[str, Metrics]:
    """By column head; a phase that passed its checkpoint on unchanged is marked."""
    return {f"{of} (skipped)" if of in skipped else of: metrics[of] for of in metrics}


def headline(metrics: Mapping[str, Metrics], benchmark: str) -> Table:
    """Measures down, columns of `metrics` across; every rate with its standard error."""
    rows = list(measures(metrics, benchmark))
    n = problems_of(main_mode(metrics, benchmark)[1])
    k = num_samples(metrics, benchmark)
    return Table(
        f"{benchmark}, n = {n} problems" + (f", {k} samples each" if k else ""),
        ("", *metrics),
        tuple(
            (row.title, *(cell(numbers, row.name, row.form) for numbers in columns.values()))
            for row, columns in rows
        ),
        frozenset(number for number, (row, _) in enumerate(rows) if row.strong),
    )


def problems_of(columns: Columns) -> int:
    """How many problems the numbers are of."""
    return next((int(of["n"]) for of in columns.values() if "n" in of), 0)


def comparison_table(
    benchmark: str, comparisons: Sequence[Comparison], *, title: str = ""
) -> Table:
    """The differences, in points, with interval, p-value and what could have been seen."""
    rows = tuple(
        (
            f"{of.before} → {of.after}, {of.mode}",
            points(of.change.difference.value),
            f"{points(of.change.interval.low)} … {points(of.change.interval.high)}",
            p_value(of.change.p_value),
            str(of.change.difference.n),
            points(of.detectable).lstrip("+"),
        )
        for of in comparisons
        if of.benchmark == benchmark
    )
    header = ("", "difference", "95 % interval", "p", "n", "detectable")
    title = title or f"{benchmark}, paired"
    return Table(f"{title} differences in percentage points", header, rows)


def breakdown(metrics: Mapping[str, Metrics], benchmark: str, group: str) -> Table:
    """Answer accuracy by level, tag or subject; no rows where the metrics have no such group."""
    mode, columns = main_mode(metrics, benchmark)
    rows = tuple(
        (
            key,
            str(problems_of(of)),
            *(cell(each, "answer_accuracy", percent) for each in of.values()),
        )
        for key, of in groups_of(columns, group)
    )
    title = f"{benchmark} by {BREAKDOWNS[group]}, answer accuracy ({mode})"
    return Table(title, (BREAKDOWNS[group], "n", *metrics), rows)


def natural_order(key: str) -> tuple[bool, float, str]:
    """Numbers before words, 2 before 10."""
    return (False, float(key), "") if key.isdecimal() else (True, 0.0, key)


def class_table(metrics: Mapping[str, Metrics], benchmark: str) -> Table:
    """Share of the four classes, format digit first."""
    mode, columns = main_mode(metrics, benchmark)
    rows = tuple(
        (f"{label} {meaning}", *(percent(of.get(f"class_{label}")) for of in columns.values()))
        for label, meaning in CLASSES.items()
    )
    title = f"{benchmark}, four classes ({mode}, % of completions)"
    return Table(title, ("", *metrics), rows)
