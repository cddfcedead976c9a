"""The workspace against a git revision: which knobs moved, which numbers moved beyond noise.

DVC finds the differences (`dvc params diff`, `dvc metrics diff`, `dvc plots diff`); here they meet
the standard errors beside the numbers.
"""

import dataclasses
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lib.artifacts.completions import read_graded
from lib.errors import UserError
from lib.report.comparisons import (
    MEASURES,
    Comparison,
    alarms,
    compare_pair,
    problem_scores,
    read_comparisons,
)
from lib.report.inputs import read_json
from lib.report.tables import comparison_table
from lib.report.text import MISSING, Table, loud, markdown_table, table_lines
from lib.stats import Estimate, independent_difference

Diff = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""What DVC prints: file → dotted key → {"old", "new", "diff"}."""

NOISE = 1.96
"""Standard errors beyond which a difference is not put down to chance."""

JUDGED = tuple(f".{mode}.{measure}" for mode, measure in MEASURES.items())
"""Endings of the numbers that checkpoints are judged by."""

SUPPORTING = ("_se", ".n", ".low", ".high", ".p_value", ".before", ".after")
"""Endings of numbers that qualify another number and are not listed by themselves."""

WORKSPACE = "workspace"


@dataclasses.dataclass(frozen=True, kw_only=True)
class MetricChange:
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
        base: anything that git resolves to a commit, or an experiment's name.
        metrics: folder of the metrics.
        graded: folder of the graded completions; without them, or without those of `base` in DVC's
            cache, the exported checkpoints are compared by their metrics only.
        plots: folder that the curves of both are drawn into.
        checkpoints: of the workspace, in the order of training.
        starts: by checkpoint, the one that it was trained from.
        exported: the checkpoint that the workspace exports.
        breakdowns: whether to list every rate too, by level, tag and subject, where DVC's cache
            holds those of `base`.

    Raises:
        UserError: git does not know `base`, DVC failed, or the workspace has no metrics.
    """
    commit = resolve_revision(base)
    for path in sorted(metrics.rglob("*.json")):
        read_json(path)  # DVC would pass over one that is no JSON, as if its numbers were not there
    params = _dvc_json("params", "diff", commit)
    diff = _dvc_json("metrics", "diff", "--all", commit)
    if breakdowns:
        diff |= rates_diff([graded / f"{name}.json" for name in checkpoints], commit=commit)
    trained = read_comparisons(read_json(metrics / "report.json"), checkpoints, starts)
    before = [of["export.checkpoint"]["old"] for of in params.values() if "export.checkpoint" in of]
    names = (before[0] if before else exported, exported)
    files = tuple(graded / f"{name}.jsonl" for name in names)
    how, between = "paired", compare_completions(base, *files, commit=commit)
    if not between:
        how = "unpaired"
        entries = [diff.get(str(metrics / "evaluate" / f"{name}.json"), {}) for name in names]
        between = compare_metrics(base, *entries)
    changes = (each for each in metric_changes(diff) if breakdowns or ".by_" not in each.name)
    return Against(
        params=params_table(params, base=base),
        exported=tuple(
            dataclasses.replace(
                comparison_table(between, benchmark),
                title=f"Exported checkpoint on {benchmark}, {how} differences in percentage points",
            )
            for benchmark in dict.fromkeys(comparison.benchmark for comparison in between)
        ),
        metrics=metrics_table(sorted(changes, key=reading_order), base=base),
        # The legend shows the revision as it is written here, and cuts off a whole hash.
        plots=run_dvc("plots", "diff", commit[:10], "--out", str(plots)).strip(),
        alarms=(*alarms(trained, untrained=checkpoints[0]), *alarms(between)),
    )


def compare_completions(base: str, old: Path, new: Path, *, commit: str) -> list[Comparison]:
    """The exported checkpoints, problem by problem; [] where that cannot be done.

    That is where a file is not at hand, or the two answer different problems.

    Args:
        base: what the reader calls the revision.
        old: the completions of the checkpoint that `commit` exported.
        new: those of the checkpoint that the workspace exports.
    """
    if not new.exists():
        return []
    with at_revision(old, commit) as restored:
        if not restored:
            return []
        before = tuple(read_graded(restored))
    after = tuple(read_graded(new))
    asked_before, asked_after = (
        {setting: scores.keys() for setting, scores in problem_scores(rows).items()}
        for rows in (before, after)
    )
    if asked_before != asked_after:
        return []
    return compare_pair({base: before, WORKSPACE: after}, before=base, after=WORKSPACE)


def compare_metrics(
    base: str, old: Mapping[str, Mapping[str, Any]], new: Mapping[str, Mapping[str, Any]]
) -> list[Comparison]:
    """The same by the committed metrics, as if the two had been measured on different problems.

    That gives wider intervals, so that less is called worse.

    Args:
        base: what the reader calls the revision.
        old: of `dvc metrics diff`, the file of the checkpoint that the revision exported.
        new: that of the checkpoint that the workspace exports.
    """
    before, after = _estimates(old, "old"), _estimates(new, "new")
    comparisons = []
    for name in sorted(before.keys() & after.keys()):
        benchmark, mode, _ = name.rsplit(".", 2)
        change = independent_difference(before=before[name], after=after[name])
        comparisons.append(
            Comparison(before=base, after=WORKSPACE, benchmark=benchmark, mode=mode, change=change)
        )
    return comparisons


def rates_diff(files: Iterable[Path], *, commit: str) -> dict[str, Any]:
    """Of each file of rates that both sides have, what `dvc metrics diff` prints of metrics."""
    diff = {}
    for file in filter(Path.exists, files):
        with at_revision(file, commit) as restored:
            if restored:
                old, new = (dict(_leaves(read_json(path))) for path in (restored, file))
                diff[str(file)] = {
                    name: {"old": old.get(name), "new": new.get(name)} for name in {**old, **new}
                }
    return diff


@contextmanager
def at_revision(file: Path, commit: str) -> Iterator[Path | None]:
    """A copy of an out as it was at `commit`; None where DVC's cache has it no more."""
    with tempfile.TemporaryDirectory() as folder:
        restored = Path(folder) / file.name
        try:
            run_dvc("get", ".", str(file), "--rev", commit, "--out", str(restored))
        except UserError:
            yield None
        else:
            yield restored


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _estimates(entries: Mapping[str, Mapping[str, Any]], side: str) -> dict[str, Estimate]:
    """The numbers that a checkpoint is judged by, as one side of the diff has them."""
    values = {name: entry.get(side) for name, entry in entries.items()}
    estimates = {}
    for name, value in values.items():
        if name.endswith(JUDGED) and value is not None:
            se, n = values.get(f"{name}_se"), values.get(f"{name.rpartition('.')[0]}.n")
            estimates[name] = Estimate(value, math.nan if se is None else se, int(n or 1))
    return estimates


def metric_changes(diff: Diff) -> Iterator[MetricChange]:
    """Every number that differs, with the standard error of its difference.

    Args:
        diff: of `dvc metrics diff --all --json`, which holds the unchanged errors too.
    """
    for file, entries in diff.items():
        for name, entry in entries.items():
            old, new = entry.get("old"), entry.get("new")
            if old != new and not name.endswith(SUPPORTING):
                error = entries.get(f"{name}_se", {})
                errors = [error[side] for side in ("old", "new") if error.get(side) is not None]
                # Without an error on one side the difference has none.
                se = math.hypot(*errors) if len(errors) == 2 else math.nan
                yield MetricChange(file=file, name=name, old=old, new=new, se=se)


def reading_order(change: MetricChange) -> tuple[bool, str, bool, str]:
    """Evaluation before training, and in each file what checkpoints are judged by first."""
    is_training = Path(change.file).parent.name != "evaluate"
    return is_training, change.file, not change.name.endswith(JUDGED), change.name


def params_table(diff: Diff, *, base: str) -> Table:
    """Every knob that differs."""
    rows = [
        (name, _value(entry.get("old")), _value(entry.get("new")))
        for entries in diff.values()
        for name, entry in sorted(entries.items())
    ]
    return Table(f"Params, {base} against the workspace", ("", base, WORKSPACE), tuple(rows))


def metrics_table(changes: Iterable[MetricChange], *, base: str) -> Table:
    """Every number that differs, and by how many of its standard errors."""
    rows = []
    for change in changes:
        old, new, ratio = change.old, change.new, change.in_standard_errors
        beyond = " beyond noise" if abs(ratio) > NOISE else ""
        rows.append(
            (
                f"{Path(change.file).stem} {change.name}",
                _value(old),
                _value(new),
                MISSING if old is None or new is None else f"{new - old:+.4g}",
                MISSING if math.isnan(ratio) else f"{ratio:+.1f}{beyond}",
            )
        )
    header = ("", base, WORKSPACE, "change", "in standard errors")
    return Table(f"Metrics, {base} against the workspace", header, tuple(rows))


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return MISSING if value is None else str(value)


def resolve_revision(name: str) -> str:
    """The commit that a revision of git or an experiment of DVC means.

    Raises:
        UserError: there is none of that name.
    """
    # An experiment of DVC is a reference of git, two levels below refs/exps.
    for command in (
        ["rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}"],
        ["for-each-ref", "--format=%(objectname)", f"refs/exps/*/*/{name}"],
    ):
        ran = subprocess.run(["git", *command], capture_output=True, text=True, check=False)
        if ran.returncode == 0 and ran.stdout:
            return ran.stdout.splitlines()[0]
    raise UserError(
        f"BASE={name}: git knows no such revision, and DVC no such experiment; `git log --oneline` "
        "and `dvc exp list` list those there are"
    )


def _dvc_json(*arguments: str) -> dict[str, Any]:
    printed = run_dvc(*arguments, "--json")
    parsed: dict[str, Any] = json.loads(printed) if printed.strip() else {}
    return parsed


def run_dvc(*arguments: str) -> str:
    """Run DVC with this interpreter and return what it prints.

    Raises:
        UserError: DVC failed; quotes the first line of its stderr.
    """
    ran = subprocess.run(
        [sys.executable, "-m", "dvc", *arguments], capture_output=True, text=True, check=False
    )
    if ran.returncode:
        reason = ran.stderr.strip().splitlines() or ["no message"]
        raise UserError(f"`dvc {' '.join(arguments)}` failed: {reason[0]}")
    return ran.stdout
