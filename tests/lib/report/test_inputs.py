import json

import pytest

from lib.artifacts.completions import read_graded
from lib.errors import UserError
from lib.report.inputs import read_curve
from tests.lib.report.runs import CHECKPOINTS, read, write_run


def test_a_run_is_read_whole(run):
    assert run.benchmarks == ("held_out", "harder")
    assert {name: len(rows) for name, rows in run.completions.items()} == (
        dict.fromkeys(CHECKPOINTS, 24 * 5 + 8 * 5)
    )
    assert run.skipped == frozenset()
    assert "dpo" not in run.curves


def test_empty_cells_of_a_curve_are_no_points(run):
    curve = run.curves["grpo"]
    assert (len(curve["kl"]), len(curve["reward"])) == (25, 50)
    assert curve["reward"][0][0] == 1
    assert "never_logged" not in curve


def test_a_skipped_phase_is_known_and_has_an_empty_curve(tmp_path):
    sources = write_run(tmp_path, problems=4, skipped=("grpo",))
    run = read(sources)
    assert run.skipped == {"grpo"}
    assert run.curves["grpo"] == {}


def test_an_export_that_was_not_evaluated_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"export.checkpoint: `dpo` is not in evaluate.checkpoints"):
        read(write_run(tmp_path, problems=2), exported="dpo")


@pytest.mark.parametrize("missing", ["graded/sft.json", "graded/sft.jsonl"])
def test_a_missing_file_is_named_with_the_command_that_writes_it(tmp_path, missing):
    sources = write_run(tmp_path, problems=2)
    (tmp_path / missing).unlink()
    with pytest.raises(UserError, match=rf"{missing}: no such file.*run `dvc repro`"):
        read(sources)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("{", "JSONDecodeError"),
        ("[]", "TypeError"),
        (json.dumps({"checkpoint": "sft"}), "KeyError: 'benchmark'"),
    ],
)
def test_a_damaged_completion_is_named_with_its_line(tmp_path, line, expected):
    good = (write_run(tmp_path, problems=2).graded / "sft.jsonl").read_text().splitlines()[0]
    path = tmp_path / "damaged.jsonl"
    path.write_text(f"{good}\n{line}\n")
    with pytest.raises(UserError, match=rf"damaged.jsonl:2: not a graded completion \({expected}"):
        list(read_graded(path))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("epoch,loss\n1,2\n", "the first column is `epoch`, expected `step`"),
        ("step,loss\n1,low\n", "curve.csv:2: could not convert"),
    ],
)
def test_a_damaged_curve_is_named_with_its_row(tmp_path, text, expected):
    path = tmp_path / "curve.csv"
    path.write_text(text)
    with pytest.raises(UserError, match=expected):
        read_curve(path)


def test_metrics_that_are_no_json_are_named(tmp_path):
    sources = write_run(tmp_path, problems=2)
    (sources.metrics / "sft.json").write_text("<<<<<<< HEAD")
    with pytest.raises(UserError, match=r"metrics/sft.json: not JSON"):
        read(sources)


def test_files_of_an_older_run_with_another_phase_are_not_part_of_this_one(tmp_path):
    sources = write_run(tmp_path)
    for folder in (sources.provenance, sources.metrics):
        (folder / "dpo.json").write_text('{"skipped": true}', encoding="utf-8")
    (sources.curves / "dpo.csv").write_text("step,loss\n1,0.7\n", encoding="utf-8")
    run = read(sources)
    assert "dpo" not in {*run.curves, *run.provenance, *run.stage_metrics, *run.skipped}
