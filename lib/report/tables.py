"""The report's tables as text in cells, for Markdown, HTML and the terminal."""

import dataclasses
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from lib.artifacts.completions import GREEDY, SAMPLED
from lib.report.comparisons import Comparison, verdict
from lib.report.inputs import Metrics
from lib.report.text import Table, cell, decimal, p_value, percent, points
from reckon_verifier.rules import DESCRIPTIONS

Columns = dict[str, Mapping[str, Any]]
"""Checkpoint → its numbers on one benchmark in one mode, in the order of the columns."""


@dataclasses.dataclass(frozen=True)
class Measure:
    """A row of the headline table: its place in the metrics, and its format.

    Attributes:
        title: the row's first cell.
        mode: "greedy" or "sampled".
        name: key of the number in the metrics of that mode.
        form: formats (number, standard error, number of problems).
        strong: True for a row printed bold.
    """

    title: str
    mode: str
    name: str
    form: Callable[..., str] = percent
    strong: bool = False


# The first digit is the format, the second the answer; 1 is right.
CLASSES = {
    "11": "format right, answer right",
    "10": "format right, answer wrong",
    "01": "format wrong, answer right",
    "00": "format wrong, answer wrong",
}
REASONS = DESCRIPTIONS | {
    "task": "the task's own verdict, `right` of its file in plugins/tasks",
    "not graded": "the problem has no reference answer; completions go to a judge elsewhere",
}
"""`decided_by` (reckon_verifier/README.md) → explanation for a reader."""

_ONE_DIGIT = partial(decimal, digits=1)

BREAKDOWNS = {"by_level": "level", "by_tag": "tag", "by_subject": "subject"}
"""Key in the metrics → the word for it in titles."""


def measures(metrics: Mapping[str, Metrics], benchmark: str) -> Iterator[tuple[Measure, Columns]]:
    """Yield the rows of the headline table, each with all checkpoints' numbers in its mode.

    Rows that no checkpoint has measured are left out.
    """
    mode, _ = main_mode(metrics, benchmark)
    # With one sample, pass@k, pass^k and maj@k all equal pass@1.
    attempts = [k for k in sample_counts(metrics, benchmark) if k > 1]
    rows = [
        Measure("answer accuracy, greedy", GREEDY, "answer_accuracy", strong=True),
        Measure("pass@1, sampled", SAMPLED, "pass_at_1", strong=True),
        *(Measure(f"pass@{k}, sampled", SAMPLED, f"pass_at_{k}") for k in attempts),
        *(Measure(f"pass^{k}, sampled", SAMPLED, f"pass_hat_{k}") for k in attempts),
        *(Measure(f"maj@{k}, sampled", SAMPLED, f"maj_at_{k}") for k in attempts),
        Measure("strict answer accuracy", mode, "strict_accuracy"),
        Measure("format accuracy", mode, "format_accuracy"),
        Measure("reasoning present", mode, "reasoning_present"),
        Measure("reasoning length, characters", mode, "mean_reasoning_chars", _ONE_DIGIT),
        Measure("equations written", mode, "mean_equations", decimal),
        Measure("calls of the tool", mode, "mean_calls", decimal),
        Measure("wrong calls, of all calls", mode, "wrong_calls"),
        Measure("right answers with a call", mode, "right_with_call"),
        Measure("total reward", mode, "mean_reward", decimal),
        Measure("response tokens", mode, "mean_response_tokens", _ONE_DIGIT),
        Measure("truncated", mode, "truncated"),
    ]
    for row in rows:
        columns = numbers_of(metrics, benchmark, row.mode)
        if any(row.name in numbers for numbers in columns.values()):
            yield row, columns


def sample_counts(metrics: Mapping[str, Metrics], benchmark: str) -> list[int]:
    """Return the distinct numbers of samples per problem, ascending; several if models differ."""
    columns = numbers_of(metrics, benchmark, SAMPLED).values()
    return sorted({int(numbers["num_samples"]) for numbers in columns if "num_samples" in numbers})


def numbers_of(metrics: Mapping[str, Metrics], benchmark: str, mode: str) -> Columns:
    """Return all checkpoints' numbers on a benchmark in a mode; {} for one that has none."""
    return {name: sets.get(benchmark, {}).get(mode, {}) for name, sets in metrics.items()}


def main_mode(metrics: Mapping[str, Metrics], benchmark: str) -> tuple[str, Columns]:
    """Return the mode of a benchmark's breakdowns, greedy if measured, and its numbers."""
    columns = numbers_of(metrics, benchmark, GREEDY)
    if any(columns.values()):
        return GREEDY, columns
    return SAMPLED, numbers_of(metrics, benchmark, SAMPLED)


def groups_of(columns: Columns, group: str) -> Iterator[tuple[str, Columns]]:
    """Yield each level, tag or subject with its numbers by checkpoint, numbers before words.

    ("2", {"sft": {"answer_accuracy": 0.4, …}, "grpo": {…}}); {} for a checkpoint that answered no
    such problem.

    Args:
        columns: checkpoint → its numbers on the whole benchmark.
        group: "by_level", "by_tag" or "by_subject".
    """
    groups = {name: numbers.get(group, {}) for name, numbers in columns.items()}
    keys = {key for by_key in groups.values() for key in by_key}
    for key in sorted(keys, key=natural_order):
        yield key, {name: by_key.get(key, {}) for name, by_key in groups.items()}


def mark_skipped(metrics: Mapping[str, Metrics], skipped: Container[str]) -> dict[str, Metrics]:
    """Return the metrics with " (skipped)" after the names of skipped phases' checkpoints."""
    return {f"{name} (skipped)" if name in skipped else name: metrics[name] for name in metrics}


def headline_table(metrics: Mapping[str, Metrics], benchmark: str) -> Table:
    """Build the headline table: a row per measure, a column per checkpoint.

    Cells of rates have their standard errors: "61.6 ± 2.2".
    """
    rows = list(measures(metrics, benchmark))
    _, all_numbers = main_mode(metrics, benchmark)
    title = f"{benchmark}, n = {problems_of(all_numbers)} problems"
    samples = " or ".join(map(str, sample_counts(metrics, benchmark)))
    if samples:
        title += f", {samples} samples each"
    return Table(
        title,
        ("", *metrics),
        tuple(
            (row.title, *(cell(numbers, row.name, row.form) for numbers in columns.values()))
            for row, columns in rows
        ),
        strong=frozenset(index for index, (row, _) in enumerate(rows) if row.strong),
    )


def problems_of(columns: Columns) -> int:
    """Return the number of problems of the rates, from the first checkpoint with one; else 0."""
    return next((int(numbers["n"]) for numbers in columns.values() if "n" in numbers), 0)


def comparison_table(
    benchmark: str, comparisons: Sequence[Comparison], *, title: str = ""
) -> Table:
    """Build the table of a benchmark's differences in percentage points: a row per comparison.

    Columns: difference, interval, p-value, number of problems, smallest detectable difference, and
    verdict.

    Args:
        comparisons: of any benchmarks; only those of `benchmark` are listed.
        title: beginning of the table's title; '' for "<benchmark>, paired".
    """
    rows = tuple(
        (
            f"{each.before} → {each.after}, {each.mode}",
            points(each.change.difference.value),
            f"{points(each.change.interval.low)} … {points(each.change.interval.high)}",
            p_value(each.change.p_value).lstrip("= "),
            str(each.change.difference.n),
            points(each.change.detectable).lstrip("+"),
            verdict(each, among=len(comparisons)),
        )
        for each in comparisons
        if each.benchmark == benchmark
    )
    header = ("", "difference", "95 % interval", "p", "n", "detectable", "verdict")
    title = title or f"{benchmark}, paired"
    return Table(f"{title} differences in percentage points", header, rows)


def breakdown(metrics: Mapping[str, Metrics], benchmark: str, group: str) -> Table:
    """Build the table of answer accuracy by level, tag or subject: a row each.

    It has no rows if the problems have no levels, tags or subjects.

    Args:
        group: "by_level", "by_tag" or "by_subject".
    """
    mode, columns = main_mode(metrics, benchmark)
    rows = tuple(
        (
            level,
            str(problems_of(level_columns)),
            *(cell(each, "answer_accuracy", percent) for each in level_columns.values()),
        )
        for level, level_columns in groups_of(columns, group)
    )
    title = f"{benchmark} by {BREAKDOWNS[group]}, answer accuracy ({mode})"
    return Table(title, (BREAKDOWNS[group], "n", *metrics), rows)


def natural_order(key: str) -> tuple[bool, float, str]:
    """Return a sort key: numbers before words, 2 before 10."""
    # Tuples of one shape, since Python cannot compare a number with a word.
    return (False, float(key), "") if key.isdecimal() else (True, 0.0, key)


def class_table(metrics: Mapping[str, Metrics], benchmark: str) -> Table:
    """Build the table of the four classes of completions: a row per class, shares in percent.

    It has no rows if the problems have no references, so that nothing is graded.
    """
    mode, columns = main_mode(metrics, benchmark)
    rows = tuple(
        (f"{digits} {text}", *(percent(each.get(f"class_{digits}")) for each in columns.values()))
        for digits, text in CLASSES.items()
        if any(f"class_{digits}" in each for each in columns.values())
    )
    title = f"{benchmark}, four classes ({mode}, % of completions)"
    return Table(title, ("", *metrics), rows)
