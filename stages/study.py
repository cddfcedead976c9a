"""Three seeds and a control, run as DVC experiments; writes reports/study. Outside the DAG.

The control spends the compute of GRPO on more epochs of SFT on the same data. What an experiment
has computed before, DVC's run-cache gives back.
"""

from pathlib import Path

import click

from lib.cli import reads_params, writes
from lib.params import load_params

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
    from lib.report.study import read_seed_run, run_experiment, study_markdown, study_metrics

    for seed in SEEDS:
        run_experiment(f"study-seed-{seed}", "report", f"seed={seed}")
        more_sft = f"sft.num_epochs={CONTROL_EPOCHS}"
        run_experiment(f"study-control-{seed}", "grade@sft", f"seed={seed}", more_sft)
    runs = [read_seed_run(seed) for seed in SEEDS]
    metrics = study_metrics(runs, benchmark=params.evaluate.benchmarks[0])
    write_metrics(study / "study.json", metrics)
    control = f"SFT for {CONTROL_EPOCHS} epochs instead of {params.sft.num_epochs} and no GRPO"
    (study / "study.md").write_text(study_markdown(metrics, control=control), encoding="utf-8")
    click.echo(f"study seeds={len(runs)} table={study / 'study.md'}")


if __name__ == "__main__":
    main()
