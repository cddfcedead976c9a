"""After SIGKILL in an evaluation the same command writes the same bytes."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from lib.artifacts import write_json
from lib.artifacts.problems import write_problems
from lib.params import compose_preset
from lib.prompts import save_system
from tests.conftest import ROOT

pytestmark = pytest.mark.slow

DYING = """
import os, signal, sys
from lib.evaluation import completions
store, left = completions.store_chunk, [4]
def dying(table, rows):
    store(table, rows)
    left[0] -= 1
    if not left[0]:
        table.execute("INSERT INTO rows VALUES (9, 9, 9, 'half a chunk')")
        os.kill(os.getpid(), signal.SIGKILL)
completions.store_chunk = dying
from stages.evaluate import main
main(sys.argv[1:])
"""


@pytest.fixture(scope="module")
def inputs(base, sets, tmp_path_factory):
    """Write params, problems and the base model's system prompt for the stage."""
    folder = tmp_path_factory.mktemp("inputs")
    params = YAML(typ="safe").load(compose_preset("smoke"))
    params["evaluate"] |= {"batch_size": 4, "benchmarks": ["held_out"]}
    write_json(folder / "params.yaml", params)
    write_problems(folder / "benchmarks/held_out.jsonl", sets.benchmarks["held_out"])
    save_system(base, "")
    return folder


def evaluate(
    inputs: Path, base: Path, cwd: Path, *, code: Sequence[str] = ("-m", "stages.evaluate")
) -> int:
    if not cwd.exists():
        cwd.mkdir()
        (cwd / "requirements").symlink_to(ROOT / "requirements")
    options = {
        "--params": inputs / "params.yaml",
        "--problems": inputs / "benchmarks",
        "--base": base,
        "--checkpoint": base,
        "--completions": cwd / "completions.jsonl",
        "--provenance": cwd / "provenance.json",
    }
    arguments = [str(word) for option in options.items() for word in option]
    return subprocess.run(
        [sys.executable, *code, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    ).returncode


def test_a_killed_evaluation_resumes_and_writes_the_same_bytes(inputs, base, tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert evaluate(inputs, base, whole) == 0
    assert evaluate(inputs, base, killed, code=("-c", DYING)) == -signal.SIGKILL
    (left,) = (killed / "data/scratch/evaluate").iterdir()
    assert (left / "rows.sqlite").is_file()
    assert not (killed / "completions.jsonl").exists()

    assert evaluate(inputs, base, killed) == 0
    for name in ("completions.jsonl", "provenance.json"):
        assert (killed / name).read_bytes() == (whole / name).read_bytes()
    assert not list((killed / "data/scratch/evaluate").iterdir())
