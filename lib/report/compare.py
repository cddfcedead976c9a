"""The workspace against a git revision: which knobs moved, which numbers moved beyond noise.

DVC finds the differences (`dvc params diff`, `dvc metrics diff`, `dvc plots diff`); here they meet
the standard errors that stand beside the numbers.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lib.report.comparisons import alarms, read_comparisons
from lib.report.exported import ENDINGS, Diff, Exported, compare_exported, exported_tables
from lib.report.inputs import read_json
from lib.report.markdown import markdown_table
from lib.report.revision import dvc_json, resolve_revision, run_dvc
from lib.report.tables import Table
from lib.report.terminal import loud, table_lines
from lib.report.text import MISSING

NOISE = 1.96
"""Standard errors beyond which a difference is not put down to chance."""

SUPPORTING = ("_se", ".n", ".low", ".high", ".p_value", ".before", ".after")
"""Endings of numbers that qualify another number and are not listed by themselves."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Change:
    """One number of the metrics, before and now.

    Attributes:
        file: the metrics file.
        name: dotted key in it.
        se: standard error of the difference; nan where the metrics give none.
    """

    file: str
    name: str
    old: float | None
    new: float | None
    se: float

    @property
    def in_standard_errors(self) -> float:
        """The difference over its standard error; nan where unknown."""
        if self.old is None or self.new is None or math.isnan(self.se):
            return math.nan
        change = self.new - self.old
        return change / self.se if self.se else math.copysign(math.inf, change) if change else 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Against:
    """The workspace against a revision.

    Attributes:
        exported: the exported checkpoint against that of the revision, a table a benchmark.
        plots: where the curves of both are drawn, an address on this machine.
        alarms: what got worse beyond noise.
    """

    params: Table
    exported: tuple[Table, ...]
    metrics: Table
    plots: str
    alarms: tuple[str, ...]

    def lines(self, *, markdown: bool) -> Iterator[str]:
        """What to print, for a terminal or a pull request."""
        for table in (self.params, *self.exported, self.metrics):
            if not table.rows:
                yield f"{table.title}: no difference"
            elif markdown:
                yield f"### {table.title}\n\n{markdown_table(table)}"
            else:
                yield "\n".join(table_lines(table))
            yield ""
        if not markdown:
            yield f"Curves of both: {self.plots}"
        yield from (f"**{alarm}**" for alarm in self.alarms) if markdown else loud(self.alarms)


def compare_with(
    base: str,
    *,
    metrics: Path,
    graded: Path,
    plots: Path,
    checkpoints: Sequence[str],
    starts: Mapping[str, str],
    exported: str,
    breakdowns: bool,
) -> Against:
    """Compare the workspace with the revision `base`.

    Args:
        base: anything that git resolves to a commit.
        metrics: folder of the metrics.
        graded: folder of the graded completions; without them, or without those of `base` in DVC's
            cache, the exported checkpoints are compared by their metrics alone.
        plots: folder that the curves of both are drawn into.
        checkpoints: of the workspace, in the order of training.
        starts: by checkpoint, the one that it was trained from.
        exported: the checkpoint that the workspace exports.
        breakdowns: whether to list the numbers by level, tag and subject too.

    Raises:
        UserError: git does not know `base`, DVC failed, or the workspace has no metrics.
    """
    commit = resolve_revision(base)
    params = dvc_json("params", "diff", commit)
    diff = dvc_json("metrics", "diff", "--all", commit)
    judged = read_comparisons(read_json(metrics / "report.json"), checkpoints, starts)
    old = _old_value(params, "export.checkpoint") or exported
    found = compare_exported(
        Exported(base, commit=commit, checkpoint=old),
        exported,
        diff=diff,
        metrics=metrics / "evaluate",
        graded=graded,
    )
    listed = (change for change in metric_changes(diff) if breakdowns or ".by_" not in change.name)
    changes = sorted(listed, key=reading_order)
    return Against(
        params=params_table(params, base=base),
        exported=exported_tables(found),
        metrics=metrics_table(changes, base=base),
        plots=run_dvc("plots", "diff", commit, "--out", str(plots)).strip(),
        alarms=(*alarms(judged, untrained=checkpoints[0]), *alarms(found.comparisons)),
    )


def _old_value(params: Diff, key: str) -> str | None:
    return next((entries[key].get("old") for entries in params.values() if key in entries), None)


def metric_changes(diff: Diff) -> Iterator[Change]:
    """Every number that differs, with the standard error of its difference.

    Args:
        diff: of `dvc metrics diff --all --json`, which brings the unchanged errors along.
    """
    for file, entries in diff.items():
        for name, entry in entries.items():
            if entry.get("old") != entry.get("new") and not name.endswith(SUPPORTING):
                errors = [entries.get(f"{name}_se", {}).get(side) for side in ("old", "new")]
                known = [error for error in errors if error is not None]
                se = math.hypot(*known) if len(known) == 2 else math.nan
                yield Change(
                    file=file, name=name, old=entry.get("old"), new=entry.get("new"), se=se
                )


def reading_order(change: Change) -> tuple[bool, str, bool, str]:
    """Evaluation before training, and in each file what checkpoints are judged by first."""
    is_training = Path(change.file).parent.name != "evaluate"
    return is_training, change.file, not change.name.endswith(ENDINGS), change.name


def params_table(diff: Diff, *, base: str) -> Table:
    """Every knob that differs."""
    rows = [
        (name, _value(entry.get("old")), _value(entry.get("new")))
        for entries in diff.values()
        for name, entry in sorted(entries.items())
    ]
    return Table(f"Params, {base} against the workspace", ("", base, "workspace"), tuple(rows))


def metrics_table(changes: Sequence[Change], *, base: str) -> Table:
    """Every number that differs, and by how many of its standard errors."""
    rows = [
        (
            f"{Path(change.file).stem} {change.name}",
            _value(change.old),
            _value(change.new),
            _signed(change.old, change.new),
            _noise(change.in_standard_errors),
        )
        for change in changes
    ]
    header = ("", base, "workspace", "change", "in standard errors")
    return Table(f"Metrics, {base} against the workspace", header, tuple(rows))


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return MISSING if value is None else str(value)


def _signed(old: float | None, new: float | None) -> str:
    return MISSING if old is None or new is None else f"{new - old:+.4g}"


def _noise(ratio: float) -> str:
    if math.isnan(ratio):
        return MISSING
    return f"{ratio:+.1f}" + (" beyond noise" if abs(ratio) > NOISE else "")
