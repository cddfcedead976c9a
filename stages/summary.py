"""Print the result table, and the paths of the model and the report. Not a stage of the DAG.

Params: evaluate (checkpoints, benchmarks), export (checkpoint), dpo (init).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from ruamel.yaml import YAML

from lib.core.git import git
from lib.params import load_params
from lib.params.schema import leaves
from stages.options import reads_params


@click.command(help=__doc__)
@reads_params
def main(params_file: Path) -> None:
    """Print the result table, changed tracked files, and the paths of model, report and studies."""
    params = load_params(params_file)
    from lib.report.inputs import load_run
    from lib.report.write import summary_lines

    run = load_run(
        checkpoints=params.evaluate.checkpoints,
        # Phase → the checkpoint that its training starts from; for DPO it is `dpo.init`.
        starts=params.starts,
        benchmarks=params.evaluate.benchmarks,
        exported=params.export.checkpoint,
    )
    for line in summary_lines(run):
        click.echo(line)
    for line in git_lines():
        click.echo(line)
    click.echo("model:   data/models/export")
    click.echo("report:  reports/report.md, reports/report.html (`make serve`)")
    click.echo("studies: reports/studies/index.html")


def git_lines() -> Iterator[str]:
    """Yield one line if a run changed tracked files: their number, the cause, the remedy."""
    # Only files that a run writes: edited code is the user's own change. '' without a repository.
    modified = git("diff", "--name-only", "HEAD", "--", "reports", "dvc.lock", strict=False).split()
    if not modified:
        return
    if causes := changed_since_commit():
        more = f" and {len(causes) - 3} more" if len(causes) > 3 else ""
        why = f"this run differs from the last commit's in {', '.join(causes[:3])}{more}"
        advice = "`make compare` shows both"
    else:
        # The inputs are the same and the bytes differ: only rounding can be the cause.
        why = "another CPU rounds differently"
        advice = "`git checkout -- reports dvc.lock` restores them"
    yield (
        f"git:     {len(modified)} tracked files modified ({why}); {advice}, "
        "`git commit -am` keeps them"
    )


def changed_since_commit() -> list[str]:
    """List the params, code and raw data in which this run differs from the last commit's."""
    # dvc.lock has the params and hashes of a run: in HEAD the last commit's, here the last run's.
    lock = Path("dvc.lock")
    here = lock.read_text("utf-8") if lock.exists() else ""
    # '' if HEAD has no dvc.lock.
    committed = git("show", "HEAD:dvc.lock", strict=False)
    old, new = dict(_inputs(committed)), dict(_inputs(here))
    return sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))


def _inputs(lock: str) -> Iterator[tuple[str, Any]]:
    """Yield each input of a run: name and value of a param, path and hash of code or raw data.

    ("grpo.max_steps", 20), ("lib/rewards", "0f3a…")

    Args:
        lock: text of dvc.lock; '' gives nothing.
    """
    stages = (YAML(typ="safe").load(lock) or {}).get("stages", {}).values()
    # A dep that is the output of a stage is left out: it differs only because an input does.
    outs = [Path(out["path"]) for stage in stages for out in stage.get("outs", ())]
    for stage in stages:
        for dep in stage.get("deps", ()):
            # A dep may also be a file in an output folder, or a folder of several outputs.
            path = Path(dep["path"])
            if not any(path.is_relative_to(out) or out.is_relative_to(path) for out in outs):
                yield dep["path"], dep["md5"]
        # File -> params of the stage in it.
        for params in stage.get("params", {}).values():
            yield from leaves(params)


if __name__ == "__main__":
    main()
