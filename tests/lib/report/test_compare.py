import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from commands.compare import main
from lib.artifacts import write_json, write_jsonl
from lib.core.errors import UserError
from lib.export.push import current_commit
from lib.report.compare import compare_with, experiments_lines
from tests.lib.report.runs import completion_rows, write_text

PARAMS = Path("lib/presets/tiny-cpu.yaml").read_text()
COMPLETIONS = "data/graded/grpo.jsonl"
DVC_YAML = f"""\
stages:
  grpo:
    cmd: a run of hours
    params: [grpo.group_size]
    outs: [{COMPLETIONS}]
metrics: [reports/metrics/evaluate/grpo.json, reports/metrics/report.json]
plots:
- reports/curves/grpo.csv:
    x: step
    y: reward
"""


def rates(accuracy):
    errors = [{"answer_accuracy_se": 0.02}]
    greedy = {"answer_accuracy": accuracy, "standard_errors": errors, "n": 500}
    return {"held_out": {"greedy": greedy}}


@pytest.fixture
def repository(repository_of_one_run, tmp_path, monkeypatch):
    shutil.copytree(repository_of_one_run, tmp_path / "own")
    monkeypatch.chdir(tmp_path / "own")
    return tmp_path / "own"


@pytest.fixture(scope="module")
def repository_of_one_run(tmp_path_factory):
    """Commit one run in a repository of git and DVC."""
    folder = tmp_path_factory.mktemp("repository")
    write_text(folder / "dvc.yaml", DVC_YAML)
    write_text(folder / "params.yaml", PARAMS)
    write_text(folder / "reports/curves/grpo.csv", "step,reward\n1,0.2\n2,0.4\n")
    write_json(folder / "reports/metrics/evaluate/grpo.json", rates(0.6))
    write_json(folder / "reports/metrics/report.json", {"measured_on": ["a CPU of theirs"]})
    write_completions(folder, skill=0.7)
    own = " ".join(str(Path(".dvc", name).resolve()) for name in ("config", "plots"))
    setup = f"git init -q && dvc init -q && cp -r {own} .dvc && dvc commit -q -f && git add -A"
    in_shell(f"{setup} && git commit -qm 'one run'", folder)
    return folder


def in_shell(script, folder=None):
    """Run a script with an author for git and this environment's DVC."""
    names = ("AUTHOR_NAME", "AUTHOR_EMAIL", "COMMITTER_NAME", "COMMITTER_EMAIL")
    path = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    environment = os.environ | {f"GIT_{name}": "t" for name in names} | path
    subprocess.run(script, shell=True, cwd=folder, env=environment, check=True)


def write_completions(folder, *, skill, problems=60):
    rows = completion_rows("grpo", skill=skill, problems=problems, samples=2)
    write_jsonl(folder / COMPLETIONS, rows)


def compare(base="HEAD", *, everything=False):
    return compare_with(
        base,
        metrics=Path("reports/metrics"),
        graded=Path("data/graded"),
        plots=Path("plots"),
        headline="held_out",
        everything=everything,
    )


def test_a_committed_run_is_compared_with_itself_in_pairs(repository):
    against = compare()
    params, held_out = against.tables
    assert (against.notes, params.rows, against.findings, against.alarms) == ([], (), [], [])
    assert "paired" in held_out.title and {row[1] for row in held_out.rows} == {"+0.0"}
    assert (repository / "plots" / "index.html").is_file()


@pytest.mark.slow
def test_a_worse_model_is_seen_on_every_set(repository):
    write_completions(repository, skill=0.0)
    against = compare()
    assert [row[4] for row in against.tables[1].rows] == ["60", "60"]
    assert "WORKSPACE IS WORSE THAN HEAD" in against.alarms[0]
    assert any(" on harder " in finding for finding in against.findings)
    assert len(list(against.lines(markdown=False))) <= 20
    everything = compare(everything=True)
    assert " on harder, paired" in everything.tables[2].title and everything.findings == []


@pytest.mark.slow
def test_edited_params_are_named_before_any_number(repository):
    edited = PARAMS.replace("group_size: 8", "group_size: 2")
    write_text(repository / "params.yaml", re.sub(r"(_steps|_size): \d+", r"\1: 7", edited))
    first, *_ = compare().lines(markdown=False)
    assert "newer" in first and "grpo" in first
    text = "\n".join(compare().lines(markdown=True))
    assert "| evaluate.batch_size |" in text and "file://" not in text


@pytest.mark.parametrize(("owner", "word"), [("", "git init"), ("another", "safe.directory")])
def test_without_git_or_as_another_user_it_is_one_line(repository, owner, word, monkeypatch):
    if owner:
        monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
        for scope in ("GLOBAL", "SYSTEM"):  # where a machine may allow every owner
            monkeypatch.setenv(f"GIT_CONFIG_{scope}", os.devnull)
    else:
        shutil.rmtree(".git")
    for command in (compare, lambda: list(experiments_lines(everything=False)), current_commit):
        with pytest.raises(UserError, match=word) as raised:
            command()
        assert "\n" not in raised.value.message


@pytest.mark.slow
def test_experiments_of_other_commits_are_counted(repository):
    in_shell("dvc exp save --name warm && git commit -q --allow-empty -m later")
    assert "and 1 of other commits" in "\n".join(experiments_lines(everything=False))
    assert "\nwarm " in "\n".join(experiments_lines(everything=True))
    shutil.rmtree(".dvc/cache")
    (note,) = compare("warm").notes
    assert "No readable completions of warm" in note


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("cause", ["cache", "version", "problems", "references"])
def test_what_cannot_be_paired_says_why_first(repository, cause):
    if cause == "cache":
        shutil.rmtree(".dvc/cache")
    elif cause == "version":
        rows = completion_rows("grpo", skill=0.7, problems=60, samples=2)
        for row in rows:
            del row["equations"]
        write_jsonl(repository / COMPLETIONS, rows)
        in_shell("dvc commit -q -f && git commit -qam older")
        write_completions(repository, skill=0.7)
    elif cause == "problems":
        write_completions(repository, skill=0.7, problems=30)
    else:
        first, *others = completion_rows("grpo", skill=0.7, problems=60, samples=2)
        write_jsonl(repository / COMPLETIONS, [{**first, "reference": "mended"}, *others])
    write_json(Path("reports/metrics/evaluate/grpo.json"), rates(0.4))
    against = compare()
    unread = cause in ("cache", "version")
    word = "No readable completions of HEAD" if unread else cause
    assert word in against.notes[-1] and "unpaired" in against.tables[1].title
    assert ("a CPU of theirs" in against.notes[-1]) == unread
    assert against.tables[1].rows[0][1] == "−20.0" and "WORSE THAN HEAD" in against.alarms[0]


@pytest.mark.slow
def test_nothing_measured_on_both_sides_is_no_success(repository):
    shutil.rmtree(".dvc/cache")
    write_json(Path("reports/metrics/evaluate/grpo.json"), {})
    failed = CliRunner().invoke(main)
    assert (failed.exit_code, "NO SET IS MEASURED ON BOTH SIDES" in failed.output) == (1, True)


def test_the_command_fails_only_when_the_model_got_worse(repository):
    # A fall between one run's own phases is a line of its report, no failure here.
    write_json(Path("reports/metrics/report.json"), {"sft_to_grpo": {"held_out": {"greedy": -0.3}}})
    same = CliRunner().invoke(main, ["--md"])
    assert (same.exit_code, "WORSE" in same.output) == (0, False)
    write_completions(repository, skill=0.3)
    worse = CliRunner().invoke(main)
    assert (worse.exit_code, "WORSE THAN HEAD" in worse.output) == (1, True)


@pytest.mark.parametrize("name", ["nowhere", "--all", ""])
def test_an_unknown_revision_is_one_clear_line(repository, name):
    with pytest.raises(UserError, match=f"BASE={name}"):
        compare(name)
