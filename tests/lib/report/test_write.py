import dataclasses
import json
import re

import pytest

from lib.report.report import _main_rows, build_report
from lib.report.write import render_markdown, write_report
from tests.lib.report.runs import CHECKPOINTS, HOSTILE, load, read, write_run, write_text


def written(folder, run):
    """Write the report of `run`; return every file's bytes by name."""
    folder.mkdir()
    write_text(folder / "figures/old.svg", "of an earlier run, and removed")
    names = {"markdown": "report.md", "page": "report.html", "metrics": "report.json"}
    names |= {"figures": "figures", "plots": "plots"}
    write_report(run, **{key: folder / name for key, name in names.items()})
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def markdown(run):
    return render_markdown(build_report(run), figures="figures")


@pytest.fixture(scope="module")
def files(run, tmp_path_factory):
    return written(tmp_path_factory.mktemp("report") / "out", run)


def test_the_same_run_gives_the_same_bytes(run, files, tmp_path):
    assert written(tmp_path / "again", run) == files


def test_the_example_is_one_of_those_that_training_changed(run):
    example = build_report(run).example
    rows = {name: _main_rows(run, name) for name in ("sft", "grpo")}
    pairs = [(old.answer_ok, new.answer_ok) for old, new in zip(*rows.values(), strict=True)]
    gained, lost = pairs.count((False, True)), pairs.count((True, False))
    assert f"One of {gained} problems" in example.caption and f"{lost} the" in example.caption
    assert [row.answer_ok for row in example.answers.values()][1:] == [False, True]
    same = dataclasses.replace(run, completions=dict.fromkeys(CHECKPOINTS, run.completions["sft"]))
    assert build_report(same).example


def test_one_checkpoint_is_compared_with_none(tmp_path):
    folder = write_run(tmp_path / "run", problems=6)
    text = markdown(read(folder, exported="base", checkpoints=("base",), starts={}))
    assert "| base |" in text and "problem by problem" not in text
    assert not re.search(r"^### .+\n+(?=\n#|\Z)", text, re.M), "a heading over nothing"


def test_hostile_completions_leave_the_markdown_whole(tmp_path):
    text = markdown(load(tmp_path / "run", problems=6, hostile=HOSTILE))
    assert len(text) < 100_000
    outside = re.sub(r"^(`{3,})text\n.*?^\1$", "", text, flags=re.M | re.S)
    assert not re.search(r"<(?!/?details>|/?summary>|\s|=)", outside.replace("\\<", ""))


def test_tracked_numbers_are_differences_and_the_exports_rates(run, files):
    numbers = json.loads(files["report.json"])
    paired = numbers["paired"][0]["sft_to_grpo"]["held_out"]["greedy_answer_accuracy"]
    assert paired["low"] < paired["difference"] < paired["high"] and paired["n"] == 24
    assert numbers["sft_to_grpo"]["held_out"]["greedy"] == paired["difference"]
    rates = run.metrics[run.exported][run.benchmarks[0]]
    for mode, measure in (("greedy", "answer_accuracy"), ("sampled", "pass_at_1")):
        assert numbers["exported"][measure] == pytest.approx(rates[mode][measure], abs=1e-6)
