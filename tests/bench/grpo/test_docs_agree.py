"""The page agrees with the committed results."""

from tests.bench.grpo.__main__ import FOLDER, LARGE, TINY, WAYS, render
from tests.bench.results import read


def test_the_readme_shows_the_committed_numbers() -> None:
    results = read(FOLDER)
    assert all(tuple(results["rows"][row]) == WAYS for row in (TINY, LARGE))
    assert (FOLDER / "README.md").read_text() == render(results)
