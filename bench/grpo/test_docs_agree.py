"""The page agrees with the committed results."""

import json

from bench.grpo.__main__ import FOLDER, WAYS, render


def test_the_readme_shows_the_committed_numbers():
    results = json.loads((FOLDER / "results.json").read_text("utf-8"))
    assert tuple(results["ways"]) == WAYS
    assert (FOLDER / "README.md").read_text("utf-8") == render(results)
