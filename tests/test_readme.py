"""The README's numbers are those of HEAD, its commands exist, and its map has every room."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from lib.report.text import points
from lib.studies.definition import load_study
from lib.studies.results import START, with_rates

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MAP = (ROOT / "docs/architecture.md").read_text(encoding="utf-8").split("## The files")[1]


def committed(path: str) -> str:
    return subprocess.run(
        ["git", "show", f"HEAD:{path}"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout


def test_the_result_table_is_that_of_the_study_in_head() -> None:
    readme = committed("README.md")
    metrics = json.loads(committed("reports/studies/seeds/study.json"))
    assert START.format("seeds") in readme
    assert readme == with_rates(readme, "seeds", load_study("seeds"), metrics)


@pytest.mark.parametrize("verb", sorted(set(re.findall(r"make ([a-z-]+)", README))))
def test_every_make_verb_in_the_readme_exists(verb: str) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(rf"^{verb}:", makefile, re.MULTILINE)


def test_the_map_names_every_room_of_the_library() -> None:
    rooms = {path.stem for path in (ROOT / "lib").iterdir() if path.name[0] not in "_."}
    words = set(re.findall(r"[a-z_]+", MAP))
    assert not rooms - words


def test_every_link_into_the_repository_leads_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert links
    assert not [link for link in links if "://" not in link and not (ROOT / link).exists()]


def test_the_verifiers_figures_are_those_of_its_benchmark() -> None:
    results = json.loads((ROOT / "tests/bench/verifier/results.json").read_text("utf-8"))
    ours, theirs = (
        results["graders"][name]["hardverify_math"] for name in ("reckon", "math-verify")
    )
    words = " ".join(README.split())
    assert ours["tnr"] == 1
    for share in (ours["tpr"], theirs["tpr"], 1 - theirs["tnr"]):
        assert f"{100 * share:.1f} %" in words


def test_the_study_s_means_are_those_of_its_file() -> None:
    study = json.loads((ROOT / "reports/studies/seeds/study.json").read_text("utf-8"))
    words = " ".join(README.split())
    for comparison in study["comparisons"].values():
        assert f"{points(comparison['pass@1']['mean'])} points" in words


def test_every_page_of_the_docs_is_linked() -> None:
    pages = {f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")}
    assert pages <= set(re.findall(r"\]\(([^)#]+)\)", README))


def test_the_step_time_is_that_of_its_benchmark() -> None:
    results = json.loads((ROOT / "tests/bench/grpo/results.json").read_text("utf-8"))
    ratio = results["ways"]["reckon"]["ratio"][0]
    for page in ("README.md", "docs/engines.md"):
        text = " ".join((ROOT / page).read_text("utf-8").split())
        assert f"takes {ratio:.2f} of the CPU time of stock TRL's" in text
