"""What the report says, before it is Markdown or HTML."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lib.completions import GradedCompletion
from lib.report.charts import Figure
from lib.report.comparisons import Comparison, alarms, compare_checkpoints, describe
from lib.report.figures import report_figures
from lib.report.inputs import Run
from lib.report.tables import (
    BREAKDOWNS,
    Table,
    breakdown,
    class_table,
    comparison_table,
    format_table,
    headline,
)
from lib.report.text import percent

NUM_TRANSCRIPTS = 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """The report's parts in reading order.

    Attributes:
        alarms: what must not be overlooked; empty when all is well.
        findings: the sentences that the numbers justify.
        caveats: what the findings do not show.
        skipped: the phases that did nothing.
        conditions: how the benchmarks were answered, and what another prompt changes.
        provenance: what the numbers rest on: settings, versions, hashes of each stage's inputs.
    """

    exported: str
    alarms: tuple[str, ...]
    findings: tuple[str, ...]
    caveats: tuple[str, ...]
    skipped: tuple[str, ...]
    headlines: tuple[Table, ...]
    differences: tuple[Table, ...]
    breakdowns: tuple[Table, ...]
    classes: tuple[Table, ...]
    figures: tuple[Figure, ...]
    transcripts: tuple[GradedCompletion, ...]
    conditions: tuple[Table, ...]
    provenance: tuple[Table, ...]
    comparisons: tuple[Comparison, ...]


def build_report(run: Run) -> Report:
    """Everything that the report says about a run."""
    comparisons = compare_checkpoints(run)
    metrics = {name: run.metrics[name] for name in run.checkpoints}
    tables = [
        breakdown(run, benchmark, group) for benchmark in run.benchmarks for group in BREAKDOWNS
    ]
    return Report(
        exported=run.exported,
        alarms=(
            *alarms(comparisons, untrained=run.checkpoints[0]),
            *training_warnings(run.provenance),
        ),
        findings=tuple(findings(comparisons, run)),
        caveats=tuple(caveats(comparisons, run)),
        skipped=tuple(sorted(run.skipped)),
        headlines=tuple(
            headline(metrics, benchmark, skipped=run.skipped) for benchmark in run.benchmarks
        ),
        differences=tuple(comparison_table(comparisons, benchmark) for benchmark in run.benchmarks),
        breakdowns=tuple(table for table in tables if table),
        classes=tuple(class_table(run, benchmark) for benchmark in run.benchmarks),
        figures=tuple(report_figures(run)),
        transcripts=tuple(choose_transcripts(run)),
        conditions=tuple(conditions(run)),
        provenance=(*provenance_tables(run.provenance), stage_table(run.stage_metrics)),
        comparisons=tuple(comparisons),
    )


def training_warnings(provenance: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """What a stage was warned of while it trained, and since which step."""
    for stage, noted in provenance.items():
        for warning in noted.get("warnings", []):
            yield f"{stage.upper()}, FROM STEP {warning['step']}: {warning['text']}."


def findings(comparisons: Sequence[Comparison], run: Run) -> Iterator[str]:
    """What happened from each trained checkpoint to the next, in words."""
    for comparison in comparisons:
        if comparison.before != run.checkpoints[0] and comparison.after not in run.skipped:
            yield f"{comparison.before} → {comparison.after}: {describe(comparison)}"


def caveats(comparisons: Sequence[Comparison], run: Run) -> Iterator[str]:
    """What must be said beside a gain, lest it be read as more than it is."""
    bare = run.stage_metrics["prepare"].get("bare_answer_share", 0.0)
    gained = any(
        comparison.after == "grpo" and comparison.found.is_better() for comparison in comparisons
    )
    if bare > 0 and gained:
        yield (
            f"{percent(bare)} % of the SFT targets give the bare answer, the others the working "
            "too. So the demonstrations mix two strategies, and reinforcement picks the better "
            "one. Whether it beats good demonstrations is another question: compare with SFT on "
            "complete workings alone (prepare.synthetic.bare_answer_rate set to 0)."
        )


def choose_transcripts(run: Run) -> list[GradedCompletion]:
    """Five right and five wrong completions of the exported checkpoint, spread over the file.

    Greedy ones of the first benchmark; where one kind has fewer than five, more of the other.
    """
    rows = [row for row in run.completions[run.exported] if row.benchmark == run.benchmarks[0]]
    greedy = [row for row in rows if row.mode == "greedy"] or rows
    right = [row for row in greedy if row.answer_ok]
    wrong = [row for row in greedy if not row.answer_ok]
    half = NUM_TRANSCRIPTS // 2
    num_right = min(len(right), max(half, NUM_TRANSCRIPTS - len(wrong)))
    return spread(right, num_right) + spread(wrong, NUM_TRANSCRIPTS - num_right)


def spread(rows: Sequence[GradedCompletion], count: int) -> list[GradedCompletion]:
    """`count` rows (or all, if fewer) at equal distances."""
    count = min(count, len(rows))
    return [rows[index * len(rows) // count] for index in range(count)]


def conditions(run: Run) -> Iterator[Table]:
    """Decoding by benchmark and mode as the first checkpoint's provenance has it, other formats."""
    noted = run.provenance.get(f"evaluate/{run.checkpoints[0]}", {})
    rows = tuple(
        (
            f"{benchmark}, {mode}",
            str(drawn["num_problems"]),
            str(drawn["num_completions"]),
            f"{drawn['temperature']:g}",
            f"{drawn['top_p']:g}",
            str(drawn["max_new_tokens"]),
        )
        for benchmark in run.benchmarks
        for mode, drawn in noted.get("sampling", {}).get(benchmark, {}).items()
    )
    header = ("", "problems", "completions each", "temperature", "top-p", "tokens at most")
    if rows:
        yield Table("How each benchmark was answered", header, rows)
    if formats := format_table(run):
        yield formats


def provenance_tables(provenance: Mapping[str, Mapping[str, Any]]) -> Iterator[Table]:
    """Settings and versions once for all stages, and the hashes of what each stage read.

    Where stages disagree on a setting (they ran at different times), every value is shown.
    """
    for name in ("settings", "versions"):
        values: dict[str, dict[str, None]] = {}
        for noted in provenance.values():
            for key, value in _flat(noted.get(name, {})):
                values.setdefault(key, {})[value] = None
        rows = tuple((key, " / ".join(values[key])) for key in sorted(values))
        yield Table(name, ("key", "value"), rows)
    rows = tuple(
        (f"{stage} ← {key}", value)
        for stage, noted in provenance.items()
        for key, value in _flat(noted.get("inputs", {}))
    )
    yield Table("inputs", ("stage ← what it read", "hash"), rows)


def stage_table(stage_metrics: Mapping[str, Mapping[str, Any]]) -> Table:
    """The flat numbers of the stages: sizes of the sets, where the curves ended."""
    rows = tuple(
        (f"{stage} {key}", value)
        for stage, numbers in stage_metrics.items()
        for key, value in _flat(numbers)
    )
    return Table("stages", ("metric", "value"), rows)


def _flat(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Leaves by dotted key; a list is one leaf."""
    if isinstance(value, Mapping):
        for name in sorted(value):
            yield from _flat(value[name], f"{key}.{name}" if key else name)
    else:
        entries = value if isinstance(value, list) else [value]
        yield key, ", ".join(str(entry) for entry in entries)
