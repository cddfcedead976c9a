"""The content of a run's report, before it is Markdown or HTML."""

import dataclasses
import hashlib
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lib.artifacts import ROOT
from lib.artifacts.completions import GREEDY, GradedCompletion
from lib.params import preset_names, preset_params
from lib.params.schema import leaves
from lib.report.charts import Figure
from lib.report.comparisons import (
    Comparison,
    alarms,
    compare_checkpoints,
    describe,
)
from lib.report.figures import report_figures
from lib.report.inputs import Run
from lib.report.tables import (
    BREAKDOWNS,
    breakdown,
    class_table,
    comparison_table,
    headline,
    titled,
)
from lib.report.text import MISSING, Table, percent

NUM_TRANSCRIPTS = 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """The report's parts in reading order.

    Attributes:
        facts: what the page is headed by: the model, the preset, the run's fingerprint.
        alarms: what must not be overlooked; empty when all is well.
        findings: the sentences that the numbers justify.
        caveats: what the findings do not show.
        conditions: how the benchmarks were answered.
        provenance: what the numbers rest on: settings, versions, hashes of each stage's inputs.
    """

    run: Run
    facts: Sequence[tuple[str, str]]
    alarms: Sequence[str]
    findings: Sequence[str]
    caveats: Sequence[str]
    headlines: Sequence[Table]
    differences: Sequence[Table]
    conditions: Table
    figures: Sequence[Figure]
    breakdowns: Sequence[Table]
    classes: Sequence[Table]
    transcripts: Sequence[GradedCompletion]
    provenance: Sequence[Table]
    comparisons: Sequence[Comparison]


def build_report(run: Run) -> Report:
    """The whole content of the report of a run."""
    comparisons, untrained = compare_checkpoints(run), run.checkpoints[0]
    metrics, sets = titled(run.metrics, run.skipped), run.benchmarks
    # What starts from the untrained checkpoint is not judged: teaching a format may cost answers.
    # Nor are other sets: a fall there is a finding. Models of anybody's are compared, not judged.
    judged = [
        of
        for of in comparisons
        if run.trained and of.before != untrained and of.benchmark == sets[0]
    ]
    facts, provenance = facts_and_provenance(run)
    tables = [breakdown(metrics, of, by) for of in sets for by in BREAKDOWNS]
    classes = [class_table(metrics, of) for of in sets]
    return Report(
        run=run,
        facts=facts,
        alarms=[*alarms(judged), *training_warnings(run.provenance)],
        findings=[
            f"{of.before} → {of.after}: {describe(of)}"
            for of in comparisons
            if of.after not in run.skipped
            # Of many models and benchmarks, sentences on the first benchmark; the tables have all.
            and (of.before != untrained if run.trained else of.benchmark == sets[0])
        ],
        caveats=list(caveats(comparisons, run)),
        headlines=[headline(metrics, of) for of in sets],
        differences=[comparison_table(of, comparisons) for of in sets],
        conditions=conditions(run),
        figures=report_figures(run),
        breakdowns=[table for table in tables if table.rows],
        # Where nothing has a grade, it has no class.
        classes=[of for of in classes if any(set(row[1:]) != {MISSING} for row in of.rows)],
        transcripts=select_transcripts(run),
        provenance=provenance,
        comparisons=comparisons,
    )


def training_warnings(provenance: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """What a stage was warned of while it trained, and since which step."""
    for stage, record in provenance.items():
        for warning in record.get("warnings", []):
            yield f"{stage.upper()}, FROM STEP {warning['step']}: {warning['text']}."


def caveats(comparisons: Sequence[Comparison], run: Run) -> Iterator[str]:
    """What qualifies a gain, so that it is not read as more than it is."""
    bare = run.stage_metrics.get("prepare", {}).get("bare_answer_share", 0.0)
    if bare > 0 and any(of.after == "grpo" and of.change.is_better() for of in comparisons):
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
    greedy = [row for row in rows if row.mode == GREEDY] or rows
    right, wrong = ([row for row in greedy if row.answer_ok is ok] for ok in (True, False))
    half = NUM_TRANSCRIPTS // 2
    num_right = min(len(right), max(half, NUM_TRANSCRIPTS - len(wrong)))
    num_wrong = min(len(wrong), NUM_TRANSCRIPTS - num_right)
    return [
        of[index * len(of) // count]
        for of, count in ((right, num_right), (wrong, num_wrong))
        for index in range(count)
    ]


def conditions(run: Run) -> Table:
    """Decoding by benchmark and mode, as the first checkpoint's provenance has it."""
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
    return Table("How each benchmark was answered", header, rows)


def facts_and_provenance(run: Run) -> tuple[list[tuple[str, str]], list[Table]]:
    """What a reader of many reports tells them apart by, and what the numbers rest on.

    Settings and versions once for all stages, the hashes of what each stage read, its numbers.
    Settings that differ from the nearest preset come first, with the preset's value beside them.
    No clock: the page asks its file's.
    """
    settings = _settings(run.provenance, "settings")
    facts = [("seed", settings.get("seed", "?"))]
    header: tuple[str, ...] = ("key", "value")
    rows: list[tuple[str, ...]] = [*settings.items()]
    num_changed = 0
    if run.trained:
        preset, values, changed = nearest_preset(settings)
        header, num_changed = (*header, f"preset {preset}"), len(changed)
        rows = [(key, settings[key], values[key]) for key in changed]
        rows += [(key, value, "") for key, value in settings.items() if key not in changed]
        count = f" with {num_changed} change{'s' if num_changed > 1 else ''}" if changed else ""
        facts = [("model", _model(settings)), ("preset", preset + count), *facts]
    devices = {of["device"]: None for of in run.provenance.values() if "device" in of}
    facts += [("measured on", " / ".join(devices))] * bool(devices)
    known = json.dumps(run.provenance, sort_keys=True).encode()
    facts.append(("run", hashlib.sha256(known).hexdigest()[:12]))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    facts.append((project["name"], project["version"]))
    versions = _settings(run.provenance, "versions")
    inputs = {f"{stage} ←": of.get("inputs", {}) for stage, of in run.provenance.items()}
    return facts, [
        Table("settings", header, tuple(rows), frozenset(range(num_changed))),
        Table("versions", ("key", "value"), tuple(versions.items())),
        Table("inputs", ("stage ← what it read", "hash"), _rows(inputs)),
        Table("stages", ("metric", "value"), _rows(run.stage_metrics)),
    ]


def _rows(records: Mapping[str, Mapping[str, Any]]) -> tuple[tuple[str, str], ...]:
    return tuple(
        (f"{name} {key}", _text(value))
        for name, record in records.items()
        for key, value in leaves(record)
    )


def nearest_preset(settings: Mapping[str, str]) -> tuple[str, dict[str, str], list[str]]:
    """The preset that the fewest settings differ from, its values, and the keys that differ."""
    candidates = []
    for name in preset_names():
        values = {key: _text(value) for key, value in preset_params(name).flat().items()}
        changed = [key for key in settings if values.get(key, settings[key]) != settings[key]]
        candidates.append((name, values, changed))
    return min(candidates, key=lambda candidate: (len(candidate[2]), candidate[0]))


def _settings(provenance: Mapping[str, Mapping[str, Any]], name: str) -> dict[str, str]:
    """By dotted key, sorted; where stages disagree (they ran at different times), every value."""
    values: dict[str, dict[str, None]] = {}
    for record in provenance.values():
        for key, value in leaves(record.get(name, {})):
            values.setdefault(key, {})[_text(value)] = None
    return {key: " / ".join(values[key]) for key in sorted(values)}


def _model(settings: Mapping[str, str]) -> str:
    name, revision = settings.get("model.name", ""), settings.get("model.revision", "")
    sizes = [settings.get(f"model.tiny.{size}", "?") for size in ("num_layers", "hidden_size")]
    tiny = "tiny Qwen3, {} layers of {}".format(*sizes)
    return f"{name}@{revision}" if revision else name or tiny


def _text(value: Any) -> str:
    entries = value if isinstance(value, list) else [value]
    # The order of a mapping's keys, which a file sorts, is no part of its value.
    nested = (json.dumps(e, sort_keys=True) if isinstance(e, Mapping) else e for e in entries)
    return ", ".join(map(str, nested))
