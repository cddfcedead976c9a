"""The documentation's commands work, in the order of each page."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lib.artifacts import read_json
from tests.conftest import ROOT, run_command
from tests.docs.blocks import Block, blocks_of
from tests.pipeline.test_end_to_end import Clone, copy_of

PAGES = sorted((ROOT / "docs").glob("*.md"))
SHOWN = [
    pytest.param(block, id=f"{page.stem}-{number}")
    for page in (ROOT / "README.md", *PAGES)
    for number, block in enumerate(blocks_of(page))
    if block.script
]
ELSEWHERE = {"compare", "dpo", "own_task"}
"""Pages with a test of their own: below, and in tests/pipeline/test_end_to_end.py."""


def scripts_of(page: Path) -> list[Block]:
    """List a page's blocks to run; tests/pipeline/test_queue.py runs blocks with `--queue`."""
    blocks = (block for block in blocks_of(page) if block.script and not block.not_run)
    return [block for block in blocks if "--queue" not in block.script]


RUN = [page for page in PAGES if page.stem not in ELSEWHERE and scripts_of(page)]


@pytest.mark.parametrize("block", SHOWN)
def test_what_a_command_names_exists(block):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for line in block.script.replace("\\\n", " ").splitlines():
        for verb, variables in re.findall(r"\bmake ([a-z][\w-]*)((?: [A-Z_]+=)?)", line):
            assert re.search(rf"^{verb}:(?! new)", makefile, re.MULTILINE), f"no `make {verb}`"
            for variable in re.findall(r"\b([A-Z_]+)=", variables):
                known = makefile + (ROOT / "requirements/install.sh").read_text(encoding="utf-8")
                assert re.search(rf"\b{variable}\b", known), f"nothing reads {variable}"
        for module in re.findall(r"python -m ((?:stages|lib|tests)[\w.]*)", line):
            path = ROOT.joinpath(*module.split("."))
            assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module
            # `stages.ranks` takes torchrun's options.
            if module.startswith("stages.") and module != "stages.ranks":
                source = path.with_suffix(".py").read_text(encoding="utf-8")
                options = re.findall(r" --([a-z-]+)", line.split(module, 1)[1])
                known_options = {*re.findall(r'"--([a-z-]+)"', source), "help", "params"}
                assert set(options) <= known_options, line


@pytest.fixture(scope="module")
def ran(smoke_run, tmp_path_factory):
    """Copy the smoke pipeline's run, with this environment."""
    clone = copy_of(smoke_run, tmp_path_factory.mktemp("docs") / "reckon")
    (clone.folder / ".venv").symlink_to(Path(sys.prefix))
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


@pytest.mark.slow
def test_the_table_of_experiments_shows_what_differs(ran):
    in_bash("dvc exp remove --all-commits || true", ran)  # experiments of other pages
    try:
        page = ROOT / "docs/compare.md"
        run_page(page, ran)
        example = re.search(r"exp run --name (\w+) -S (\S+)=(\S+)", page.read_text("utf-8"))
        name, key, value = example.groups()
        table = in_bash("./reckon experiments", ran).stdout
        head = next(line for line in table.splitlines() if "state" in line).split()
        assert head == ["state", "answer_accuracy", "pass_at_1", key]
        assert re.search(rf"^{name} +success .*{value}\b", table, re.MULTILINE)
        assert max(len(line.rstrip()) for line in table.splitlines()) <= 100
    finally:
        put_back(ran)


def run_page(page: Path, clone: Clone) -> None:
    for block in scripts_of(page):
        done = in_bash(block.script, clone)
        assert done.returncode == block.exit_code, f"{block.script}\n{done.stdout}{done.stderr}"


def in_bash(script: str, clone: Clone) -> "subprocess.CompletedProcess[str]":
    """Run `script` in the clone's root, as a reader would type it."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    # 80: a terminal narrower than the tables.
    return run_command(
        *("bash", "-euo", "pipefail", "-c", script), cwd=clone.folder, PATH=path, COLUMNS="80"
    )


def put_back(clone: Clone) -> None:
    clone.run("git", "reset", "--quiet", "--hard")
    clone.run("git", "clean", "--quiet", "--force", "-d")
    clone.dvc("checkout", "--force")
