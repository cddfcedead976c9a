"""docs/verifier.md shows the bench's latest figures."""

import json

import pytest

from tests.conftest import ROOT

MEASURED = json.loads((ROOT / "bench/verifier/results.json").read_text(encoding="utf-8"))
PAGE = (ROOT / "docs/verifier.md").read_text(encoding="utf-8").splitlines()
SPEED = "answers_per_cpu_second"
FIGURES = {
    "HardVerify-Math, open half: right answers accepted": ("hardverify_math", "TPR"),
    "HardVerify-Math, open half: wrong answers refused": ("hardverify_math", "TNR"),
    "MathArena, answers that its parser could not read, open half": ("matharena_manual", "TPR"),
    "PRM800K solutions, open half: the marked answer is extracted": ("prm800k_extraction", "TPR"),
    "pairs of public graders' own tests": ("pairs", "agreement"),
    "pairs written against the verifier: right": ("written", "TPR"),
    "pairs written against the verifier: wrong": ("written", "TNR"),
    "tora's outputs, agreement with the labels": ("tora", "agreement"),
    "qwen2.5-math-rm's outputs, agreement": ("qwen2.5-math-rm-example", "agreement"),
    "answers per CPU-second: short ones of the pairs": ("speed", SPEED),
    "answers per CPU-second: HardVerify-Math": ("hardverify_math", SPEED),
}
"""Row of the table: set and rate in results.json."""


@pytest.mark.parametrize("title", FIGURES)
def test_the_page_shows_what_was_measured_of_both_graders(title):
    (row,) = [line for line in PAGE if line.startswith(f"| {title}")]
    name, rate = FIGURES[title]
    cells = row.strip(" |").split(" | ")[-2:]
    for cell, grader in zip(cells, ("reckon", "math-verify"), strict=True):
        measured = MEASURED["graders"][grader]
        value = (measured if name == "speed" else measured["sets"])[name][rate]
        shown = cell.removesuffix(" %").replace(",", "")
        places = len(shown.partition(".")[2])
        assert float(shown) == round(100 * value if "%" in cell else value, places)
