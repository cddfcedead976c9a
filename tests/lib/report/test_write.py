import dataclasses
import json
import re
from pathlib import Path

import pytest

from lib.report.comparisons import compare_checkpoints
from lib.report.report import build_report, render_markdown, write_report
from lib.report.summary import summary_lines
from tests.lib.report.runs import HOSTILE, load, write_text

WORSE = {"base": 0.0, "sft": 0.9, "grpo": 0.2}


def written(folder, run):
    """Write the report of `run`; returns every file's bytes by name."""
    folder.mkdir()
    write_text(folder / "figures/old.svg", "of an earlier run, and removed")
    write_report(
        run,
        markdown=folder / "report.md",
        figures=folder / "figures",
        page=folder / "report.html",
        metrics=folder / "report.json",
    )
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def markdown(run):
    return render_markdown(build_report(run), figures="figures")


@pytest.fixture(scope="module")
def files(run, tmp_path_factory):
    return written(tmp_path_factory.mktemp("report") / "out", run)


def test_the_same_run_gives_the_same_bytes(run, files, tmp_path):
    assert written(tmp_path / "again", run) == files


def test_every_figure_that_the_markdown_shows_is_there(files):
    shown = re.findall(r"!\[[^]]*\]\((.*?)\)", files["report.md"].decode())
    assert sorted(shown) == sorted(name for name in files if name.endswith(".svg"))


def test_markdown_says_what_the_last_phase_gained(files):
    text = files["report.md"].decode()
    assert re.search(r"sft → grpo: greedy answer accuracy on held_out \+\d+\.\d points", text)
    assert "CAUTION" not in text


def test_ten_transcripts_right_and_wrong(files):
    verdicts = re.findall(r"^### \d+\. (right|wrong): answer", files["report.md"].decode(), re.M)
    assert len(verdicts) == 10
    assert {"right", "wrong"} == set(verdicts)


def test_a_worse_model_is_said_first_and_loudly(tmp_path):
    text = markdown(load(tmp_path / "run", skill=WORSE))
    head = text[: text.index("## Results")]
    assert "[!CAUTION]" in head
    assert "GRPO IS WORSE THAN SFT BEYOND NOISE" in head


def test_what_the_gain_does_not_show_is_said_beside_it(files):
    text = files["report.md"].decode()
    said = "What this does not show: 60.0 % of the SFT targets give the bare answer"
    assert text.index(said) < text.index("## Results")


def test_a_skipped_phase_is_said(tmp_path):
    run = load(tmp_path / "run", problems=6, skipped=("grpo",))
    text = markdown(run)
    assert "Skipped in this run: grpo." in text
    assert "What this does not show" not in text
    assert "| grpo (skipped) |" in text


def test_hostile_completions_leave_the_markdown_whole(tmp_path):
    run = load(tmp_path / "run", problems=6, hostile=HOSTILE)
    text = markdown(run)
    assert len(text) < 100_000
    outside = re.sub(r"^(`{3,})text\n.*?^\1$", "", text, flags=re.M | re.S)
    assert not re.search(r"<(?!/?details>|/?summary>|\s|=)", outside.replace("\\<", ""))


def test_differences_are_finite_numbers(files):
    found = json.loads(files["report.json"])["sft_to_grpo"]["held_out"]["greedy_answer_accuracy"]
    assert found["low"] < found["difference"] < found["high"]
    assert found["n"] == 24


def test_summary_ends_with_where_the_model_is(run):
    lines = list(
        summary_lines(
            run.metrics,
            comparisons=compare_checkpoints(run),
            benchmark="held_out",
            skipped=run.skipped,
            model=Path("data/models/export"),
            report=Path("reports/report.md"),
        )
    )
    assert lines[1].split() == ["base", "sft", "grpo"]
    assert lines[-2:] == ["model:  data/models/export", "report: reports/report.md"]
    assert any(line.startswith("sft → grpo: greedy answer accuracy") for line in lines)


def test_the_run_is_named_and_what_differs_from_its_preset_comes_first(run):
    report = build_report(run)
    facts = dict(report.facts)
    assert facts["preset"].endswith(" with 1 change") and facts["seed"] == "0"
    settings = next(table for table in report.provenance if table.title == "settings")
    assert settings.rows[0][:2] == ("sft.learning_rate", "0.003")
    assert settings.rows[0][2] not in ("", "0.003")
    assert settings.strong == {0}
    other = dataclasses.replace(run, provenance={"sft": {"settings": {"seed": 1}}})
    assert dict(build_report(other).facts)["run"] != facts["run"]


def test_validation_is_tabled_from_the_first_step_to_the_last(run):
    assert build_report(run).validation.rows == (
        ("grpo", "25.0 ± 5.0 (step 0)", "75.0 ± 5.0 (step 50)", "+50.0"),
        ("grpo harder", "0.0 (step 0)", "50.0 (step 50)", "+50.0"),
    )
