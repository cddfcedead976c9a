"""Published files agree with each other, and a changed number is named with its file.

Slow, so that `make test` knows no published number.
"""

import re
import shutil

import pytest

from bench.release.check import faults
from tests.conftest import ROOT, run_command

NUMBERS = {
    "README.md": r"\| (\d+\.\d) \|",
    "docs/results.md": r"loses (\d+\.\d) points",
    "docs/compare.md": r"[−+](\d+\.\d) +[−+]\d+\.\d",
    "bench/coverage/README.md": r"(\d+\.\d) \(\d+\.\d\)",
    "reports/studies/seeds/study.md": r"(\d+\.\d) hours",
    "CITATION.cff": r"\nversion: (\d+\.\d+\.\d+)",
}
"""Published file → one of its numbers."""

REPORT = "reports/metrics/sft.json"


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
    numbers = {}
    for file, pattern in NUMBERS.items():
        content = (published / file).read_text("utf-8")
        match = re.search(pattern, content)
        numbers[file], start = match[1], match.start(1)
        (published / file).write_text(f"{content[:start]}9{content[start:]}", "utf-8")
    (published / REPORT).write_text("{}")
    found = list(faults(published))
    for file, number in numbers.items():
        own = "\n".join(line for line in found if line.startswith(file))
        assert f"9{number}" in own and re.search(rf" has \S?{number}$", own, re.M), found
    sources = {line.split(" records ")[0].split()[-1] for line in found if line.startswith(REPORT)}
    assert sources == {"dvc.lock", "reports/release.json"}
    assert {line.split(":")[0] for line in found} == {*NUMBERS, REPORT}
