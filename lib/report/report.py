"""The report of a run: its content, and its files, one Markdown with figures and one HTML page."""

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lib.artifacts import replacing, write_metrics
from lib.artifacts.completions import GradedCompletion
from lib.params import preset_names, preset_params
from lib.report.charts import Figure, figure_svg
from lib.report.comparisons import (
    MEASURES,
    Comparison,
    alarms,
    compare_checkpoints,
    comparison_metrics,
    describe,
)
from lib.report.figures import report_figures, validation_sets
from lib.report.inputs import Curve, Run
from lib.report.page import render_page
from lib.report.tables import (
    BREAKDOWNS,
    breakdown,
    class_table,
    comparison_table,
    format_table,
    headline,
)
from lib.report.templates import render
from lib.report.text import (
    MISSING,
    Table,
    markdown_block,
    markdown_inline,
    markdown_table,
    percent,
    points,
)

NUM_TRANSCRIPTS = 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """The report's parts in reading order, before they are Markdown or HTML.

    Attributes:
        alarms: what must not be overlooked; empty when all is well.
        findings: the sentences that the numbers justify.
        caveats: what the findings do not show.
        skipped: the phases that did nothing.
        conditions: how the benchmarks were answered, and what another prompt changes.
        title, facts: what the page is headed by: the model, the preset, the run's fingerprint.
        validation: what validation measured at step 0 and at the end of each stage.
        provenance: what the numbers rest on: settings, versions, hashes of each stage's inputs.
    """

    title: str
    facts: Sequence[tuple[str, str]]
    exported: str
    validation: Table
    alarms: Sequence[str]
    findings: Sequence[str]
    caveats: Sequence[str]
    skipped: Sequence[str]
    headlines: Sequence[Table]
    differences: Sequence[Table]
    breakdowns: Sequence[Table]
    classes: Sequence[Table]
    figures: Sequence[Figure]
    transcripts: Sequence[GradedCompletion]
    conditions: Sequence[Table]
    provenance: Sequence[Table]
    comparisons: Sequence[Comparison]


def write_report(run: Run, *, markdown: Path, figures: Path, page: Path, metrics: Path) -> Report:
    """Build the report of `run` and write it in all its forms.

    Args:
        run: what the stages wrote.
        markdown: `report.md`; `figures` lies beside it.
        figures: folder of the SVG files; what else lies in it is removed.
        page: `report.html`.
        metrics: the paired differences as numbers.

    Returns:
        What was written, for the terminal.
    """
    report = build_report(run)
    with replacing(figures) as folder:
        folder.mkdir()
        for figure in report.figures:
            (folder / f"{figure.name}.svg").write_text(figure_svg(figure), encoding="utf-8")
    for path, text in (
        (markdown, render_markdown(report, figures=figures.name)),
        (page, render_page(report, run)),
    ):
        with replacing(path) as partial:
            partial.write_text(text, encoding="utf-8")
    write_metrics(metrics, comparison_metrics(report.comparisons) | exported_metrics(run))
    return report


def render_markdown(report: Report, *, figures: str) -> str:
    """`report.md`, for terminals, pull requests and the web view of the repository.

    Args:
        figures: folder of the SVG files, relative to the report.
    """
    return render(
        "report.md.j2",
        autoescape=False,
        report=report,
        figures=figures,
        table=markdown_table,
        inline=markdown_inline,
        block=markdown_block,
    )


def build_report(run: Run) -> Report:
    """The whole content of the report of a run."""
    comparisons, skipped = compare_checkpoints(run), run.skipped
    metrics, untrained = {name: run.metrics[name] for name in run.checkpoints}, run.checkpoints[0]
    tables = [
        breakdown(metrics, benchmark, group, skipped=skipped)
        for benchmark in run.benchmarks
        for group in BREAKDOWNS
    ]
    settings = settings_of(run.provenance)
    preset, preset_values = nearest_preset(settings) if run.trained else ("", {})
    changed = changes_of(settings, preset_values)
    classes = [class_table(metrics, benchmark, skipped=skipped) for benchmark in run.benchmarks]
    judged = alarms(comparisons, untrained=untrained) if run.trained else ()
    # Of many models and benchmarks, sentences on the first benchmark; the tables have all.
    told = [
        comparison
        for comparison in comparisons
        if comparison.after not in skipped
        and (
            comparison.before != untrained
            if run.trained
            else comparison.benchmark == run.benchmarks[0]
        )
    ]
    return Report(
        title="What training changed" if run.trained else "Models on the same problems",
        facts=list(run_facts(run, settings, preset=preset, num_changed=len(changed))),
        exported=run.exported,
        validation=validation_table(run.validations),
        alarms=[*judged, *training_warnings(run.provenance)],
        findings=[f"{of.before} → {of.after}: {describe(of)}" for of in told],
        caveats=list(caveats(comparisons, run)),
        skipped=sorted(skipped),
        headlines=[headline(metrics, benchmark, skipped=skipped) for benchmark in run.benchmarks],
        differences=[comparison_table(comparisons, benchmark) for benchmark in run.benchmarks],
        breakdowns=[table for table in tables if table],
        # Where nothing has a grade, it has no class.
        classes=[of for of in classes if any(set(row[1:]) != {MISSING} for row in of.rows)],
        figures=report_figures(run),
        transcripts=select_transcripts(run),
        conditions=list(conditions(run)),
        provenance=list(provenance_tables(run, preset=preset, preset_values=preset_values)),
        comparisons=comparisons,
    )


def exported_metrics(run: Run) -> dict[str, dict[str, float]]:
    """What the exported checkpoint came to on the first benchmark.

    No other file has these keys, so `dvc exp show` names their columns without the file.
    """
    modes = run.modes(run.exported, run.benchmarks[0])
    measured = {
        name: modes[mode][name] for mode, name in MEASURES.items() if name in modes.get(mode, {})
    }
    return {"exported": measured} if measured else {}


def training_warnings(provenance: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """What a stage was warned of while it trained, and since which step."""
    for stage, record in provenance.items():
        for warning in record.get("warnings", []):
            yield f"{stage.upper()}, FROM STEP {warning['step']}: {warning['text']}."


def caveats(comparisons: Sequence[Comparison], run: Run) -> Iterator[str]:
    """What qualifies a gain, so that it is not read as more than it is."""
    bare = run.stage_metrics.get("prepare", {}).get("bare_answer_share", 0.0)
    gained = any(
        comparison.after == "grpo" and comparison.change.is_better() for comparison in comparisons
    )
    if bare > 0 and gained:
        yield (
            f"{percent(bare)} % of the SFT targets give the bare answer, the others the working "
            "too. So the demonstrations mix two strategies, and reinforcement picks the better "
            "one. Whether it beats good demonstrations is another question: compare with SFT on "
            "complete workings alone (prepare.synthetic.bare_answer_rate set to 0)."
        )


def select_transcripts(run: Run) -> list[GradedCompletion]:
    """Five right and five wrong completions of the exported checkpoint, spread over the file.

    Greedy ones of the first benchmark; where one kind has fewer than five, more of the other.
    """
    rows = [row for row in run.completions[run.exported] if row.benchmark == run.benchmarks[0]]
    greedy = [row for row in rows if row.mode == "greedy"] or rows
    right = [row for row in greedy if row.answer_ok]
    wrong = [row for row in greedy if not row.answer_ok]
    half = NUM_TRANSCRIPTS // 2
    num_right = min(len(right), max(half, NUM_TRANSCRIPTS - len(wrong)))
    return _spread(right, num_right) + _spread(wrong, NUM_TRANSCRIPTS - num_right)


def _spread(rows: Sequence[GradedCompletion], count: int) -> list[GradedCompletion]:
    """`count` rows (or all, if fewer) at equal distances."""
    count = min(count, len(rows))
    return [rows[index * len(rows) // count] for index in range(count)]


def conditions(run: Run) -> Iterator[Table]:
    """Decoding by benchmark and mode as the first checkpoint's provenance has it, other formats."""
    record = run.provenance.get(f"evaluate/{run.checkpoints[0]}", {})
    rows = tuple(
        (
            f"{benchmark}, {mode}",
            str(sampling["num_problems"]),
            str(sampling["num_completions"]),
            f"{sampling['temperature']:g}",
            f"{sampling['top_p']:g}",
            str(sampling["max_new_tokens"]),
        )
        for benchmark in run.benchmarks
        for mode, sampling in record.get("sampling", {}).get(benchmark, {}).items()
    )
    header = ("", "problems", "completions each", "temperature", "top-p", "tokens at most")
    if rows:
        yield Table("How each benchmark was answered", header, rows)
    if run.formats:
        yield format_table(run.formats, run.benchmarks[0])


def settings_of(
    provenance: Mapping[str, Mapping[str, Any]], name: str = "settings"
) -> dict[str, str]:
    """By dotted key, sorted; where stages disagree (they ran at different times), every value."""
    values: dict[str, dict[str, None]] = {}
    for record in provenance.values():
        for key, value in _leaves(record.get(name, {})):
            values.setdefault(key, {})[value] = None
    return {key: " / ".join(values[key]) for key in sorted(values)}


def nearest_preset(settings: Mapping[str, str]) -> tuple[str, Mapping[str, str]]:
    """The preset that the fewest settings differ from, and its values by dotted key."""
    presets = {
        name: dict(_leaves(preset_params(name).model_dump(mode="json"))) for name in preset_names()
    }
    best = min(presets, key=lambda name: (len(changes_of(settings, presets[name])), name))
    return best, presets[best]


def changes_of(settings: Mapping[str, str], preset: Mapping[str, str]) -> list[str]:
    """The keys whose value is not the preset's."""
    return [key for key, value in settings.items() if key in preset and preset[key] != value]


def run_facts(
    run: Run, settings: Mapping[str, str], *, preset: str, num_changed: int
) -> Iterator[tuple[str, str]]:
    """What a reader of many reports tells them apart by. No clock: the page asks its file's."""
    if run.trained:
        name, revision = settings.get("model.name", ""), settings.get("model.revision", "")
        sizes = [settings.get(f"model.tiny.{size}", "?") for size in ("num_layers", "hidden_size")]
        tiny = "tiny Qwen3, {} layers of {}".format(*sizes)
        yield "model", f"{name}@{revision}" if revision else name or tiny
        changes = f"{num_changed} change{'s' if num_changed > 1 else ''}"
        yield "preset", f"{preset} with {changes}" if num_changed else preset
    yield "seed", settings.get("seed", "?")
    known = json.dumps(run.provenance, sort_keys=True).encode()
    yield "run", hashlib.sha256(known).hexdigest()[:12]


def validation_table(validations: Mapping[str, Curve]) -> Table:
    """Answer accuracy at the first step that was measured and at the last one."""
    rows = []
    for stage, curve in validations.items():
        for benchmark, values in validation_sets(curve).items():
            ends = [
                percent(value) + (f" ± {percent(error)}" if error > 0 else "") + f" (step {step})"
                for (step, value), error in (values[0], values[-1])
            ]
            change = points(values[-1][0][1] - values[0][0][1])
            rows.append((f"{stage} {benchmark}".strip(), *ends, change))
    header = ("", "first", "last", "change")
    return Table("Validation, greedy answer accuracy in %", header, tuple(rows))


def provenance_tables(
    run: Run, *, preset: str, preset_values: Mapping[str, str]
) -> Iterator[Table]:
    """Settings and versions once for all stages, the hashes of what each stage read, its numbers.

    What differs from the nearest preset comes first, with the preset's value beside it.
    """
    settings = settings_of(run.provenance)
    changed = changes_of(settings, preset_values)
    rows = [
        (key, settings[key], *([preset_values[key] if key in changed else ""] if preset else []))
        for key in sorted(settings, key=lambda key: (key not in changed, key))
    ]
    header = ("key", "value", *([f"preset {preset}"] if preset else []))
    yield Table("settings", header, tuple(rows), frozenset(range(len(changed))))
    versions = settings_of(run.provenance, "versions")
    yield Table("versions", ("key", "value"), tuple(versions.items()))
    inputs = {stage: record.get("inputs", {}) for stage, record in run.provenance.items()}
    yield _by_stage("inputs", ("stage ← what it read", "hash"), inputs, " ← ")
    yield _by_stage("stages", ("metric", "value"), run.stage_metrics, " ")


def _by_stage(
    title: str, header: tuple[str, ...], trees: Mapping[str, Mapping[str, Any]], between: str
) -> Table:
    rows = tuple(
        (f"{stage}{between}{key}", value)
        for stage, tree in trees.items()
        for key, value in _leaves(tree)
    )
    return Table(title, header, rows)


def _leaves(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Leaves by dotted key; a list is one leaf."""
    if isinstance(value, Mapping):
        for name in sorted(value):
            yield from _leaves(value[name], f"{key}.{name}" if key else name)
    else:
        entries = value if isinstance(value, list) else [value]
        # The order of a mapping's keys, which a file sorts, is no part of its value.
        nested = (json.dumps(e, sort_keys=True) if isinstance(e, Mapping) else e for e in entries)
        yield key, ", ".join(map(str, nested))
