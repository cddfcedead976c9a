import json
import math
import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from click.testing import CliRunner

from lib.errors import UserError
from lib.report.compare import (
    compare_completions,
    compare_metrics,
    compare_with,
    metric_changes,
    rates_diff,
    reading_order,
    resolve_revision,
    run_dvc,
)
from lib.report.comparisons import alarms
from stages.compare import main
from tests.lib.report.runs import completion_rows, write_json, write_text

PARAMS = Path("lib/presets/tiny-cpu.yaml").read_text()
DVC_YAML = """\
params:
- params.yaml
metrics:
- reports/metrics/report.json
- reports/metrics/sft.json
- reports/metrics/evaluate/sft.json
- reports/metrics/evaluate/grpo.json
plots:
- reports/curves/grpo.csv:
    x: step
    y: reward
"""


COMPLETIONS = "data/graded/grpo.jsonl"


def entry(old, new):
    return {"old": old, "new": new}


def accuracy_diff(old, new, *, se=0.02):
    return {
        "m/grpo.json": {
            "held_out.greedy.answer_accuracy": entry(old, new),
            "held_out.greedy.answer_accuracy_se": entry(se, se),
            "held_out.greedy.n": entry(500, 500),
        }
    }


def test_a_difference_is_counted_in_its_own_standard_errors():
    (change,) = metric_changes(accuracy_diff(0.5, 0.6, se=0.03))
    assert change.se == pytest.approx(0.03 * math.sqrt(2))
    assert change.in_standard_errors == pytest.approx(0.1 / (0.03 * math.sqrt(2)))


def test_what_did_not_change_is_no_change():
    assert list(metric_changes(accuracy_diff(0.5, 0.5))) == []


def test_what_checkpoints_are_judged_by_is_listed_first():
    diff = {
        "m/sft.json": {"loss": entry(1.0, 2.0)},
        "m/evaluate/grpo.json": {
            "held_out.sampled.pass_at_1": entry(0.1, 0.2),
            "held_out.greedy.class_00": entry(0.1, 0.2),
            "held_out.greedy.answer_accuracy": entry(0.1, 0.2),
        },
    }
    assert [change.name for change in sorted(metric_changes(diff), key=reading_order)] == [
        "held_out.greedy.answer_accuracy",
        "held_out.sampled.pass_at_1",
        "held_out.greedy.class_00",
        "loss",
    ]


def test_a_number_without_an_error_has_no_verdict():
    (change,) = metric_changes({"sft.json": {"loss": entry(1.0, 2.0)}})
    assert math.isnan(change.in_standard_errors)


def test_a_new_number_has_no_verdict():
    (change,) = metric_changes({"m.json": {"a": {"new": 1.0}, "a_se": {"old": None, "new": 0.1}}})
    assert math.isnan(change.in_standard_errors)


def judge(old, new):
    """The alarms when no completions are at hand."""
    entries = (accuracy_diff(*sides)["m/grpo.json"] for sides in (old, new))
    return list(alarms(compare_metrics("HEAD", *entries)))


@pytest.mark.parametrize(
    ("new", "worse"), [(0.62, False), (0.58, False), (0.40, True)], ids=["better", "noise", "worse"]
)
def test_worse_than_base_means_beyond_noise(new, worse):
    sentences = judge((0.6, new), (0.6, new))
    assert bool(sentences) == worse
    start = "WORKSPACE IS WORSE THAN HEAD BEYOND NOISE: greedy answer accuracy on held_out −20.0"
    assert all(sentence.startswith(start) for sentence in sentences)


def test_another_exported_checkpoint_is_compared_with_the_one_that_base_exported():
    assert judge((0.9, 0.9), (0.1, 0.1))
    assert not judge((0.1, 0.1), (0.9, 0.9))


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """A repository whose HEAD holds one run, as git and DVC see it."""
    folder = tmp_path_factory.mktemp("repository")
    write_text(folder / "dvc.yaml", DVC_YAML)
    write_text(folder / "params.yaml", PARAMS)
    write_text(folder / "reports/curves/grpo.csv", "step,reward\n1,0.2\n2,0.4\n")
    write_metrics(folder, grpo=0.6)
    write_completions(folder, skill=0.7)
    for command in (
        ["git", "init", "-q"],
        [sys.executable, "-m", "dvc", "init", "-q"],
        ["cp", "-r", *(str(Path(".dvc", name).resolve()) for name in ("config", "plots")), ".dvc"],
        [sys.executable, "-m", "dvc", "add", "-q", COMPLETIONS],
        ["git", "add", "-A"],
        ["git", "-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "one run"],
    ):
        subprocess.run(command, cwd=folder, check=True)
    return folder


def write_completions(folder, *, skill, problems=60):
    rows = completion_rows("grpo", skill=skill, problems=problems, samples=2)
    write_text(folder / COMPLETIONS, "".join(json.dumps(row) + "\n" for row in rows))


def write_metrics(folder, *, grpo, gain=0.3):
    metrics = folder / "reports/metrics"
    greedy = {"answer_accuracy": grpo, "answer_accuracy_se": 0.02, "n": 500}
    greedy["by_level"] = {"1": {"answer_accuracy": grpo, "answer_accuracy_se": 0.04, "n": 90}}
    write_json(metrics / "evaluate/grpo.json", {"held_out": {"greedy": greedy}})
    write_json(metrics / "evaluate/sft.json", {"held_out": {"greedy": {"n": 500}}})
    write_json(metrics / "sft.json", {"loss": 1 - grpo})
    change = {"before": 0.3, "after": grpo, "difference": gain, "difference_se": 0.02, "n": 500}
    change |= {"low": gain - 0.04, "high": gain + 0.04, "p_value": 0.0}
    differences = {"sft_to_grpo": {"held_out": {"greedy_answer_accuracy": change}}}
    write_json(metrics / "report.json", differences)


def compare(breakdowns=False):
    return compare_with(
        "HEAD",
        metrics=Path("reports/metrics"),
        graded=Path("data/graded"),
        plots=Path("plots"),
        checkpoints=("base", "sft", "grpo"),
        starts={"sft": "base", "grpo": "sft"},
        exported="grpo",
        breakdowns=breakdowns,
    )


def test_a_changed_knob_and_its_worse_model_are_shown(repository, monkeypatch):
    monkeypatch.chdir(repository)
    (repository / COMPLETIONS).unlink(missing_ok=True)
    write_text(repository / "params.yaml", PARAMS.replace("group_size: 8", "group_size: 2"))
    write_metrics(repository, grpo=0.4, gain=-0.2)
    against = compare()
    text = "\n".join(against.lines(markdown=False))
    assert ("grpo.group_size", "8", "2") in against.params.rows
    assert (
        "grpo held_out.greedy.answer_accuracy", "0.6", "0.4", "-0.2", "-7.1 beyond noise"
    ) in against.metrics.rows  # fmt: skip
    assert not any("by_level" in row[0] for row in against.metrics.rows)
    assert "GRPO IS WORSE THAN SFT BEYOND NOISE" in against.alarms[0]
    assert "WORKSPACE IS WORSE THAN HEAD BEYOND NOISE" in against.alarms[1]
    assert against.exported[0].title.startswith("Exported checkpoint on held_out, unpaired")
    assert all(alarm in text for alarm in against.alarms)
    page = (repository / "plots" / "index.html").read_text("utf-8")
    assert 'id="data-vega"' in page
    assert not re.search(r"<(script|link)[^>]+(src|href)=", page), "it loads from the network"
    assert "| grpo.group_size | 8 | 2 |" in "\n".join(against.lines(markdown=True))


def paired(path=Path(COMPLETIONS)):
    return compare_completions("HEAD", path, path, commit=resolve_revision("HEAD"))


def test_completions_of_both_are_compared_problem_by_problem(repository, monkeypatch):
    monkeypatch.chdir(repository)
    write_completions(repository, skill=0.3)
    comparisons = paired()
    assert [each.change.difference.n for each in comparisons] == [60, 60, 20, 20]
    assert "WORKSPACE IS WORSE THAN HEAD BEYOND NOISE" in next(alarms(comparisons))
    assert "paired" in compare().exported[0].title.split()


def test_other_problems_than_those_of_base_or_no_file_are_not_paired(repository, monkeypatch):
    monkeypatch.chdir(repository)
    write_completions(repository, skill=0.7, problems=30)
    assert paired() == paired(Path("nowhere")) == []


def test_the_command_fails_when_the_model_got_worse_and_only_then(repository, monkeypatch):
    monkeypatch.chdir(repository)
    (repository / COMPLETIONS).unlink(missing_ok=True)
    write_text(repository / "params.yaml", PARAMS)
    write_metrics(repository, grpo=0.61)
    better = CliRunner().invoke(main, ["--md"])
    assert (better.exit_code, "BEYOND NOISE" in better.output) == (0, False)
    assert "Params, HEAD against the workspace: no difference" in better.output
    assert "file://" not in better.output
    write_metrics(repository, grpo=0.4)
    worse = CliRunner().invoke(main, ["--all"])
    assert (worse.exit_code, "WORSE THAN HEAD BEYOND NOISE" in worse.output) == (1, True)
    assert "held_out.greedy.by_level.1.answer_accuracy" in worse.output


def test_an_unknown_revision_is_one_clear_line(repository, monkeypatch):
    monkeypatch.chdir(repository)
    with pytest.raises(UserError, match="BASE=nowhere: git knows no such revision"):
        resolve_revision("nowhere")
    with pytest.raises(UserError, match="BASE=--all: git knows no such revision"):
        resolve_revision("--all")


def test_a_failure_of_dvc_is_told_in_its_words(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"`dvc metrics diff` failed: ERROR: \w+"):
        run_dvc("metrics", "diff")


def test_an_experiment_is_a_revision_by_its_name(repository, monkeypatch):
    monkeypatch.chdir(repository)
    commit = resolve_revision("HEAD")
    subprocess.run(["git", "update-ref", "refs/exps/ab/cdef/wider", commit], check=True)
    assert resolve_revision("wider") == commit
    with pytest.raises(UserError, match="dvc exp list"):
        resolve_revision("narrower")


def test_rates_of_both_sides_are_compared_where_the_cache_has_them(monkeypatch, tmp_path):
    file = tmp_path / "grpo.json"
    write_json(file, {"held_out": {"greedy": {"by_level": {"1": {"answer_accuracy": 0.5}}}}})
    before = tmp_path / "before.json"
    write_json(before, {"held_out": {"greedy": {"by_level": {"1": {"answer_accuracy": 0.25}}}}})
    monkeypatch.setattr("lib.report.compare.at_revision", lambda *_: nullcontext(before))
    assert rates_diff([file, tmp_path / "sft.json"], commit="HEAD") == {
        str(file): {"held_out.greedy.by_level.1.answer_accuracy": entry(0.25, 0.5)}
    }
    monkeypatch.setattr("lib.report.compare.at_revision", lambda *_: nullcontext())
    assert rates_diff([file], commit="HEAD") == {}


def test_a_corrupt_metrics_file_is_an_error_that_names_it(in_root, tmp_path):
    (tmp_path / "evaluate").mkdir()
    (tmp_path / "evaluate/grpo.json").write_text('{"a":')
    with pytest.raises(UserError, match=r"evaluate/grpo\.json: not JSON .*dvc repro"):
        compare_with(
            "HEAD",
            metrics=tmp_path,
            graded=tmp_path,
            plots=tmp_path,
            checkpoints=["grpo"],
            starts={},
            exported="grpo",
            breakdowns=False,
        )
