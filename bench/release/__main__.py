"""Release a version: run what is published on this machine, and write every published number.

    make release VERSION=1.1.0
    python -m bench.release --version 1.1.0 --dry-run    # prints the steps
    python -m bench.release --pages                      # only the pages, from the committed files

Nothing else writes numbers. Interrupted, the same command goes on: DVC skips stages that are up to
date, a study the experiments that it has measured. Hours on two cores.
"""

import dataclasses
import datetime
import functools
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click

from bench.release.check import faults, file_md5
from bench.release.example import EXPERIMENT, RECORD, STEPS, grades_of
from bench.release.pages import REPORTS, pages
from lib.artifacts import read_json, write_json
from lib.core.errors import UserError
from lib.core.git import git
from lib.params import PARAMS_FILE, load_params
from lib.params.load import read_yaml
from lib.params.presets import nearest_preset
from lib.report.release import LOCK, RELEASE, release_name, stage_sources
from lib.studies.definition import STUDIES, load_study
from lib.studies.experiments import made_from
from lib.studies.pages import RESULTS, START, write_pages
from tests.conftest import ROOT

PROVENANCE, PUBLISHED = Path("reports/provenance"), Path("reports/release")
"""Settings, versions and hashes of the last run, which DVC caches; their copy in git."""


@dataclasses.dataclass(frozen=True)
class Step:
    """A step of a release; done again, it changes nothing."""

    name: str
    run: Callable[[], object]


def steps(version: str) -> list[Step]:
    """List the steps of a release in their order."""
    studies = published_studies()
    dvc_repro = ("-m", "dvc", "repro")
    return [
        Step(f"write version {version}", lambda: write_version(version)),
        Step("run the default: dvc repro", lambda: python(*dvc_repro)),
        *(Step(f"run the study {name}", functools.partial(run_study, name)) for name in studies),
        Step("run the example: half of GRPO's steps", run_example),
        Step(f"copy {PROVENANCE} to {PUBLISHED}", copy_provenance),
        Step("write pages, figures and tables from the files", render),
        Step(f"write {RELEASE}", lambda: write_release(version, studies)),
        Step("check that the published files agree", check),
        Step("commit and tag", lambda: commit(version)),
    ]


def published_studies() -> list[str]:
    """List the studies whose tables docs/results.md has."""
    text = RESULTS.read_text("utf-8")
    return [path.stem for path in sorted(STUDIES.glob("*.yaml")) if START.format(path.stem) in text]


def python(*arguments: str) -> None:
    """Run this interpreter with its output in this terminal.

    Raises:
        UserError: it failed.
    """
    if code := subprocess.run([sys.executable, *arguments], check=False).returncode:
        raise UserError(f"`python {' '.join(arguments)}` ended with exit code {code}")


def run_study(name: str) -> None:
    python("-m", "commands", "study", name)


def write_version(version: str) -> None:
    """Set the version in pyproject.toml and CITATION.cff, and name CHANGELOG's new part by it.

    Raises:
        UserError: CHANGELOG.md has neither `## {version}` nor `## Unreleased`.
    """
    for file, key in ((Path("pyproject.toml"), "version = "), (Path("CITATION.cff"), "version: ")):
        quote = '"' if file.suffix == ".toml" else ""
        pattern = rf"^{re.escape(key)}.*$"
        line = f"{key}{quote}{version}{quote}"
        text = re.sub(pattern, line, file.read_text("utf-8"), count=1, flags=re.M)
        file.write_text(text, encoding="utf-8")
    changes = Path("CHANGELOG.md")
    text = changes.read_text("utf-8").replace("\n## Unreleased\n", f"\n## {version}\n")
    if f"\n## {version}\n" not in text:
        raise UserError(f"CHANGELOG.md: no `## {version}`; write what changed under it")
    changes.write_text(text, encoding="utf-8")


def run_example() -> None:
    """Run the changed default of docs/compare.md as an experiment, and store both sides' grades."""
    steps = load_params().grpo.max_steps
    half = steps // 2
    known = git("for-each-ref", "--format=%(refname:lstrip=-1)", "refs/exps").split()
    if EXPERIMENT not in known:
        changed = ("-S", f"{STEPS}={half}", "grade@grpo")
        python("-m", "dvc", "exp", "run", "--temp", "--name", EXPERIMENT, *changed)
    sides = {"HEAD": steps, "workspace": half}
    write_json(RECORD, {"steps": sides, "grades": grades_of(EXPERIMENT)})


def copy_provenance() -> None:
    shutil.rmtree(PUBLISHED, ignore_errors=True)
    shutil.copytree(PROVENANCE, PUBLISHED)


def render() -> None:
    """Write the pages and figures from the files that hold their numbers."""
    for numbers in sorted(REPORTS.glob("*/study.json")):
        name = numbers.parent.name
        write_pages(name, load_study(STUDIES / f"{name}.yaml"), REPORTS)
    for page in pages():
        page.path.write_text(page.render(page.path.read_text("utf-8")), encoding="utf-8")


def write_release(version: str, studies: list[str]) -> None:
    """Write release.json: version, commit, date and CPU, and the hashes of what is published."""
    git("add", "reports")
    tracked = git("ls-files", "reports").splitlines()
    preset, _, changed = nearest_preset(load_params(PARAMS_FILE).flat())
    release = {
        **made_from(),
        "version": version,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "preset": f"{preset} with {len(changed)} changes" if changed else preset,
        "stages": stage_sources(read_yaml(LOCK)),
        "studies": {name: study_origin(name) for name in studies},
        "files": {path: file_md5(path) for path in tracked if path != str(RELEASE)},
    }
    write_json(RELEASE, release)


def study_origin(name: str) -> dict[str, str]:
    return dict(read_json(REPORTS / name / "study.json")["made_from"])


def check() -> None:
    if differences := list(faults(ROOT)):
        raise UserError("\n".join(differences))


def commit(version: str) -> None:
    """Commit everything as the release, and tag it."""
    git("add", "--all")
    git("commit", "--quiet", "-m", f"release: {version}")
    git("tag", f"v{version}")


@click.command(help=__doc__)
@click.option("--version", default="", help="Version of the release.")
@click.option("--dry-run", is_flag=True, help="Print the steps only.")
@click.option("--pages", "only_pages", is_flag=True, help="Write only the pages from their files.")
def main(version: str, dry_run: bool, only_pages: bool) -> None:
    """Do the steps of a release, each named before it starts."""
    if only_pages:
        render()
        return
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise UserError(f"VERSION={version}: expected three numbers, such as VERSION=1.1.0")
    todo = steps(version)
    for number, step in enumerate(todo, 1):
        click.echo(f"release {number}/{len(todo)}: {step.name}")
        if not dry_run:
            step.run()
    if not dry_run:
        click.echo(f"{release_name(read_json(RELEASE))}; `git push --follow-tags` publishes it")


if __name__ == "__main__":
    main()
