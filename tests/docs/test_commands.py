"""The documentation's commands work, in the order of each page."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lib.artifacts import read_json
from tests.conftest import ROOT, run_command, write_script
from tests.docs.blocks import Block, blocks_of
from tests.pipeline.test_end_to_end import WARM, Clone, copy_of

PAGES = sorted((ROOT / "docs").glob("*.md"))
ELSEWHERE = {"dpo", "own_task"}
"""Pages with a test of their own: below, and in tests/pipeline/test_end_to_end.py."""


def scripts_of(page: Path) -> list[Block]:
    """List a page's blocks to run; tests/pipeline/test_manifest.py runs blocks with `--queue`."""
    blocks = (block for block in blocks_of(page) if block.script and not block.not_run)
    return [block for block in blocks if "--queue" not in block.script]


RUN = [page for page in PAGES if page.stem not in ELSEWHERE and scripts_of(page)]


@pytest.fixture(scope="module")
def ran(smoke_run, tmp_path_factory):
    """Copy the smoke pipeline's run, with this environment; DVC there starts stages faster."""
    clone = copy_of(smoke_run, tmp_path_factory.mktemp("docs") / "reckon")
    venv = clone.folder / ".venv"
    # Make puts this folder first on the PATH.
    (venv / "bin").mkdir(parents=True)
    for place in (".", "bin"):
        for each in (Path(sys.prefix) / place).iterdir():
            if each.name not in {"bin", "dvc", "activate"}:
                (venv / place / each.name).symlink_to(each)
    write_script(venv / "bin/dvc", f'exec python -m {WARM} "$@"\n')
    write_script(venv / "bin/activate", f"VIRTUAL_ENV={venv}\n")  # read by install.sh
    yield clone
    shutil.rmtree(clone.folder)


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN, ids=lambda page: page.stem)
def test_the_commands_of_a_page_run(ran, page):
    try:
        run_page(page, ran)
    finally:
        put_back(ran)


@pytest.mark.slow
def test_a_task_without_maths_is_learned(ran):
    try:
        run_page(ROOT / "docs/own_task.md", ran)
        greedy = read_json(ran.folder / "reports/metrics/evaluate/grpo.json")["held_out"]["greedy"]
        assert greedy["answer_accuracy"] >= 0.95
    finally:
        put_back(ran)


def run_page(page: Path, clone: Clone) -> None:
    for block in scripts_of(page):
        done = in_bash(block.script, clone)
        assert done.returncode == block.exit_code, f"{block.script}\n{done.stdout}{done.stderr}"


def in_bash(script: str, clone: Clone) -> "subprocess.CompletedProcess[str]":
    """Run `script` in the clone's root, as a reader would type it."""
    path = f"{clone.folder}/.venv/bin:{os.environ['PATH']}"
    # 80: a terminal narrower than the tables.
    return run_command(
        *("bash", "-euo", "pipefail", "-c", script), cwd=clone.folder, PATH=path, COLUMNS="80"
    )


def put_back(clone: Clone) -> None:
    clone.run("git", "reset", "--quiet", "--hard")
    clone.run("git", "clean", "--quiet", "--force", "-d")
    clone.dvc("checkout", "--force")
