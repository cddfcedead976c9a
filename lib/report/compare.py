"""Compare the workspace with a git revision: changed params, and the exported model's rates.

Both sides, the revision and the workspace, are read through DVC: committed files from git, the
others from DVC's cache. `make compare` and `make experiments` print the results.
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
from ruamel.yaml import YAML

from lib.artifacts import unlisted
from lib.artifacts.completions import GradedCompletion, read_graded
from lib.core.errors import UserError
from lib.core.git import git
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
from lib.report.text import MISSING, Table, alarm_lines, markdown_table, table_lines
from lib.stats import independent_difference, rate_estimate

WORKSPACE = "workspace"

# The interpreter of this process: a `dvc` on PATH may belong to another environment.
DVC = [sys.executable, "-m", "dvc"]

NO_RATES = ("check", "export", "report")
"""Stages whose changes alter no rate."""

REMOTE_REMEDY = "`cp .dvc/config .dvc/config.local`"
"""Command that lets DVC use today's remote for commits older than the remote."""

MAX_PARAMS = 8
"""Params listed without ALL=1."""

MAX_CAUSES = 5
"""Changed params, code and data named by the stale warning."""

STALE = (
    "The workspace is stale: {} changed since its last run, so the numbers below are outdated. "
    "`make repro` renews them."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RevisionComparison:
    """The workspace compared with a revision.

    Attributes:
        notes: warnings to read before any number.
        tables: params, then both exported checkpoints' rates, headline set first.
        findings: differences beyond noise on sets without a table.
        more: text with the commands that print all numbers, and the address of the curves.
        alarms: rates that fell beyond noise.
    """

    notes: Sequence[str]
    tables: Sequence[Table]
    findings: Sequence[str]
    more: str
    alarms: Sequence[str]

    def lines(self, *, markdown: bool) -> Iterator[str]:
        """Format the comparison for a terminal or a pull request."""
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
            # Addresses of local files are of no use in a pull request.
            yield self.more
            yield from alarm_lines(self.alarms)


def compare_with(
    base: str, *, metrics: Path, graded: Path, plots: Path, headline: str, everything: bool
) -> RevisionComparison:
    """Compare the workspace with the revision `base`.

    Args:
        base: anything that git resolves to a commit, or an experiment's name.
        metrics: folder of the metrics.
        graded: folder of the graded completions. If DVC's cache lacks those of `base`, the
            exported checkpoints are compared by their metrics only.
        plots: output folder for the curves of both sides.
        headline: the set whose table comes first.
        everything: list all differing params and all sets.

    Raises:
        UserError: there is no repository or no revision `base`, or DVC failed.
    """
    git("rev-parse", "--git-dir")
    # Without `rev`, DVCFileSystem reads the workspace.
    then, now = DVCFileSystem(rev=base), DVCFileSystem()
    try:
        old_params, new_params = _params(then), _params(now)
        notes = stale_notes(Repo().status())
    except DvcException as error:
        raise UserError(
            f"BASE={base}: {error}; `git log --oneline` and `dvc exp list` list the revisions"
        ) from error
    new_checkpoint = new_params["export.checkpoint"]
    # A revision older than this key gets the workspace's value.
    old_checkpoint = old_params.get("export.checkpoint", new_checkpoint)
    rows = {
        base: graded_rows(then, graded / f"{old_checkpoint}.jsonl"),
        WORKSPACE: graded_rows(now, graded / f"{new_checkpoint}.jsonl"),
    }
    measured_on = _read(then, metrics / "report.json").get("measured_on", [])
    if reason := why_unpaired(base, rows, " / ".join(measured_on)):
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
        params: the table of differing params.
        how: "paired" or "unpaired".
        curves: address of the page of curves.
    """
    benchmarks = {comparison.benchmark for comparison in comparisons}
    # False sorts before True: the headline set first, the others by name.
    sets = sorted(benchmarks, key=lambda name: (name != headline, name))
    shown = sets if everything else sets[:1]
    rates = [
        comparison_table(name, comparisons, title=f"Exported model on {name}, {how}")
        for name in shown
    ]
    return RevisionComparison(
        notes=notes,
        tables=[params, *rates],
        findings=[
            describe(comparison)
            for comparison in comparisons
            if comparison.benchmark not in shown and comparison.change.p_value < ALPHA
        ],
        more=f"All sets: `make compare ALL=1`; every number: `dvc metrics diff {base}`; every rate "
        f"by level: `git diff {base} reports/report.md`\nCurves: {curves}",
        alarms=list(alarms(comparisons)),
    )


def _read(side: DVCFileSystem, file: Path) -> dict[str, Any]:
    """Read a JSON or YAML file of one side; {} if it has none."""
    try:
        return YAML(typ="safe").load(side.read_text(str(file), encoding="utf-8")) or {}
    except FileNotFoundError:
        return {}


def _params(side: DVCFileSystem) -> dict[str, Any]:
    """Read one side's params by dotted key, as in `dvc params diff`: {"grpo.max_steps": 60}."""
    return dict(leaves(_read(side, PARAMS_FILE)))


def graded_rows(side: DVCFileSystem, file: Path) -> tuple[GradedCompletion, ...]:
    """Read one side's graded completions; none if DVC's cache lacks them."""
    with tempfile.TemporaryDirectory() as folder:
        # `read_graded` needs a path. `get_file` copies from DVC's cache and leaves the workspace
        # as it is.
        local = Path(folder) / file.name
        try:
            side.get_file(str(file), str(local))
        except FileNotFoundError:
            return ()
        return tuple(read_graded(local))


def stale_notes(status: Mapping[str, Sequence[Any]]) -> list[str]:
    """Return one warning on what changed since the last run and can change a rate; [] if nothing.

    ::

        {"grpo": [{"changed deps": {"params.yaml": {"grpo.max_steps": "modified"},
                                    "lib/rewards": "modified"}}]}
        -> "The workspace is stale: grpo.max_steps, lib/rewards changed …"

    Args:
        status: `Repo.status()`, by stage. Files that a fresh clone lacks (`deleted`, `not in
            cache`) do not count as changed.
    """
    # A dict as an ordered set, since several stages depend on one file.
    causes: dict[str, None] = {}
    for stage, changes in status.items():
        for change in changes if stage not in NO_RATES else ():
            # DVC reports "changed command" and "always changed" as plain strings.
            if isinstance(change, str):
                causes[f"{stage} ({change})"] = None
                continue
            # Changed outs are left out: DVC lists them in a fresh clone too.
            for path, state in change.get("changed deps", {}).items():
                # params.yaml has a mapping of changed keys, other deps one word.
                if isinstance(state, Mapping):
                    causes |= dict.fromkeys(state)
                elif state != "deleted":
                    causes[path] = None
    named = list(causes)[:MAX_CAUSES]
    if len(causes) > MAX_CAUSES:
        named.append(f"{len(causes) - MAX_CAUSES} more")
    return [STALE.format(", ".join(named))] if named else []


def why_unpaired(
    base: str, rows: Mapping[str, Sequence[GradedCompletion]], measured_on: str
) -> str:
    """Explain why the sides cannot be compared problem by problem; '' if they can.

    Args:
        rows: graded completions of the revision `base`, and of `WORKSPACE`.
        measured_on: the machine of the revision.
    """
    # Unpaired, the spread between problems stays in the interval (arXiv:2411.00640, section 4).
    wider = "so the exported models are compared unpaired, with wider intervals"
    if not rows[WORKSPACE]:
        return (
            "Nothing was run here: the workspace's numbers are the committed ones, "
            f"{wider}. `make repro` generates its completions."
        )
    if not rows[base]:
        machine = f" (run on: {measured_on})" if measured_on else ""
        remedy = (
            "Runs made and committed here (`git commit -am`) are compared in pairs from then on"
        )
        # Experiment name → commit hash, whatever commit the experiment started from.
        hashes = {name: rev for group in experiments().values() for name, rev in group}
        if base in hashes:
            first = f" after {REMOTE_REMEDY} in both clones" if lacks_remote(hashes[base]) else ""
            remedy = (
                f"If `dvc exp push` sent them, `dvc exp pull origin {base}` fetches them{first}"
            )
        return f"DVC's cache has no graded completions of {base}{machine}, {wider}. {remedy}."
    # (benchmark, mode) → problem ids, for either side.
    old, new = (
        {setting: problems.keys() for setting, problems in problem_grades(completions).items()}
        for completions in rows.values()
    )
    return "" if old == new else f"The two sides answer different problems, {wider}."


def compare_metrics(
    base: str, *, old: Mapping[str, Any], new: Mapping[str, Any]
) -> list[Comparison]:
    """Compare two checkpoints by their committed metrics, as independent samples (unpaired).

    The intervals are wider than those of paired problems, so that fewer differences raise an alarm.

    Args:
        base: the revision, as the user typed it.
        old: metrics of the revision's exported checkpoint.
        new: metrics of the workspace's exported checkpoint.
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
    """List the params that differ: all, or the first `MAX_PARAMS` of them."""
    rows = [
        (name, _value(old.get(name)), _value(new.get(name)))
        for name in sorted({**old, **new})
        # A key that one side lacks is a difference too: its cell is "–".
        if old.get(name) != new.get(name)
    ]
    if len(rows) > MAX_PARAMS and not everything:
        rows[MAX_PARAMS:] = [(f"and {len(rows) - MAX_PARAMS} more", "", "")]
    return Table(f"Params, {base} against the workspace", ("", base, WORKSPACE), tuple(rows))


def experiments() -> dict[str, list[tuple[str, str]]]:
    """Return DVC's experiments: parent commit → (name, commit hash) of each."""
    by_commit: dict[str, list[tuple[str, str]]] = Repo().experiments.ls(all_commits=True)
    return by_commit


def lacks_remote(revision: str) -> bool:
    """Return True if a revision is older than the DVC remote: `dvc exp push` then sends no files.

    DVC reads `.dvc/config` from the revision, but `.dvc/config.local` from the workspace.
    """
    # A remote in config.local serves old commits too: REMOTE_REMEDY has copied it there.
    remote, local = Repo().config["core"].get("remote"), Path(".dvc/config.local")
    if not remote or (local.exists() and remote in local.read_text("utf-8")):
        return False
    return remote not in git("show", f"{revision}:.dvc/config")


def experiments_lines(*, everything: bool) -> Iterator[str]:
    """Format the table of experiments, then notes on other commits' and on those too old to push.

    Args:
        everything: list the experiments of all commits, instead of the last commit's.
    """
    head, by_commit = git("rev-parse", "HEAD"), experiments()
    commits = list(dict.fromkeys([head, *by_commit])) if everything else [head]
    yield from table_lines(experiments_table(commits))
    listing = [each for commit in commits for each in by_commit.get(commit, ())]
    # `by_commit` has every commit's experiments; without ALL=1, the table has the last commit's.
    if num_others := sum(map(len, by_commit.values())) - len(listing):
        yield f"and {num_others} of other commits: `make experiments ALL=1` lists them"
    for name in (name for name, rev in listing if lacks_remote(rev)):
        yield f"{name} is older than DVC's remote: before `dvc exp push`, run {REMOTE_REMEDY}"


def experiments_table(commits: Sequence[str]) -> Table:
    """List DVC's experiments: state, changed params, and the exported model's rates.

    A failed or unfinished experiment shows no rates: DVC would report its parent's.
    """
    experiments = exp_show(revs=list(commits))
    # DVC adds the file's name to a metric only if several files have the key. These keys are in
    # one file only (`run_metrics` in write.py).
    names = [name for name in experiments[0] if name.startswith("exported.")]
    # Params that differ between rows. As text, since lists in params.yaml cannot be hashed.
    knobs = [
        name
        for name in _params(DVCFileSystem())
        if len({str(each.get(name)) for each in experiments}) > 1
    ]
    rows = []
    for each in experiments:
        # Rows of commits and of the workspace have no state.
        state = each["State"] or "Success"
        rates = [_value(each.get(name)) if state == "Success" else MISSING for name in names]
        values = [_value(each.get(name)) for name in knobs]
        rows.append((each["Experiment"] or each["rev"], state.lower(), *rates, *values))
    header = ("", "state", *(name.removeprefix("exported.") for name in names), *knobs)
    return Table("Experiments, with the params that differ", header, tuple(rows))


def _value(value: Any) -> str:
    """Format a cell: a float with 4 significant digits, "–" for None."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return MISSING if value is None else str(value)


def draw_curves(base: str, folder: Path) -> str:
    """Plot the curves of both sides on a page in `folder`, and return its address.

    Raises:
        UserError: DVC failed; the message quotes the first line of stderr.
    """
    command = [*DVC, "plots", "diff", base, "--out", str(folder)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        reason = result.stderr.strip().splitlines() or ["no message"]
        raise UserError(f"`{' '.join(command[2:])}` failed: {reason[0]}")
    # DVC prints only the file:// address of its page.
    return result.stdout.strip()
