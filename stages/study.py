"""Run a study of studies/*.yaml over seeds as DVC experiments, two at a time; outside the DAG.

Interrupted, the same command resumes where it was.
"""

from pathlib import Path

import click

from lib.params import load_params
from stages.options import reads_params

SCRATCH, OUT = Path("data/scratch/studies"), Path("reports/studies")


@click.command(help=__doc__)
@reads_params
@click.option("--study", required=True, help="A path, or the name of a file in studies/.")
@click.option("--jobs", type=click.IntRange(min=1), default=2, help="Experiments at a time.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=OUT,
    show_default=True,
    help="Writes the page, figures and numbers, in a folder of the study's name.",
)
@click.option("--pages", is_flag=True, help="Run nothing: write the pages of the numbers in OUT.")
def main(params_file: Path, study: str, jobs: int, out: Path, pages: bool) -> None:
    """Run what has not run yet, then write the pages."""
    params = load_params(params_file)
    from lib.studies.definition import load_study, study_file

    path = study_file(study)
    name, definition = path.stem, load_study(path)
    from lib.studies.results import study_metrics, write_pages

    if not pages:
        from lib.artifacts import write_metrics
        from lib.studies.experiments import run_study

        outcome = run_study(name, definition, scratch=SCRATCH, jobs=jobs, say=click.echo)
        problems = params.validation.num_problems
        metrics = study_metrics(definition, outcome, num_validated=problems)
        write_metrics(out / name / "study.json", metrics)
    readme = Path("README.md") if out == OUT else None
    for verdict in write_pages(name, definition, out, readme=readme):
        click.echo(verdict.replace("*", "").replace("`", ""))
    click.echo(f"study page={out / name / 'study.md'} all={out / 'index.html'}")


if __name__ == "__main__":
    main()
