"""After SIGKILL in an evaluation the same command writes the same bytes."""

import functools
import os
import signal
from pathlib import Path

import pytest

from lib.artifacts import write_json
from lib.artifacts.problems import write_problems
from lib.evaluation import completions
from stages import evaluate as stage
from tests.lib.params.changes import preset_content
from tests.lib.training.runs import on_ranks

pytestmark = pytest.mark.slow


def die_in_the_fourth_chunk() -> None:
    store, left = completions.store_chunk, [4]

    def dying(table, rows):
        store(table, rows)
        left[0] -= 1
        if not left[0]:
            table.execute("INSERT INTO rows VALUES (9, 9, 9, 'half a chunk')")
            os.kill(os.getpid(), signal.SIGKILL)

    completions.store_chunk = dying


def run_stage(cwd: Path, arguments: list[str], *, dies: bool) -> None:
    os.chdir(cwd)
    if dies:
        die_in_the_fourth_chunk()
    stage.main(arguments)


@pytest.fixture
def evaluate(base, sets, tmp_path):
    """Evaluate the base model in a folder, in a process of its own; return its exit code."""
    changes = {"evaluate.batch_size": 4, "evaluate.benchmarks": ["held_out"]}
    write_json(tmp_path / "params.yaml", preset_content(changes, "smoke"))
    write_problems(tmp_path / "benchmarks/held_out.jsonl", sets.benchmarks["held_out"])

    def run(folder, *, dies=False):
        folder.mkdir(exist_ok=True)
        options = {
            "params": tmp_path / "params.yaml",
            "code": tmp_path / "params.yaml",
            "problems": tmp_path / "benchmarks",
            "base": base,
            "checkpoint": base,
            "completions": folder / "completions.jsonl",
            "provenance": folder / "provenance.json",
        }
        arguments = [f"--{name}={path}" for name, path in options.items()]
        main = functools.partial(run_stage, dies=dies)
        return on_ranks(1, main, folder, arguments, log=folder / "log").returncode

    return run


def test_a_killed_evaluation_resumes_and_writes_the_same_bytes(evaluate, tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert evaluate(whole) == 0
    assert evaluate(killed, dies=True) == -signal.SIGKILL
    (left,) = (killed / "data/scratch/evaluate").iterdir()
    assert (left / "rows.sqlite").is_file()
    assert not (killed / "completions.jsonl").exists()

    assert evaluate(killed) == 0
    for name in ("completions.jsonl", "provenance.json"):
        assert (killed / name).read_bytes() == (whole / name).read_bytes()
    assert not list((killed / "data/scratch/evaluate").iterdir())
