"""The README's numbers are those of HEAD, its commands exist, and its map has every room."""

import json
import re
import subprocess
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from lib.report.comparisons import read_comparisons
from lib.report.summary import results_block, with_results

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def committed(path: str) -> str:
    return subprocess.run(
        ["git", "show", f"HEAD:{path}"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout


def test_the_result_table_is_that_of_the_metrics_in_head() -> None:
    evaluate = YAML(typ="safe").load(committed("params.yaml"))["evaluate"]
    metrics = {
        name: json.loads(committed(f"reports/metrics/evaluate/{name}.json"))
        for name in evaluate["checkpoints"]
    }
    differences = json.loads(committed("reports/metrics/report.json"))
    block = results_block(
        metrics,
        comparisons=read_comparisons(differences, evaluate["checkpoints"], {}),
        benchmarks=evaluate["benchmarks"],
    )
    readme = committed("README.md")
    assert readme == with_results(readme, block), "run `python -m stages.summary --readme`"


@pytest.mark.parametrize("verb", sorted(set(re.findall(r"make ([a-z-]+)", README))))
def test_every_make_verb_in_the_readme_exists(verb: str) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(rf"^{verb}:", makefile, re.MULTILINE)


def test_the_map_names_every_room_of_the_library() -> None:
    rooms = {path.stem for path in (ROOT / "lib").iterdir() if path.name[0] not in "_."}
    words = set(re.findall(r"[a-z_]+", README.split("## How it works")[1]))
    assert not rooms - words


def test_the_map_names_every_stage() -> None:
    stages = {path.stem for path in (ROOT / "stages").glob("[a-z]*.py")}
    words = set(re.findall(r"[a-z_]+", README.split("stages/ ")[1].split("lib/ ")[0]))
    assert not stages - words


def test_every_link_into_the_repository_leads_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert links
    assert not [link for link in links if "://" not in link and not (ROOT / link).exists()]


def test_the_readme_stays_short() -> None:
    assert len(README.splitlines()) <= 250


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
    mean = json.loads((ROOT / "reports/study/study.json").read_text("utf-8"))["mean"]
    words = " ".join(README.split())
    for pair in ("sft_to_grpo", "control_to_grpo"):
        for measure in ("greedy_answer_accuracy", "sampled_pass_at_1"):
            assert f"{100 * mean[pair][measure]['difference']:+.1f}" in words


def test_every_console_block_shows_a_command_or_an_error() -> None:
    blocks = re.findall(r"```console\n(.*?)```", README, re.DOTALL)
    assert blocks
    assert all(block.startswith(("$ ", "Error: ")) for block in blocks)


def test_every_page_of_the_docs_is_linked() -> None:
    pages = {f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")}
    assert pages <= set(re.findall(r"\]\(([^)#]+)\)", README))


def test_the_step_time_is_that_of_its_benchmark() -> None:
    results = json.loads((ROOT / "tests/bench/grpo/results.json").read_text("utf-8"))
    ratio = results["rows"]["tiny preset"]["reckon"]["ratio"][0]
    for page in ("README.md", "docs/engines.md"):
        text = " ".join((ROOT / page).read_text("utf-8").split())
        assert f"takes {ratio:.2f} of the CPU time of stock TRL's" in text
