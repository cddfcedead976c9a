"""Three seeds and a control, run as DVC experiments; writes reports/study. Outside the DAG.

The control spends the compute of GRPO on more epochs of SFT on the same data. What an experiment
has computed before, DVC's run-cache gives back.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lib.cli import reads_params, writes
from lib.errors import UserError
from lib.params import load_params

if TYPE_CHECKING:
    from lib.report.study import SeedRun

SEEDS = (0, 1, 2)
CONTROL_EPOCHS = 5
"""Epochs of SFT for the CPU time of the default's SFT and GRPO together: GRPO takes about two
fifths of the time of SFT's 3 epochs (75 s beside 185 s); rounded up, in the control's favour."""


@click.command(help=__doc__)
@reads_params
@writes("--study", "reports/study", "the table and its numbers")
def main(params_file: Path, study: Path) -> None:
    """Run what has not run yet, then write the tables."""
    params = load_params(params_file)
    from lib.artifacts import write_metrics
    from lib.report.study import study_markdown, study_metrics

    for seed in SEEDS:
        experiment(f"study-seed-{seed}", "report", f"seed={seed}")
        more_sft = f"sft.num_epochs={CONTROL_EPOCHS}"
        experiment(f"study-control-{seed}", "grade@sft", f"seed={seed}", more_sft)
    runs = [read_run(seed) for seed in SEEDS]
    metrics = study_metrics(runs, benchmark=params.evaluate.benchmarks[0])
    write_metrics(study / "study.json", metrics)
    control = f"SFT for {CONTROL_EPOCHS} epochs instead of {params.sft.num_epochs} and no GRPO"
    (study / "study.md").write_text(study_markdown(metrics, control=control), encoding="utf-8")
    click.echo(f"study seeds={len(runs)} table={study / 'study.md'}")


def experiment(name: str, target: str, *changes: str) -> None:
    """Run one DVC experiment in a copy of the checkout, so that the workspace stays as it is.

    An older one of that name goes first: `--force` would take its name too, and switch off the
    run-cache with it.
    """
    dvc = [sys.executable, "-m", "dvc", "exp"]
    subprocess.run([*dvc, "remove", name], capture_output=True, check=False)
    sets = [argument for change in changes for argument in ("--set-param", change)]
    click.echo(f"study experiment={name} {' '.join(changes)}")
    command = [*dvc, "run", "--temp", "--name", name, *sets, target]
    if subprocess.run(command, check=False).returncode:
        raise UserError(f"study: experiment {name} failed; see above")


def read_run(seed: int) -> "SeedRun":
    """What the experiments of one seed wrote, read from their revisions."""
    import dvc.api

    from lib.completions import read_graded
    from lib.report.study import CONTROL, GRPO, SFT, SeedRun

    where = {
        SFT: (f"study-seed-{seed}", "sft"),
        GRPO: (f"study-seed-{seed}", "grpo"),
        CONTROL: (f"study-control-{seed}", "sft"),
    }
    metrics, completions = {}, {}
    with tempfile.TemporaryDirectory() as scratch:
        for name, (revision, checkpoint) in where.items():
            path = Path(scratch) / f"{name}.jsonl"
            path.write_text(dvc.api.read(f"data/graded/{checkpoint}.jsonl", rev=revision))
            completions[name] = list(read_graded(path))
            text = dvc.api.read(f"reports/metrics/evaluate/{checkpoint}.json", rev=revision)
            metrics[name] = json.loads(text)
    return SeedRun(seed=seed, metrics=metrics, completions=completions)


if __name__ == "__main__":
    main()
