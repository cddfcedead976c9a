"""Accuracy on labelled public cases; the folder comes in through RECKON_SHARED."""

import os
from pathlib import Path
from typing import Any

import pytest

from bench.verifier.graders import reckon
from bench.verifier.references import labelled_row, rows_of
from reckon_verifier import counters, reset_counters

FOLDER = Path(os.environ.get("RECKON_SHARED", "")) / "grading"

pytestmark = pytest.mark.skipif(
    "RECKON_SHARED" not in os.environ or not FOLDER.is_dir(),
    reason="RECKON_SHARED is unset, or has no folder `grading`",
)


def verdict(row: dict[str, Any]) -> bool:
    return reckon(*labelled_row(row)[:-1])


def test_labelled_pairs_have_at_most_3_false_positives():
    rows = rows_of(FOLDER / "pairs.jsonl")
    wrong = [row for row in rows if verdict(row) != row["equal"]]
    assert 1 - len(wrong) / len(rows) >= 0.966
    assert sum(not row["equal"] for row in wrong) <= 3


def test_model_solutions_are_graded_as_labelled():
    rows = [row for row in rows_of(FOLDER / "outputs.jsonl") if row["source"].startswith("tora")]
    assert sum(verdict(row) == row["label"] for row in rows) / len(rows) >= 0.995


def test_hostile_answers_are_graded_without_the_clock():
    reset_counters()
    rows = [row for row in rows_of(FOLDER / "hostile.jsonl") if row["expected"] is not None]
    assert [row["id"] for row in rows if verdict(row) != row["expected"]] == []
    assert counters()["timeouts"] == 0
