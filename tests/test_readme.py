"""README's numbers, example and map equal the committed files, the output and the library."""

import json
import re
from statistics import fmean

import pytest

from lib.artifacts import read_json
from lib.report.comparisons import MEASURES
from lib.report.text import points
from lib.studies.definition import STUDIES, load_study
from lib.studies.pages import START, with_rates
from tests.conftest import ROOT, run_command
from tests.docs.example import RECORD, rate, with_example

README = (ROOT / "README.md").read_text(encoding="utf-8")
WORDS = " ".join(README.split())


def committed(path: str) -> str:
    return run_command("git", "show", f"HEAD:{path}").stdout


def test_the_result_table_is_that_of_the_study_in_head():
    readme = committed("README.md")
    metrics = json.loads(committed("reports/studies/seeds/study.json"))
    assert START.format("seeds") in readme
    assert readme == with_rates(readme, "seeds", load_study(STUDIES / "seeds.yaml"), metrics)


def test_the_study_s_means_are_those_of_its_file():
    study = read_json(ROOT / "reports/studies/seeds/study.json")
    for comparison in study["comparisons"].values():
        assert f"{points(comparison['pass@1']['mean'])} points" in WORDS


def test_the_example_is_what_make_compare_prints():
    assert with_example(README, read_json(RECORD)) == README


def test_the_example_starts_from_the_committed_run():
    grades = read_json(RECORD)
    exported = json.loads(committed("reports/metrics/report.json"))["exported"]
    for mode, measure in MEASURES.items():
        rates = rate(grades[f"held_out {mode}"]["HEAD"], mode=mode)
        assert fmean(rates.values()) == pytest.approx(exported[measure], abs=1e-6), (
            "the default run changed: run README's commands in a clone, then "
            "`python -m tests.docs.example CLONE`"
        )


def test_the_verifiers_figures_are_those_of_its_benchmark():
    results = read_json(ROOT / "bench/verifier/results.json")
    ours, theirs = (
        results["graders"][name]["sets"]["hardverify_math"] for name in ("reckon", "math-verify")
    )
    assert ours["TNR"] == 1
    for share in (ours["TPR"], theirs["TPR"], 1 - theirs["TNR"]):
        assert f"{100 * share:.1f} %" in WORDS


def test_the_step_time_is_that_of_its_benchmark():
    results = read_json(ROOT / "bench/grpo/results.json")
    ratio = results["ways"]["reckon"]["ratio"][0]
    for page in ("README.md", "docs/engines.md"):
        assert f"{ratio:.2f} of the CPU time" in (ROOT / page).read_text("utf-8")


def test_the_map_names_every_room_of_the_library():
    architecture = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    rooms = {path.stem for path in (ROOT / "lib").iterdir() if path.name[0] not in "_."}
    assert not rooms - set(re.findall(r"[a-z_]+", architecture.split("## The files")[1]))
