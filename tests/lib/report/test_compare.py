import json
import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from click.testing import CliRunner

from lib.artifacts import write_json
from lib.errors import UserError
from lib.report.compare import (
    compare_completions,
    compare_metrics,
    compare_with,
    metrics_table,
    rates_of,
    resolve_revision,
    run_dvc,
)
from lib.report.comparisons import alarms
from stages.compare import main
from tests.lib.report.runs import completion_rows, write_text

PARAMS = Path("lib/presets/tiny-cpu.yaml").read_text()
DVC_YAML = """\
plots:
- reports/curves/grpo.csv:
    x: step
    y: reward
"""
COMPLETIONS = "data/graded/grpo.jsonl"


def table(old, new, *, file="m/evaluate/grpo.json"):
    """Names and last columns of the numbers that differ."""
    rows = metrics_table({file: (old, new)}, base="HEAD", breakdowns=False).rows
    return [(row[0].partition(" ")[2], row[-1]) for row in rows]


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ({"a": 0.5, "a_se": 0.03}, {"a": 0.6, "a_se": 0.04}, "+2.0 beyond noise"),
        ({"a": 0.5, "a_se": 0.3}, {"a": 0.2, "a_se": 0.4}, "-0.6"),
        ({"a": 0.5, "a_se": 0.0}, {"a": 0.6, "a_se": 0.0}, "+inf beyond noise"),
        ({"a": 1.0}, {"a": 2.0}, "–"),
        ({}, {"a": 1.0, "a_se": 0.1}, "–"),
    ],
)
def test_a_difference_is_counted_in_its_own_standard_errors(old, new, error):
    assert table(old, new) == [("a", error)]


def test_what_checkpoints_are_judged_by_is_listed_first():
    names = ["x.greedy.class_00", "x.sampled.pass_at_1", "x.greedy.answer_accuracy", "x.greedy.n"]
    old, new = (dict.fromkeys(names, value) for value in (0.1, 0.2))
    assert [name for name, _ in table(old, new | {"same": 1.0, "x.by_level.1.n": 3})] == [
        "x.greedy.answer_accuracy", "x.sampled.pass_at_1", "same", "x.greedy.class_00",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("new", "worse"), [(0.62, False), (0.58, False), (0.40, True)], ids=["better", "noise", "worse"]
)
def test_worse_than_base_means_beyond_noise(new, worse):
    name = "held_out.greedy.answer_accuracy"
    old, now = ({name: of, f"{name}_se": 0.02, "held_out.greedy.n": 500} for of in (0.6, new))
    assert [of.split()[0] for of in alarms(compare_metrics("HEAD", old, now))] == (
        ["WORKSPACE"] * worse
    )


@pytest.fixture
def repository(repository_of_one_run, monkeypatch):
    monkeypatch.chdir(repository_of_one_run)
    write_text(Path("params.yaml"), PARAMS)
    Path(COMPLETIONS).unlink(missing_ok=True)
    return repository_of_one_run


@pytest.fixture(scope="module")
def repository_of_one_run(tmp_path_factory):
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
    write_json(metrics / "sft.json", {"loss": 1 - grpo})
    change = {"difference": gain, "difference_se": 0.02, "n": 500}
    change |= {"low": gain - 0.04, "high": gain + 0.04, "p_value": 0.0}
    differences = {"sft_to_grpo": {"held_out": {"greedy_answer_accuracy": change}}}
    write_json(metrics / "report.json", differences)


def compare():
    return compare_with(
        "HEAD",
        metrics=Path("reports/metrics"),
        graded=Path("data/graded"),
        plots=Path("plots"),
        checkpoints=("base", "sft", "grpo"),
        starts={"sft": "base", "grpo": "sft"},
        exported="grpo",
        breakdowns=False,
    )


def test_a_changed_knob_and_its_worse_model_are_shown(repository):
    write_text(repository / "params.yaml", PARAMS.replace("group_size: 8", "group_size: 2"))
    write_metrics(repository, grpo=0.4, gain=-0.2)
    against = compare()
    params, exported, metrics = against.tables
    assert params.rows == (("grpo.group_size", "8", "2"),)
    assert "unpaired" in exported.title
    assert (
        "grpo held_out.greedy.answer_accuracy", "0.6", "0.4", "-0.2", "-7.1 beyond noise"
    ) in metrics.rows  # fmt: skip
    assert not any("by_level" in row[0] for row in metrics.rows)
    assert [alarm.partition(" IS WORSE THAN ")[2].split()[0] for alarm in against.alarms] == [
        "SFT", "HEAD",
    ]  # fmt: skip
    text = "\n".join(against.lines(markdown=False))
    assert all(alarm in text for alarm in against.alarms)
    assert "| grpo.group_size | 8 | 2 |" in "\n".join(against.lines(markdown=True))
    page = (repository / "plots" / "index.html").read_text("utf-8")
    assert 'id="data-vega"' in page
    assert not re.search(r"<(script|link)[^>]+(src|href)=", page), "it loads from the network"


def paired(path=Path(COMPLETIONS)):
    return compare_completions("HEAD", path, path, commit=resolve_revision("HEAD"))


def test_completions_of_both_are_compared_problem_by_problem(repository):
    write_completions(repository, skill=0.3)
    comparisons = paired()
    assert [each.n for each in comparisons] == [60, 60, 20, 20]
    assert "WORKSPACE IS WORSE THAN HEAD" in next(alarms(comparisons))
    assert any(" paired " in table.title for table in compare().tables)


def test_other_problems_or_no_file_are_not_paired(repository):
    write_completions(repository, skill=0.7, problems=30)
    assert paired() == paired(Path("nowhere")) == []


def test_the_command_fails_only_when_the_model_got_worse(repository):
    write_metrics(repository, grpo=0.61)
    better = CliRunner().invoke(main, ["--md"])
    assert (better.exit_code, "BEYOND NOISE" in better.output) == (0, False)
    assert "file://" not in better.output
    write_metrics(repository, grpo=0.4)
    worse = CliRunner().invoke(main, ["--all"])
    assert (worse.exit_code, "WORSE THAN HEAD" in worse.output) == (1, True)
    assert "held_out.greedy.by_level.1.answer_accuracy" in worse.output


@pytest.mark.parametrize("name", ["nowhere", "--all"])
def test_an_unknown_revision_is_one_clear_line(repository, name):
    with pytest.raises(UserError, match=f"BASE={name}: "):
        resolve_revision(name)


def test_a_failure_of_dvc_is_reported_in_its_words(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"dvc metrics diff.*ERROR"):
        run_dvc("metrics", "diff")


def test_an_experiment_is_a_revision_by_its_name(repository):
    commit = resolve_revision("HEAD")
    subprocess.run(["git", "update-ref", "refs/exps/ab/cdef/wider", commit], check=True)
    assert resolve_revision("wider") == commit


def test_rates_are_compared_where_the_cache_has_them(monkeypatch, tmp_path):
    file, before = tmp_path / "grpo.json", tmp_path / "before.json"
    write_json(file, {"held_out": {"by_level": {"1": 0.5}}})
    write_json(before, {"held_out": {"by_level": {"1": 0.25}}})
    monkeypatch.setattr("lib.report.compare.at_revision", lambda *_: nullcontext(before))
    name = "held_out.by_level.1"
    files = [file, tmp_path / "sft.json"]
    assert rates_of(files, commit="HEAD") == {str(file): ({name: 0.25}, {name: 0.5})}
    monkeypatch.setattr("lib.report.compare.at_revision", lambda *_: nullcontext())
    assert rates_of([file], commit="HEAD") == {}
