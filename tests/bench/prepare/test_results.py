"""The page says what was measured, and what was measured is what is claimed."""

import json

from tests.bench.prepare.__main__ import HERE, ROWS, page

RESULTS = json.loads((HERE / "results.json").read_text(encoding="utf-8"))


def test_the_page_is_made_from_the_results():
    assert (HERE / "README.md").read_text(encoding="utf-8") == page(RESULTS)


def test_17000_rows_of_gsm8ks_size_took_less_than_a_minute_on_two_cores():
    case = RESULTS["cases"]["gsm8k_size"]
    assert case["read"] == ROWS == 17_000
    assert RESULTS["machine"]["cores"] <= 2
    assert case["seconds"] < 60


def test_memory_did_not_follow_the_text():
    small, large = RESULTS["cases"]["gsm8k_size"], RESULTS["cases"]["text_x16"]
    more_text = large["file_mb"] - small["file_mb"]
    assert more_text > 100
    assert large["peak_own_mb"] - small["peak_own_mb"] < more_text / 3


def test_every_planted_row_was_found():
    dropped = RESULTS["cases"]["gsm8k_size"]["dropped"]
    assert dropped["exact_duplicate"] == dropped["near_duplicate"] == ROWS // 100
    assert dropped["contaminated"] == ROWS // 200
