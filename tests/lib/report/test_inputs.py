import pytest

from lib.core.errors import UserError
from lib.report.inputs import read_curve
from tests.lib.report.runs import CHECKPOINTS, read, write_run


def test_a_run_is_read_whole(run):
    assert {name: len(rows) for name, rows in run.completions.items()} == (
        dict.fromkeys(CHECKPOINTS, 24 * 5 + 8 * 5)
    )
    curve = run.curves["grpo"]
    assert (len(curve["kl"]), len(curve["reward"])) == (25, 50)  # an empty cell is no point
    assert curve["reward"][0][0] == 1


def test_a_skipped_phase_has_an_empty_curve(tmp_path):
    run = read(write_run(tmp_path, problems=4, skipped=("grpo",)))
    assert run.skipped == {"grpo"} and run.curves["grpo"] == {}


@pytest.mark.parametrize(
    "name", ["graded/sft.json", "graded/sft.jsonl", "base/chat_template.jinja"]
)
def test_a_missing_file_is_named_with_what_writes_it(tmp_path, name):
    sources = write_run(tmp_path, problems=2)
    (tmp_path / name).unlink()
    with pytest.raises(UserError, match=rf"{name.split('/')[0]}.*dvc repro"):
        read(sources)


@pytest.mark.parametrize(
    ("text", "key"), [("epoch,loss\n1,2\n", "step"), ("step,loss\n1,low\n", "curve.csv:2")]
)
def test_a_damaged_curve_is_named_with_its_row(tmp_path, text, key):
    path = tmp_path / "curve.csv"
    path.write_text(text)
    with pytest.raises(UserError, match=key):
        read_curve(path)


def test_metrics_that_are_no_json_are_named(tmp_path):
    sources = write_run(tmp_path, problems=2)
    (sources.metrics / "sft.json").write_text("<<<<<<< HEAD")
    with pytest.raises(UserError, match=r"metrics/sft.json"):
        read(sources)


def test_files_of_an_older_run_with_dpo_are_left_out(tmp_path):
    sources = write_run(tmp_path)
    for folder in (sources.provenance, sources.metrics):
        (folder / "dpo.json").write_text('{"skipped": true}', encoding="utf-8")
    (sources.curves / "dpo.csv").write_text("step,loss\n1,0.7\n", encoding="utf-8")
    run = read(sources)
    assert "dpo" not in {*run.curves, *run.provenance, *run.stage_metrics, *run.skipped}
