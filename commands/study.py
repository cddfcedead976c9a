"""Run a study over seeds, as DVC experiments.

STUDY is a path, or the name of a file in studies/. Interrupted, it ends the experiments under way,
and the same command runs what is left.
"""

import signal
from pathlib import Path

import click

from lib.params import PARAMS_FILE, load_params

SCRATCH, OUT = Path("data/scratch/studies"), Path("reports/studies")


@click.command(help=__doc__)
@click.argument("study")
@click.option(
    "--jobs", type=click.IntRange(min=1), default=2, help="Experiments that run at the same time."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=OUT,
    show_default=True,
    help="Folder for pages, figures and numbers; the study gets a subfolder.",
)
@click.option("--pages", is_flag=True, help="Run nothing; write the pages from the numbers in OUT.")
def main(study: str, jobs: int, out: Path, pages: bool) -> None:
    """Run the study's missing experiments, then write its numbers and pages."""
    # Only for its errors: a study starts from these params, and runs for hours.
    load_params(PARAMS_FILE)
    from lib.params.load import read_yaml
    from lib.studies.definition import load_study, study_file, with_params

    path = study_file(study)
    name, definition = path.stem, load_study(path)
    from lib.artifacts import write_metrics
    from lib.studies.experiments import made_from, run_study
    from lib.studies.pages import RESULTS, write_pages
    from lib.studies.results import study_metrics

    # The pages are written from this file only, so that --pages needs no experiment.
    numbers = out / name / "study.json"
    if not pages:
        # A closing terminal sends SIGHUP to this process only, since each experiment has a process
        # group of its own. As a KeyboardInterrupt, like Ctrl-C, it ends the experiments too. Under
        # `nohup` the signal is ignored, and stays so.
        if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:
            signal.signal(signal.SIGHUP, signal.default_int_handler)
        # Read before the experiments run: files may be edited in these hours.
        origin, content = made_from(), read_yaml(PARAMS_FILE)
        outcome = run_study(name, definition, scratch=SCRATCH, jobs=jobs, log=click.echo)
        num_validated = {
            each: with_params(content, variant, origin=each).validation.num_problems
            for each, variant in definition.variants.items()
        }
        metrics = study_metrics(definition, outcome, num_validated=num_validated)
        write_metrics(numbers, metrics, made_from=origin)
    # Only the committed studies feed the tables of results.
    page = RESULTS if out == OUT else None
    for verdict in write_pages(name, definition, out, results=page):
        click.echo(verdict.replace("*", "").replace("`", ""))
    click.echo(f"study page={out / name / 'study.md'} all={out / 'index.html'}")
