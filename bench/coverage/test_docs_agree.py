"""docs/statistics.md has the committed results."""

import json

from bench.coverage.__main__ import RESULTS, problems_table, seeds_table
from tests.conftest import ROOT


def test_the_tables_show_the_committed_numbers():
    results = json.loads(RESULTS.read_text("utf-8"))
    page = (ROOT / "docs/statistics.md").read_text("utf-8")
    assert problems_table(results["problems"]) in page
    assert seeds_table(results["seeds"]) in page
