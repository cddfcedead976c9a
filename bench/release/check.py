"""Compare the published files with each other: README, docs, reports, figures, release.json.

`python -m bench.release.check` prints each difference. Numbers are compared, not words, so that
a page's wording may change at any commit; no published number is compared with code.
"""

import contextlib
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import click

from bench.release.example import RECORD, rate
from bench.release.pages import NUMBER, REPORTS, Page, pages
from lib.artifacts import read_json
from lib.params.load import read_yaml
from lib.report.comparisons import MEASURES
from lib.report.release import LOCK, RELEASE, project_version, read_release, stage_sources
from lib.studies.pages import RESULTS, START
from tests.conftest import ROOT

REMEDY = "`python -m bench.release --pages` writes the pages from the files"


def faults(root: Path) -> Iterator[str]:
    """Yield a line for each published file that differs from another, with both values."""
    with contextlib.chdir(root):
        release = read_release()
        yield from version_faults(release["version"])
        yield from release_faults(release)
        yield from example_faults()
        for page in pages():
            yield from page_faults(page)


def version_faults(version: str) -> Iterator[str]:
    """Compare the versions of release.json, pyproject.toml, CITATION.cff and CHANGELOG.md."""
    citation = read_yaml(Path("CITATION.cff"))["version"]
    for file, own in (("pyproject.toml", project_version()), ("CITATION.cff", citation)):
        if own != version:
            yield f"{file}: version {own}; {RELEASE} has {version}"
    if f"\n## {version}\n" not in Path("CHANGELOG.md").read_text("utf-8"):
        yield f"CHANGELOG.md: no `## {version}`, the version of {RELEASE}"


def release_faults(release: dict[str, Any]) -> Iterator[str]:
    """Compare release.json with the reports, dvc.lock with both, the studies with release.json."""
    lock = read_yaml(LOCK)
    outs = {out["path"]: out for each in lock["stages"].values() for out in each.get("outs", ())}
    recorded = {path: out["md5"] for path, out in outs.items() if Path(path).is_file()}
    for source, hashes in ((RELEASE, release["files"]), (LOCK, recorded)):
        for path, md5 in hashes.items():
            # Git does not hold the provenance and the page of a run that was made here.
            if path in release["files"] and (not Path(path).is_file() or file_md5(path) != md5):
                yield f"{path}: not the file that {source} records (md5 {md5})"
    for name, sources in stage_sources(lock).items():
        if release["stages"].get(name) != sources:
            yield f"{LOCK}: stage {name} has other code, params or data than {RELEASE}"
    if (measured := read_json(Path("reports/metrics/report.json"))["measured_on"]) != [
        release["device"]
    ]:
        yield f"reports/metrics/report.json: measured_on {measured}; {RELEASE} {release['device']}"
    for name, origin in release["studies"].items():
        if START.format(name) not in RESULTS.read_text("utf-8"):
            yield f"{RESULTS}: no table of the study {name}, which {RELEASE} names"
        if (own := read_json(REPORTS / name / "study.json")["made_from"]) != origin:
            yield f"{REPORTS / name}/study.json: made_from {own}; {RELEASE} has {origin}"


def file_md5(path: str) -> str:
    return hashlib.md5(Path(path).read_bytes(), usedforsecurity=False).hexdigest()


def example_faults() -> Iterator[str]:
    """Compare the run that the example starts from with the default run's rates."""
    grades = read_json(RECORD)["grades"]
    exported = read_json(Path("reports/metrics/report.json"))["exported"]
    for mode, measure in MEASURES.items():
        own = fmean(rate(grades[f"held_out {mode}"]["HEAD"], mode=mode).values())
        if abs(own - exported[measure]) > 1e-6:
            yield f"{RECORD}: {measure} {own:.6f}; reports/metrics/report.json {exported[measure]}"


def page_faults(page: Page) -> Iterator[str]:
    """Yield at most one line: the first number of the page that its source does not have."""
    if not page.path.is_file():
        yield f"{page.path}: missing; it has numbers of {page.source}"
        return
    text = page.path.read_text("utf-8")
    try:
        rendered = page.render(text)
    except LookupError as error:
        yield f"{page.path}: no place for a number of {page.source}: {error.args[0]}"
        return
    if text == rendered:
        return
    shown, expected = (list(re.finditer(NUMBER, each)) for each in (text, rendered))
    for old, new in zip(shown, expected, strict=False):
        if old[0] != new[0]:
            line = text.count("\n", 0, old.start()) + 1
            yield f"{page.path}:{line}: {old[0]}; {page.source} has {new[0]}"
            return
    if len(shown) != len(expected):
        yield f"{page.path}: {len(shown)} numbers; {page.source} gives {len(expected)}"


@click.command(help=__doc__)
def main() -> None:
    differences = list(faults(ROOT))
    if differences:
        raise click.ClickException("\n".join([*differences, REMEDY]))
    click.echo(f"release-check: the published files of {read_release()['version']} agree")


if __name__ == "__main__":
    main()
