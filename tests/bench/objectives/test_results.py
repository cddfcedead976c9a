"""The committed numbers say what the docs say about them."""

import json

import pytest

from tests.bench.objectives.__main__ import FOLDER, measure, render

RESULTS = json.loads((FOLDER / "results.json").read_text())


def test_the_readme_shows_the_committed_numbers() -> None:
    assert (FOLDER / "README.md").read_text() == render(RESULTS)


def test_from_hidden_states_the_peak_is_flat_in_tokens_where_the_plain_one_grows() -> None:
    rows = [r for r in RESULTS["memory"] if r["source"] == "hidden" and r["vocabulary"] == 32_768]
    assert [row["tokens"] for row in rows] == [512, 1024, 2048, 4096]
    assert rows[-1]["chunked_mib"] < 1.1 * rows[0]["chunked_mib"]
    assert rows[-1]["plain_mib"] > 4 * rows[0]["plain_mib"]


@pytest.mark.slow
def test_measured_afresh_the_peak_is_flat_too() -> None:
    peaks = [
        measure("memory", "hidden", tokens, 8192, 64, MALLOC_MMAP_THRESHOLD_="65536")["peak_mib"]
        for tokens in (256, 2048)
    ]
    assert peaks[1] < 1.2 * peaks[0]
