"""Compare the workspace with a git revision: changed params, and the exported model's rates.

Both sides, the revision and the workspace, are read through DVC: committed files from git, the
others from DVC's cache. `make compare` and `./reckon experiments` print the results.
"""

import dataclasses
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dvc.api import DVCFileSystem, exp_show
from dvc.exceptions import DvcException
from dvc.repo import Repo
from flatten_dict import flatten
from ruamel.yaml import YAML

from lib.artifacts import unlisted
from lib.artifacts.completions import UNGRADED, GradedCompletion, read_graded
from lib.core.errors import UserError
from lib.core.git import git
from lib.params import PARAMS_FILE
from lib.report.comparisons import (
    ALPHA,
    MEASURES,
    Comparison,
    alarms,
    compare_pair,
    describe,
)
from lib.report.tables import comparison_table
from lib.report.text import MISSING, Table, alarm_lines, markdown_table, table_lines
from lib.stats import independent_difference, rate_estimate

WORKSPACE = "workspace"

# The interpreter of this process: a `dvc` on PATH may belong to another environment.
DVC = [sys.executable, "-m", "dvc"]

NO_RATES = ("check", "export", "report")
"""Stages whose changes alter no rate."""

MAX_PARAMS = 8
"""Params listed without --all."""

NOTHING_COMPARED = "NO SET IS MEASURED ON BOTH SIDES: the exported models were not compared"
NEWER = "Params, code or data are newer than the run below (stages: {}); `make repro` runs them."


@dataclasses.dataclass(frozen=True, kw_only=True)
class RevisionComparison:
    """The workspace compared with a revision.

    Attributes:
        notes: warnings to read before any number.
        tables: params, then differences of the exported checkpoints' rates, headline set first.
        findings: differences beyond noise on sets without a table.
        more: text with the commands that print all numbers, and the address of the curves.
        alarms: rates that fell beyond noise, or that no set is measured on both sides.
    """

    notes: Sequence[str]
    tables: Sequence[Table]
    findings: Sequence[str]
    more: str
    alarms: Sequence[str]

    def lines(self, *, markdown: bool) -> Iterator[str]:
        for note in self.notes:
            yield f"> {note}\n" if markdown else note
        for table in self.tables:
            if not table.rows:
                yield f"{table.title}: no difference"
            elif markdown:
                yield f"### {table.title}\n\n{markdown_table(table)}\n"
            else:
                yield from table_lines(table)
        yield from self.findings
        if markdown:
            yield from (f"**{alarm}**" for alarm in self.alarms)
        else:
            yield self.more
            yield from alarm_lines(self.alarms)


def compare_with(
    base: str, *, metrics: Path, graded: Path, plots: Path, headline: str, everything: bool
) -> RevisionComparison:
    """Compare the workspace with the revision `base`: params, and rates of the exported model.

    The two exported checkpoints are compared problem by problem if possible, otherwise by their
    committed metrics.

    Args:
        base: anything that git resolves to a commit, or an experiment's name.
        metrics: folder of the metrics, committed to git.
        graded: folder of the graded completions, in DVC's cache only.
        plots: output folder for the curves of both sides.
        headline: the set whose table comes first.
        everything: list all differing params and all sets.

    Raises:
        UserError: there is no repository or no revision `base`, or DVC failed.
    """
    git("rev-parse", "--git-dir")
    if not base:
        raise UserError("BASE= is empty; expected a revision, such as HEAD")
    then, now = DVCFileSystem(rev=base), DVCFileSystem()
    try:
        # The first read resolves the revision; an unknown one is a DvcException.
        old_params, new_params = _params(then), _params(now)
        notes = newer_notes(Repo().status())
    except DvcException as error:
        raise UserError(
            f"BASE={base}: {error}; `git log --oneline` and `dvc exp list` list the revisions"
        ) from error
    new_checkpoint = new_params["export.checkpoint"]
    old_checkpoint = old_params.get("export.checkpoint", new_checkpoint)
    try:
        old_rows = graded_rows(then, graded / f"{old_checkpoint}.jsonl")
    except UserError:
        # Rows of an older version lack today's fields.
        old_rows = ()
    rows = {base: old_rows, WORKSPACE: graded_rows(now, graded / f"{new_checkpoint}.jsonl")}
    measured_on = _read(then, metrics / "report.json").get("measured_on", [])
    reason = why_unpaired(base, rows, " / ".join(measured_on))
    if reason:
        notes.append(reason)
        comparisons = compare_metrics(
            base,
            old=unlisted(_read(then, metrics / f"evaluate/{old_checkpoint}.json")),
            new=unlisted(_read(now, metrics / f"evaluate/{new_checkpoint}.json")),
        )
    else:
        comparisons = list(compare_pair(rows, before=base, after=WORKSPACE))
    return summarize(
        comparisons,
        params=params_table(old_params, new_params, base=base, everything=everything),
        base=base,
        headline=headline,
        how="unpaired" if reason else "paired",
        notes=notes,
        curves=draw_curves(base, plots),
        everything=everything,
    )


def summarize(
    comparisons: Sequence[Comparison],
    *,
    params: Table,
    base: str,
    headline: str,
    how: str,
    notes: Sequence[str],
    curves: str,
    everything: bool,
) -> RevisionComparison:
    """Build the printed comparison of two revisions: tables, findings and alarms.

    Args:
        comparisons: one for each set of problems and decoding mode.
        params: the table of differing params.
        headline: the set whose table comes first.
        how: "paired" or "unpaired", for the titles.
        notes: warnings to print first.
        curves: address of the page of curves.
        everything: a table for every set; otherwise for the first only, and a sentence for each
            significant difference on the others.
    """
    benchmarks = {comparison.benchmark for comparison in comparisons}
    sets = sorted(benchmarks, key=lambda name: (name != headline, name))
    sets_with_table = sets if everything else sets[:1]
    rates = [
        comparison_table(name, comparisons, title=f"Exported model on {name}, {how}")
        for name in sets_with_table
    ]
    return RevisionComparison(
        notes=notes,
        tables=[params, *rates],
        findings=[
            describe(comparison, among=len(comparisons))
            for comparison in comparisons
            if comparison.benchmark not in sets_with_table
            and comparison.change.p_value < ALPHA / len(comparisons)
        ],
        more=f"All sets: `./reckon compare --all`; every number: `dvc metrics diff {base}`; every "
        f"rate by level: `git diff {base} reports/report.md`\nCurves: {curves}",
        alarms=list(alarms(comparisons)) if comparisons or how == "paired" else [NOTHING_COMPARED],
    )


def _read(side: DVCFileSystem, file: Path) -> dict[str, Any]:
    try:
        return YAML(typ="safe").load(side.read_text(str(file), encoding="utf-8")) or {}
    except FileNotFoundError:
        return {}


def _params(side: DVCFileSystem) -> dict[str, Any]:
    """Read one side's params by dotted key, as in `dvc params diff`: {"grpo.max_steps": 60}."""
    return dict(flatten(_read(side, PARAMS_FILE), reducer="dot"))


def graded_rows(side: DVCFileSystem, file: Path) -> tuple[GradedCompletion, ...]:
    """Read a file of graded completions from one side; () if DVC's cache lacks it."""
    with tempfile.TemporaryDirectory() as folder:
        # `read_graded` needs a path, so the file is copied from DVC's cache. `dvc checkout` would
        # change the workspace.
        local = Path(folder) / file.name
        try:
            side.get_file(str(file), str(local))
        except FileNotFoundError:
            return ()
        # A tuple: `read_graded` is lazy, and the folder is deleted at the end of this block.
        return tuple(read_graded(local))


def newer_notes(status: Mapping[str, Sequence[Any]]) -> list[str]:
    """Return at most one warning: the stages whose params, code or data are newer than their run.

    Args:
        status: `Repo.status()`: stage → its changes, such as "changed command", {"changed outs": …}
            or {"changed deps": {"params.yaml": {"grpo.max_steps": "modified"}}}.
    """
    # Changed outs are left out, and deps that are outs of other stages: a fresh clone lacks both.
    stages = [
        name
        for name, changes in status.items()
        if name not in NO_RATES
        and any(
            isinstance(change, str)
            or any(state != "deleted" for state in change.get("changed deps", {}).values())
            for change in changes
        )
    ]
    return [NEWER.format(", ".join(stages))] if stages else []


def why_unpaired(
    base: str, rows: Mapping[str, Sequence[GradedCompletion]], measured_on: str
) -> str:
    """Explain in sentences why the sides cannot be compared problem by problem; '' if they can.

    Args:
        rows: graded completions under the keys `base` and `WORKSPACE`; () if DVC's cache lacks
            them.
        measured_on: the machine of the revision's run; '' if unknown.
    """
    # Unpaired, the spread between problems stays in the interval (arXiv:2411.00640, section 4).
    unpaired = "the exported models are compared unpaired, with wider intervals"
    if not rows[WORKSPACE]:
        return f"Nothing was run here (`make repro` does): {unpaired}."
    if not rows[base]:
        machine = f" (run on: {measured_on})" if measured_on else ""
        return (
            f"No readable completions of {base}{machine} in DVC's cache (`dvc pull` fetches pushed "
            f"ones): {unpaired}."
        )
    old, new = (
        {
            (row.benchmark, row.mode, row.problem_id, row.reference)
            for row in rows[side]
            if row.decided_by != UNGRADED
        }
        for side in (base, WORKSPACE)
    )
    # (benchmark, mode) of both sides. A set of one side only, such as a new benchmark, does not
    # keep the others from being paired.
    common = {key[:2] for key in old} & {key[:2] for key in new}
    if old == new or (common and not any(key[:2] in common for key in old ^ new)):
        return ""
    return f"The two sides answer different problems, or have other references: {unpaired}."


def compare_metrics(
    base: str, *, old: Mapping[str, Any], new: Mapping[str, Any]
) -> list[Comparison]:
    """Compare two checkpoints by their committed metrics, as independent samples (unpaired).

    There is one comparison for each benchmark and mode that both have measured. The intervals are
    wider than those of paired problems, so that fewer differences raise an alarm.

    Args:
        base: the revision, as the user typed it.
        old: benchmark → mode → measure → number, of the revision's exported checkpoint.
        new: the same of the workspace's exported checkpoint.
    """
    comparisons = []
    for benchmark, modes in old.items():
        for mode, measure in MEASURES.items():
            before, after = modes.get(mode, {}), new.get(benchmark, {}).get(mode, {})
            if measure in before and measure in after:
                change = independent_difference(
                    before=rate_estimate(before, measure), after=rate_estimate(after, measure)
                )
                comparisons.append(
                    Comparison(
                        before=base,
                        after=WORKSPACE,
                        benchmark=benchmark,
                        mode=mode,
                        change=change,
                    )
                )
    return comparisons


def params_table(
    old: Mapping[str, Any], new: Mapping[str, Any], *, base: str, everything: bool
) -> Table:
    """Build the table of the params that differ: all, or the first `MAX_PARAMS` and a count.

    Args:
        old: params of the revision `base` by dotted key.
        new: params of the workspace by dotted key.
        base: the revision, for title and header.
        everything: list all of them.
    """
    rows = [
        (name, _cell(old.get(name)), _cell(new.get(name)))
        for name in sorted({**old, **new})
        if old.get(name) != new.get(name)
    ]
    if len(rows) > MAX_PARAMS and not everything:
        rows[MAX_PARAMS:] = [(f"and {len(rows) - MAX_PARAMS} more", "", "")]
    return Table(f"Params, {base} against the workspace", ("", base, WORKSPACE), tuple(rows))


def experiments_lines(*, everything: bool) -> Iterator[str]:
    """Yield the lines of the table of experiments, and of notes below it.

    A note counts the experiments that are not in the table.

    Args:
        everything: list the experiments of all commits, instead of the last commit's.
    """
    head = git("rev-parse", "HEAD")
    by_commit: dict[str, list[tuple[str, str]]] = Repo().experiments.ls(all_commits=True)
    commits = list(dict.fromkeys([head, *by_commit])) if everything else [head]
    yield from table_lines(experiments_table(commits))
    num_others = sum(len(each) for commit, each in by_commit.items() if commit not in commits)
    if num_others:
        yield f"and {num_others} of other commits: `./reckon experiments --all` lists them"


def experiments_table(commits: Sequence[str]) -> Table:
    """Build the table of the workspace, of `commits` and of their experiments, a row each.

    Columns: state, the exported model's rates, and the params that differ between rows. A failed or
    unfinished experiment shows no rates: DVC would report its parent's.
    """
    # A record per row; all have the same keys: "Experiment", "rev", "State", … of DVC, and the
    # metrics and params by dotted key.
    records = exp_show(revs=list(commits))
    # DVC adds the file's name to a metric only if several files have the key. These keys are in
    # one file only, reports/metrics/report.json.
    metrics = [name for name in records[0] if name.startswith("exported.")]
    # Dotted keys of the workspace's params whose values differ between rows. Compared as text,
    # since lists in params.yaml cannot be hashed.
    params = [
        name
        for name in _params(DVCFileSystem())
        if len({str(each.get(name)) for each in records}) > 1
    ]
    rows = []
    for each in records:
        state = each["State"] or "Success"
        rates = [_cell(each.get(name)) if state == "Success" else MISSING for name in metrics]
        values = [_cell(each.get(name)) for name in params]
        rows.append((each["Experiment"] or each["rev"], state.lower(), *rates, *values))
    header = ("", "state", *(name.removeprefix("exported.") for name in metrics), *params)
    return Table("Experiments, with the params that differ", header, tuple(rows))


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return MISSING if value is None else str(value)


def draw_curves(base: str, folder: Path) -> str:
    """Plot the curves of `base` and of the workspace on a page in `folder`; return its address.

    Raises:
        UserError: DVC failed; the message quotes the first line of stderr.
    """
    command = [*DVC, "plots", "diff", base, "--out", str(folder)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        lines = result.stderr.strip().splitlines() or ["no message"]
        raise UserError(f"`{' '.join(command[2:])}` failed: {lines[0]}")
    return result.stdout.strip()
