"""Run a study of studies/*.yaml over seeds as DVC experiments, two at a time; outside the DAG.

Interrupted, the same command goes on where it was.
"""

from pathlib import Path

import click

from lib.cli import reads_params
from lib.params import load_params

SCRATCH = Path("data/scratch/studies")


@click.command(help=__doc__)
@reads_params
@click.option(
    "--study", "name", required=True, help="The name of a file in studies/, without .yaml."
)
@click.option("--jobs", type=click.IntRange(min=1), default=2, help="Experiments at a time.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("reports/studies"),
    show_default=True,
    help="Writes the page, figure and numbers, in a folder of the study's name.",
)
def main(params_file: Path, name: str, jobs: int, out: Path) -> None:
    """Run what has not run yet, then write the page."""
    params = load_params(params_file)
    from lib.studies.definition import load_study

    study = load_study(name)
    from lib.artifacts import read_json, write_metrics
    from lib.report.charts import figure_svg
    from lib.studies.experiments import run_study
    from lib.studies.results import (
        studies_page,
        study_figures,
        study_markdown,
        study_metrics,
        verdicts,
    )

    outcome = run_study(name, study, scratch=SCRATCH, jobs=jobs, say=click.echo)
    benchmark = params.evaluate.benchmarks[0]
    metrics = study_metrics(
        study, outcome, benchmark=benchmark, num_validated=params.validation.num_problems
    )
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    write_metrics(folder / "study.json", metrics)
    # The page says what the file says, rounded once.
    metrics = read_json(folder / "study.json")
    for figure in study_figures(study, metrics):
        (folder / f"{figure.name}.svg").write_text(figure_svg(figure), encoding="utf-8")
    page = study_markdown(name, study, metrics, benchmark=benchmark)
    (folder / "study.md").write_text(page, encoding="utf-8")
    (out / "index.html").write_text(studies_page(out), encoding="utf-8")
    for line in verdicts(study, metrics).values():
        click.echo(line.replace("*", "").replace("`", ""))
    click.echo(f"study page={folder / 'study.md'} all={out / 'index.html'}")


if __name__ == "__main__":
    main()
