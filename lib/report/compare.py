"""The workspace against a git revision: which knobs moved, which numbers moved beyond noise.

Params and metrics of the revision are git's; its completions and rates are in DVC's cache, and
DVC draws the curves of both.
"""

import dataclasses
import math
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from lib.artifacts.completions import read_graded
from lib.errors import UserError
from lib.params import PARAMS_FILE
from lib.report.comparisons import (
    MEASURES,
    Comparison,
    alarms,
    compare_pair,
    problem_scores,
    read_comparisons,
)
from lib.report.inputs import leaves, read_json
from lib.report.tables import comparison_table
from lib.report.text import MISSING, Table, loud, markdown_table, table_lines
from lib.stats import Estimate, independent_difference

Numbers = dict[str, Any]
"""The leaves of a file, by dotted key."""

Sides = tuple[Numbers, Numbers]
"""A file at the revision and in the workspace; empty where it does not exist."""

NOISE = 1.96
"""Standard errors beyond which a difference is not put down to chance."""

JUDGED = tuple(f".{mode}.{measure}" for mode, measure in MEASURES.items())
"""Endings of the numbers that checkpoints are judged by."""

SUPPORTING = ("_se", ".n", ".low", ".high", ".p_value", ".before", ".after")
"""Endings of numbers that qualify another number and are not listed by themselves."""

WORKSPACE = "workspace"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Against:
    """The workspace against a revision.

    Attributes:
        tables: params; the exported checkpoint against that of the revision, a table a benchmark;
            metrics.
        plots: where the curves of both are drawn, an address on this machine.
        alarms: what got worse beyond noise.
    """

    tables: tuple[Table, ...]
    plots: str
    alarms: tuple[str, ...]

    def lines(self, *, markdown: bool) -> Iterator[str]:
        """What to print, for a terminal or a pull request."""
        for table in self.tables:
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
    now = {str(path): dict(leaves(read_json(path))) for path in metrics.rglob("*.json")}
    listed = _git("ls-tree", "-r", "--name-only", commit, "--", str(metrics)).split()
    before = {name: _committed(commit, name) for name in listed if name.endswith(".json")}
    sides = {name: (before.get(name, {}), now.get(name, {})) for name in {**now, **before}}
    if breakdowns:
        sides |= rates_of([graded / f"{name}.json" for name in checkpoints], commit=commit)
    params = _committed(commit, PARAMS_FILE), _flat_yaml(Path(PARAMS_FILE).read_text("utf-8"))
    trained = read_comparisons(read_json(metrics / "report.json"), checkpoints, starts)
    names = params[0].get("export.checkpoint", exported), exported
    how = "paired"
    between = compare_completions(
        base, *(graded / f"{name}.jsonl" for name in names), commit=commit
    )
    if not between:
        how = "unpaired"
        old, new = (str(metrics / "evaluate" / f"{name}.json") for name in names)
        between = compare_metrics(base, before.get(old, {}), now.get(new, {}))
    return Against(
        tables=(
            params_table(*params, base=base),
            *(
                comparison_table(of, between, title=f"Exported checkpoint on {of}, {how}")
                for of in dict.fromkeys(comparison.benchmark for comparison in between)
            ),
            metrics_table(sides, base=base, breakdowns=breakdowns),
        ),
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
        rows = {base: tuple(read_graded(restored)), WORKSPACE: tuple(read_graded(new))}
    problems = [
        {setting: scores.keys() for setting, scores in problem_scores(of).items()}
        for of in rows.values()
    ]
    if problems[0] != problems[1]:
        return []
    return compare_pair(rows, before=base, after=WORKSPACE)


def compare_metrics(base: str, old: Numbers, new: Numbers) -> list[Comparison]:
    """The same by the committed metrics, as if the two had been measured on different problems.

    That gives wider intervals, so that less is called worse.

    Args:
        base: what the reader calls the revision.
        old: the metrics of the checkpoint that the revision exported.
        new: those of the checkpoint that the workspace exports.
    """
    before, after = _estimates(old), _estimates(new)
    comparisons = []
    for name in sorted(before.keys() & after.keys()):
        benchmark, mode, _ = name.rsplit(".", 2)
        change = independent_difference(before=before[name], after=after[name])
        names = {"before": base, "after": WORKSPACE, "benchmark": benchmark, "mode": mode}
        comparisons.append(Comparison.of(change, **names))
    return comparisons


def _estimates(numbers: Numbers) -> dict[str, Estimate]:
    """Those that a checkpoint is judged by."""
    return {
        name: Estimate(
            value,
            numbers.get(f"{name}_se", math.nan),
            int(numbers.get(f"{name.rpartition('.')[0]}.n", 1)),
        )
        for name, value in numbers.items()
        if name.endswith(JUDGED)
    }


def rates_of(files: Sequence[Path], *, commit: str) -> dict[str, Sides]:
    """Of each file of rates that both sides have, both."""
    sides = {}
    for file in filter(Path.exists, files):
        with at_revision(file, commit) as restored:
            if restored:
                sides[str(file)] = dict(leaves(read_json(restored))), dict(leaves(read_json(file)))
    return sides


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


def params_table(old: Numbers, new: Numbers, *, base: str) -> Table:
    """Every knob that differs."""
    rows = tuple(
        (name, _value(old.get(name)), _value(new.get(name)))
        for name in sorted({**old, **new})
        if old.get(name) != new.get(name)
    )
    return Table(f"Params, {base} against the workspace", ("", base, WORKSPACE), rows)


def metrics_table(sides: Mapping[str, Sides], *, base: str, breakdowns: bool) -> Table:
    """Every number that differs, and by how many standard errors of its difference.

    Evaluation before training, and in each file what checkpoints are judged by first.
    """
    changes = sorted(
        (Path(file).parent.name != "evaluate", file, not name.endswith(JUDGED), name)
        for file, (old, new) in sides.items()
        for name in {**old, **new}
        if old.get(name) != new.get(name)
        and not name.endswith(SUPPORTING)
        and (breakdowns or ".by_" not in name)
    )
    rows = []
    for _, file, _, name in changes:
        (old, error), (new, new_error) = (
            (of.get(name), of.get(f"{name}_se", math.nan)) for of in sides[file]
        )
        change, ratio = MISSING, math.nan
        if old is not None and new is not None:
            change, ratio = f"{new - old:+.4g}", in_errors(new - old, math.hypot(error, new_error))
        beyond = " beyond noise" if abs(ratio) > NOISE else ""
        shown = MISSING if math.isnan(ratio) else f"{ratio:+.1f}{beyond}"
        rows.append((f"{Path(file).stem} {name}", _value(old), _value(new), change, shown))
    header = ("", base, WORKSPACE, "change", "in standard errors")
    return Table(f"Metrics, {base} against the workspace", header, tuple(rows))


def in_errors(change: float, se: float) -> float:
    """A difference over its standard error; nan where that is."""
    return change / se if se else math.copysign(math.inf, change)


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
        if commits := _git(*command).splitlines():
            return commits[0]
    raise UserError(
        f"BASE={name}: git knows no such revision, and DVC no such experiment; `git log --oneline` "
        "and `dvc exp list` list those there are"
    )


def _committed(commit: str, name: str | Path) -> Numbers:
    """The leaves of a JSON or YAML file at `commit`."""
    return _flat_yaml(_git("show", f"{commit}:./{name}"))


def _flat_yaml(text: str) -> Numbers:
    return dict(leaves(YAML(typ="safe").load(text) or {}))


def _git(*arguments: str) -> str:
    """What git prints; nothing where it fails."""
    command = ["git", *arguments]
    return subprocess.run(command, capture_output=True, encoding="utf-8", check=False).stdout


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
