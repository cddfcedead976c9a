"""The content of a run's report as texts, tables and figures, before Markdown or HTML.

`build_report` computes it once; `write.py` and `page.py` render it.
"""

import dataclasses
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flatten_dict import flatten

from lib.artifacts import hash_json
from lib.artifacts.completions import GREEDY, UNGRADED, GradedCompletion, describe_selection
from lib.params.presets import nearest_preset
from lib.params.schema import by_dotted_key
from lib.report.charts import Figure
from lib.report.comparisons import Comparison, alarms, compare_checkpoints, describe
from lib.report.figures import report_figures
from lib.report.inputs import Run
from lib.report.tables import (
    BREAKDOWNS,
    breakdown,
    class_table,
    comparison_table,
    headline_table,
    mark_skipped,
)
from lib.report.text import Table, percent

NUM_TRANSCRIPTS = 5
"""Number of right completions that are shown, and number of wrong ones."""

Preset = tuple[str, Mapping[str, Any], Sequence[str]]
"""The preset nearest to the settings: its name, its values, and the keys that differ."""


@dataclasses.dataclass(frozen=True)
class Example:
    """One problem with every checkpoint's answer, and a caption."""

    caption: str
    answers: Mapping[str, GradedCompletion]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """The report's parts in reading order.

    Attributes:
        facts: the page's header: model, preset, seed, device, the run's fingerprint.
        alarms: rates that fell beyond noise, and training warnings; usually empty.
        example: one problem, answered by all checkpoints; None if there is no such problem.
        findings: sentences on the differences.
        caveats: limits of the findings.
        headlines: a table of rates for each benchmark.
        differences: a table of paired differences for each benchmark.
        breakdowns: tables of answer accuracy by level, tag and subject.
        classes: a table of the four classes for each benchmark.
        transcripts: right and wrong completions to read.
        provenance: settings, versions, hashes of each stage's inputs, stage metrics.
    """

    run: Run
    facts: Sequence[tuple[str, str]]
    alarms: Sequence[str]
    example: Example | None
    findings: Sequence[str]
    caveats: Sequence[str]
    headlines: Sequence[Table]
    differences: Sequence[Table]
    figures: Sequence[Figure]
    breakdowns: Sequence[Table]
    classes: Sequence[Table]
    transcripts: Sequence[GradedCompletion]
    provenance: Sequence[Table]
    comparisons: Sequence[Comparison]


def build_report(run: Run) -> Report:
    """Build the whole content of a run's report."""
    comparisons = compare_checkpoints(run)
    metrics, sets = mark_skipped(run.metrics, run.skipped), run.benchmarks
    # Each comparison in `findings` becomes a sentence. Those in `judged`, only of the headline
    # benchmark sets[0], raise an alarm if the later checkpoint is significantly worse.
    if run.trained:  # the checkpoints of one pipeline run, not unrelated models
        # The phase that starts from the untrained checkpoint, which has no parent, is in neither:
        # it teaches a format, and may cost right answers.
        findings = [each for each in comparisons if each.before in run.starts]
        judged = [each for each in findings if each.benchmark == sets[0]]
    else:
        findings, judged = [each for each in comparisons if each.benchmark == sets[0]], []
    settings = _merged(run.provenance, "settings")
    preset = nearest_preset(settings, shown=_text) if run.trained else None
    breakdowns = [breakdown(metrics, name, by) for name in sets for by in BREAKDOWNS]
    classes = [class_table(metrics, name) for name in sets]
    return Report(
        run=run,
        facts=list(facts(run, settings, preset)),
        alarms=[*alarms(judged), *training_warnings(run.provenance)],
        example=select_example(run),
        findings=[
            f"{each.before} → {each.after}: {describe(each, among=len(comparisons))}"
            for each in findings
            if each.after not in run.skipped
        ],
        caveats=list(caveats(comparisons, run)),
        headlines=[headline_table(metrics, name) for name in sets],
        differences=[comparison_table(name, comparisons) for name in sets],
        figures=report_figures(run),
        breakdowns=[table for table in breakdowns if table.rows],
        classes=[table for table in classes if table.rows],
        transcripts=select_transcripts(run),
        provenance=provenance_tables(run, settings, preset),
        comparisons=comparisons,
    )


def training_warnings(provenance: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield a sentence for each training warning of the stages, with its first step."""
    for stage, record in provenance.items():
        for warning in record.get("warnings", []):
            yield f"{stage.upper()}, FROM STEP {warning['step']}: {warning['text']}."


def caveats(comparisons: Sequence[Comparison], run: Run) -> Iterator[str]:
    """Yield the limits of the findings as sentences.

    One for each phase whose step was selected by its accuracy, which is biased upwards. One on a
    gain of GRPO, if some of SFT's targets have no reasoning.
    """
    for phase, best in run.selections.items():
        yield f"{describe_selection(phase, best)}."
    # Share of SFT's targets that are only an answer, without reasoning. If it is 0, a gain of GRPO
    # needs no caveat.
    bare = run.stage_metrics.get("prepare", {}).get("bare_answer_share", 0.0)
    grpo_gains = any(each.after == "grpo" and each.change.is_better() for each in comparisons)
    if bare > 0 and grpo_gains:
        yield (
            f"{percent(bare)} % of the SFT targets give only the answer, the others the reasoning "
            "too. The demonstrations mix two strategies, and GRPO shifts the model to the better "
            "one. Whether GRPO beats good demonstrations is another question: compare with SFT on "
            "complete solutions only (prepare.synthetic.bare_answer_rate set to 0)."
        )


def select_example(run: Run) -> Example | None:
    """Select a problem of the first benchmark that shows a gain, with every checkpoint's answer.

    In a gain, the exported checkpoint is right and its parent wrong. Of several gains, the one with
    answers of median length is selected, since it is typical. Without a gain, the problem of median
    length among all problems is selected. None if no problem was answered by every checkpoint.
    """
    before, after = run.origins.get(run.exported, run.checkpoints[0]), run.exported
    answers: dict[str, dict[str, GradedCompletion]] = defaultdict(dict)
    for name in run.checkpoints:
        for row in _main_rows(run, name):
            answers[row.problem_id].setdefault(name, row)
    problems = [each for each in answers.values() if len(each) == len(run.checkpoints)]
    if not problems:
        return None
    gains = [each for each in problems if each[after].answer_ok > each[before].answer_ok]
    num_losses = sum(each[after].answer_ok < each[before].answer_ok for each in problems)
    caption = "One problem, answered by each"
    if gains:
        caption = (
            f"One of {len(gains)} problems that {after} answers right and {before} does not; "
            f"{num_losses} the other way round"
        )
    candidates = sorted(
        gains or problems, key=lambda each: sum(len(row.completion) for row in each.values())
    )
    return Example(caption, candidates[len(candidates) // 2])


def select_transcripts(run: Run) -> list[GradedCompletion]:
    """Select five right and five wrong answers of the exported checkpoint, spread over the file.

    Only the first benchmark; greedy completions if there are any. If fewer than five are right, or
    wrong, all of these.
    """
    rows, transcripts = _main_rows(run, run.exported), []
    for ok in (True, False):
        candidates = [row for row in rows if row.answer_ok is ok]
        count = min(len(candidates), NUM_TRANSCRIPTS)
        # Evenly spaced rows are deterministic, and not only the file's first problems.
        transcripts += [candidates[index * len(candidates) // count] for index in range(count)]
    return transcripts


def _main_rows(run: Run, checkpoint: str) -> list[GradedCompletion]:
    rows = [
        row
        for row in run.completions[checkpoint]
        if row.benchmark == run.benchmarks[0] and row.decided_by != UNGRADED
    ]
    return [row for row in rows if row.mode == GREEDY] or rows


def facts(
    run: Run, settings: Mapping[str, str], preset: Preset | None
) -> Iterator[tuple[str, str]]:
    """Yield the header's facts, such as ("seed", "0").

    There is no date, so that equal runs have equal bytes. In the browser, the page adds the date of
    its file.

    Args:
        settings: text by dotted key, such as {"seed": "0", "model.name": "…"}.
        preset: (name, values, changed keys) of the nearest preset; None if the checkpoints are
            unrelated models, not one run's.
    """
    if preset:
        name, _, changed = preset
        plural = "s" if len(changed) > 1 else ""
        count = f" with {len(changed)} change{plural}" if changed else ""
        yield "model", _model(settings)
        yield "preset", name + count
    yield "seed", settings.get("seed", "?")
    devices = {record["device"]: None for record in run.provenance.values() if "device" in record}
    if devices:
        yield "measured on", " / ".join(devices)
    # The run's fingerprint: `git log -S<hash>` finds the commit of its report (docs/report.md).
    yield "run", hash_json(run.provenance)[:12]


def provenance_tables(run: Run, settings: Mapping[str, str], preset: Preset | None) -> list[Table]:
    """Return four tables: settings, package versions, each stage's inputs, each stage's metrics.

    Settings that differ from the nearest preset come first, bold, beside the preset's value.

    Args:
        settings: text by dotted key.
        preset: (name, values, changed keys) of the nearest preset; None if the checkpoints are
            unrelated models, not one run's.
    """
    used = Table("settings", ("key", "value"), tuple(settings.items()))
    if preset:
        name, values, changed = preset
        rows = [(key, settings[key], values[key]) for key in changed]
        rows += [(key, value, "") for key, value in settings.items() if key not in changed]
        header = ("key", "value", f"preset {name}")
        used = Table("settings", header, tuple(rows), strong=frozenset(range(len(changed))))
    inputs = {f"{stage} ←": record.get("inputs", {}) for stage, record in run.provenance.items()}
    versions = _merged(run.provenance, "versions")
    return [
        used,
        Table("versions", ("key", "value"), tuple(versions.items())),
        Table("inputs", ("stage ← what it read", "hash"), _rows(inputs)),
        Table("stages", ("metric", "value"), _rows(run.stage_metrics)),
    ]


def _rows(records: Mapping[str, Mapping[str, Any]]) -> tuple[tuple[str, str], ...]:
    return tuple(
        (f"{name} {key}", _text(value))
        for name, record in records.items()
        for key, value in flatten(record, reducer="dot").items()
    )


def _merged(provenance: Mapping[str, Mapping[str, Any]], name: str) -> dict[str, str]:
    """Merge the stages' settings, or versions, as texts by dotted key, sorted.

    Stages that disagree give both values: {"seed": "0 / 1"}.

    Args:
        provenance: by stage.
        name: the key in each stage's record: "settings" or "versions".
    """
    values: dict[str, dict[str, None]] = {}
    for record in provenance.values():
        for key, value in by_dotted_key(record.get(name, {})).items():
            values.setdefault(key, {})[_text(value)] = None
    return {key: " / ".join(values[key]) for key in sorted(values)}


def _model(settings: Mapping[str, str]) -> str:
    name, revision = settings.get("model.name", ""), settings.get("model.revision", "")
    sizes = [settings.get(f"model.tiny.{size}", "?") for size in ("num_layers", "hidden_size")]
    tiny = "tiny Qwen3, {} layers of {}".format(*sizes)
    return f"{name}@{revision}" if revision else name or tiny


def _text(value: Any) -> str:
    """Format a setting; the entries of a list are separated by commas."""
    entries = value if isinstance(value, list) else [value]
    # Sorted, since values of JSON files and of params.yaml differ in the order of keys.
    nested = (json.dumps(e, sort_keys=True) if isinstance(e, Mapping) else e for e in entries)
    return ", ".join(map(str, nested))
