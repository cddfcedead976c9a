"""Published files agree with each other, and a changed number is named with its file.

Slow, so that `make test` knows no published number.
"""

import shutil

import pytest

from bench.release.__main__ import steps
from bench.release.check import faults
from tests.conftest import ROOT, run_command

CHANGES = {
    "README.md": ("| 58.7 |", "| 58.8 |", ": 58.8;", "has 58.7"),
    "docs/results.md": ("loses 4.6 points", "loses 5.6 points", ": 5.6;", "has 4.6"),
    "docs/compare.md": ("−1.2    −3.5", "−1.3    −3.5", ": −1.3;", "example.json has −1.2"),
    "docs/statistics.md": ("96.0 (93.5)", "1.5 (93.5)", ": 1.5;", "has 96.0"),
    "reports/studies/seeds/study.md": ("4.7 hours", "4.8 hours", ": 4.8;", "has 4.7"),
    "reports/metrics/sft.json": ("0.279499", "0.27", "release.json records", "dvc.lock records"),
    "CITATION.cff": ("version: 1.0.0", "version: 1.0.1", "1.0.1", "has 1.0.0"),
}
"""Published file → its text, another one, and what the check says of the file."""


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """Copy what git tracks, without code."""
    folder = tmp_path_factory.mktemp("published")
    for file in run_command("git", "ls-files").stdout.splitlines():
        if not file.startswith(("lib/", "tests/", "stages/", ".")):
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, folder / file)
    return folder


@pytest.mark.slow
def test_a_changed_number_is_named_with_file_and_value(published):
    assert list(faults(published)) == []
    for file, (text, other, *_) in CHANGES.items():
        content = (published / file).read_text("utf-8")
        assert text in content, file
        (published / file).write_text(content.replace(text, other, 1), "utf-8")
    found = list(faults(published))
    for file, (_, _, *parts) in CHANGES.items():
        own = "\n".join(line for line in found if line.startswith(file))
        assert own and all(part in own for part in parts), (file, found)
    assert {line.split(":")[0] for line in found} == {*CHANGES}


def test_a_release_runs_what_pages_quote_then_writes(monkeypatch):
    monkeypatch.chdir(ROOT)
    names = [step.name for step in steps("1.1.0")]
    assert [name for name in names if "study" in name] == [
        "run the study pretrained",
        "run the study seeds",
    ]
    assert names.index("run the default: dvc repro") < names.index("run the study seeds")
    assert names[-2:] == ["check that the published files agree", "commit and tag"]
