"""The workspace against a git revision: which knobs moved, and whether the exported model did.

Both sides are read through DVC: what git has of them, and what DVC's cache still has.
"""

import dataclasses
import math
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dvc.api import DVCFileSystem, exp_show
from dvc.exceptions import DvcException
from dvc.repo import Repo
from ruamel.yaml import YAML

from lib.artifacts import unlisted
from lib.artifacts.completions import GradedCompletion, read_graded
from lib.core.errors import UserError
from lib.params import PARAMS_FILE
from lib.params.schema import leaves
from lib.report.comparisons import (
    ALPHA,
    MEASURES,
    Comparison,
    alarms,
    compare_pair,
    describe,
    problem_grades,
)
from lib.report.tables import comparison_table
from lib.report.text import MISSING, Table, loud, markdown_table, table_lines
from lib.stats import Estimate, independent_difference

WORKSPACE = "workspace"

NO_RATES = ("check", "export", "report")
"""Stages that no rate depends on."""

MAX_PARAMS = 8
"""Knobs that are listed where not everything is."""

STALE = (
    "The workspace is stale: what {} was made from has changed, and the numbers below are older. "
    "`make repro` brings them up to date."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Against:
    """The workspace against a revision.

    Attributes:
        notes: what to know before any number.
        tables: params; the exported checkpoint against that of the revision, headline set first.
        findings: differences beyond noise on sets that have no table here.
        more: where the curves and the rest are.
        alarms: what got worse than at the revision, beyond noise.
    """

    notes: Sequence[str]
    tables: Sequence[Table]
    findings: Sequence[str]
    more: str
    alarms: Sequence[str]

    def lines(self, *, markdown: bool) -> Iterator[str]:
        """What to print, for a terminal or a pull request."""
        yield from (f"> {note}\n" for note in self.notes) if markdown else self.notes
        for table in self.tables:
            if not table.rows:
                yield f"{table.title}: no difference"
            elif markdown:
                yield f"### {table.title}\n\n{markdown_table(table)}\n"
            else:
                yield from table_lines(table)
        yield from self.findings
        if not markdown:
            yield self.more
        yield from (f"**{alarm}**" for alarm in self.alarms) if markdown else loud(self.alarms)


def compare_with(
    base: str, *, metrics: Path, graded: Path, plots: Path, headline: str, everything: bool
) -> Against:
    """Compare the workspace with the revision `base`.

    Args:
        base: anything that git resolves to a commit, or an experiment's name.
        metrics: folder of the metrics.
        graded: folder of the graded completions and their rates; where those of `base` are not in
            DVC's cache, the exported checkpoints are compared by their metrics only.
        plots: folder that the curves of both are drawn into.
        headline: the set whose table comes first.
        everything: whether to list every knob that differs and the other sets too.

    Raises:
        UserError: there is no revision `base`, or DVC failed.
    """
    sides = DVCFileSystem(rev=base), DVCFileSystem()
    try:
        params = [_numbers(side, PARAMS_FILE) for side in sides]
        stale = ", ".join(stage for stage in Repo().status() if stage not in NO_RATES)
    except DvcException as error:
        raise UserError(
            f"BASE={base}: {error}; `git log --oneline` and `dvc exp list` list what there is"
        ) from error
    exported = [of.get("export.checkpoint", params[1]["export.checkpoint"]) for of in params]
    rows = {
        name: graded_rows(side, graded / f"{checkpoint}.jsonl")
        for name, side, checkpoint in zip((base, WORKSPACE), sides, exported, strict=True)
    }
    measured_on = _read(sides[0], metrics / "report.json").get("measured_on", [])
    reason = why_unpaired(rows, " / ".join(measured_on))
    if reason:
        files = [metrics / "evaluate" / f"{checkpoint}.json" for checkpoint in exported]
        between = compare_metrics(
            base, *(unlisted(_read(*of)) for of in zip(sides, files, strict=True))
        )
    else:
        between = list(compare_pair(rows, before=base, after=WORKSPACE))
    sets = sorted({of.benchmark for of in between}, key=lambda name: name != headline)
    shown = sets if everything else sets[:1]
    how = "unpaired" if reason else "paired"
    return Against(
        notes=[STALE.format(stale)] * bool(stale) + [reason] * bool(reason),
        tables=[
            params_table(*params, base=base, limit=None if everything else MAX_PARAMS),
            *(
                comparison_table(of, between, title=f"Exported model on {of}, {how}")
                for of in shown
            ),
        ],
        findings=[
            describe(of)
            for of in between
            if of.benchmark not in shown and of.change.p_value < ALPHA
        ],
        more=f"All sets: `make compare ALL=1`; every number: `dvc metrics diff {base}`; every rate "
        f"by level: `git diff {base} reports/report.md`\nCurves: {draw_curves(base, plots)}",
        alarms=list(alarms(between)),
    )


def _read(side: DVCFileSystem, file: Path) -> dict[str, Any]:
    """A JSON or YAML file of one side; {} where it has none."""
    try:
        return YAML(typ="safe").load(side.read_text(str(file), encoding="utf-8")) or {}
    except FileNotFoundError:
        return {}


def _numbers(side: DVCFileSystem, file: Path) -> dict[str, Any]:
    return dict(leaves(_read(side, file)))


def graded_rows(side: DVCFileSystem, file: Path) -> tuple[GradedCompletion, ...]:
    """The graded completions of one side; none where DVC's cache does not hold them."""
    with tempfile.TemporaryDirectory() as folder:
        local = Path(folder) / file.name
        try:
            side.get_file(str(file), str(local))
        except FileNotFoundError:
            return ()
        return tuple(read_graded(local))


def why_unpaired(rows: Mapping[str, Sequence[GradedCompletion]], measured_on: str) -> str:
    """Why the two sides cannot be compared problem by problem; '' where they can.

    Args:
        measured_on: the machine of the revision.
    """
    wider = "so the exported models are compared unpaired, with wider intervals"
    made = f" (its run was made on: {measured_on})" if measured_on else ""
    for name, of in rows.items():
        if not of:
            return (
                f"DVC's cache has no graded completions of {name}{made}, {wider}. "
                "`git commit -am` of a run that was made here gives pairs from then on."
            )
    old, new = (
        {setting: problems.keys() for setting, problems in problem_grades(of).items()}
        for of in rows.values()
    )
    return "" if old == new else f"The two answer different problems, {wider}."


def compare_metrics(base: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Comparison]:
    """The same by the committed metrics, as if the two had been measured on different problems.

    That gives wider intervals, so that less is called worse.

    Args:
        base: what the reader calls the revision.
        old: the metrics of the checkpoint that the revision exported.
        new: those of the checkpoint that the workspace exports.
    """
    before, after = _estimates(old), _estimates(new)
    return [
        Comparison(
            before=base,
            after=WORKSPACE,
            benchmark=place[0],
            mode=place[1],
            change=independent_difference(before=estimate, after=after[place]),
        )
        for place, estimate in before.items()
        if place in after
    ]


def _estimates(metrics: Mapping[str, Any]) -> dict[tuple[str, str], Estimate]:
    """By benchmark and mode, what a checkpoint is judged by."""
    return {
        (benchmark, mode): Estimate(
            of[measure], of.get(f"{measure}_se", math.nan), int(of.get("n", 1))
        )
        for benchmark, modes in metrics.items()
        for mode, measure in MEASURES.items()
        if measure in (of := modes.get(mode, {}))
    }


def params_table(
    old: Mapping[str, Any], new: Mapping[str, Any], *, base: str, limit: int | None
) -> Table:
    """The knobs that differ, the first `limit` of them."""
    rows = [
        (name, _value(old.get(name)), _value(new.get(name)))
        for name in sorted({**old, **new})
        if old.get(name) != new.get(name)
    ]
    left_out = len(rows[limit:]) if limit else 0
    more = [(f"and {left_out} more", "", "")] if left_out else []
    return Table(
        f"Params, {base} against the workspace", ("", base, WORKSPACE), (*rows[:limit], *more)
    )


def experiments_table() -> Table:
    """The experiments of DVC: state, the params that differ, what the exported model came to.

    Of one that failed or has not ended, DVC has the numbers of its parent, which are left out.
    """
    rows = exp_show()
    names = [name for name in rows[0] if name.startswith("exported.")]
    known = _numbers(DVCFileSystem(), PARAMS_FILE)
    knobs = [name for name in known if len({str(row.get(name)) for row in rows}) > 1]
    return Table(
        "Experiments, with the params that differ",
        ("", "state", *(name.removeprefix("exported.") for name in names), *knobs),
        tuple(
            (
                row["Experiment"] or row["rev"],
                (state := row["State"] or "Success").lower(),
                *(_value(row.get(name)) if state == "Success" else MISSING for name in names),
                *(_value(row.get(name)) for name in knobs),
            )
            for row in rows
        ),
    )


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return MISSING if value is None else str(value)


def draw_curves(base: str, folder: Path) -> str:
    """Draw the curves of both sides on a page in `folder`; its address on this machine.

    Raises:
        UserError: DVC failed; quotes the first line of its stderr.
    """
    command = [sys.executable, "-m", "dvc", "plots", "diff", base, "--out", str(folder)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        reason = result.stderr.strip().splitlines() or ["no message"]
        raise UserError(f"`{' '.join(command[2:])}` failed: {reason[0]}")
    return result.stdout.strip()
