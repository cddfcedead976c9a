"""What the documentation tells a reader to type works, in the order of each page."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.docs.blocks import Block, blocks_of
from tests.pipeline.test_end_to_end import Clone, clone_with_smoke

HANG_S = 1800
"""A block that serves or asks for input would never end."""

PAGES = sorted((ROOT / "docs").glob("*.md"))
SHOWN = [
    pytest.param(block, id=f"{page.stem}-{number}")
    for page in (ROOT / "README.md", *PAGES)
    for number, block in enumerate(blocks_of(page))
    if block.script
]
RUN = [
    page
    for page in PAGES
    if any(block.script and not block.not_run for block in blocks_of(page))
    and page.stem != "dpo"  # tests/pipeline/test_end_to_end.py runs their commands
]


@pytest.mark.parametrize("block", SHOWN)
def test_what_a_command_names_exists(block: Block) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for line in block.script.replace("\\\n", " ").splitlines():
        for verb, variables in re.findall(r"\bmake ([a-z][\w-]*)((?: [A-Z_]+=)?)", line):
            assert re.search(rf"^{verb}:", makefile, re.MULTILINE), f"no `make {verb}`"
            for variable in re.findall(r"\b([A-Z_]+)=", variables):
                known = makefile + (ROOT / "requirements/install.sh").read_text(encoding="utf-8")
                assert re.search(rf"\b{variable}\b", known), f"nothing reads {variable}"
        for module in re.findall(r"python -m ((?:stages|lib|tests)[\w.]*)", line):
            path = ROOT.joinpath(*module.split("."))
            assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module
            if module.startswith("stages."):
                source = path.with_suffix(".py").read_text(encoding="utf-8")
                options = re.findall(r" --([a-z-]+)", line.split(module, 1)[1])
                known_options = {*re.findall(r'"--([a-z-]+)"', source), "help", "params"}
                assert set(options) <= known_options, line


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clone]:
    """A clone with this environment in which the smoke pipeline ran and was committed."""
    clone = clone_with_smoke(tmp_path_factory.mktemp("docs") / "reckon")
    (clone.folder / ".venv").symlink_to(Path(sys.prefix))
    clone.repro()
    clone.commit("Run smoke")
    yield clone
    shutil.rmtree(clone.folder)


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN, ids=lambda page: page.stem)
def test_the_commands_of_a_page_run(ran: Clone, page: Path) -> None:
    try:
        for block in blocks_of(page):
            if block.script and not block.not_run:
                done = in_bash(block.script, ran)
                assert done.returncode == block.exit_code, f"{block.script}\n{done.stdout}"
    finally:
        put_back(ran)


@pytest.mark.slow
def test_tables_of_runs_show_what_differs_within_120_columns(ran: Clone) -> None:
    in_bash("dvc exp remove --all-commits || true", ran)  # those of other pages
    try:
        ran.dvc("exp", "run", "--name", "steep", "--set-param", "grpo.learning_rate=0.02")
        table = in_bash("make experiments", ran).stdout
        head = next(line for line in table.splitlines() if "Experiment" in line).split()
        measured = ["exported.answer_accuracy", "exported.pass_at_1"]
        assert head == ["Experiment", *measured, "grpo.learning_rate"]
        assert re.search(r"\[steep\] .*0\.02\b", table)
        changes = in_bash("dvc metrics diff --precision 4", ran).stdout
        assert "held_out" in changes
        assert len(changes.splitlines()) < 70
        widths = [len(line.rstrip()) for line in (table + changes).splitlines()]
        assert max(widths) <= 120
        assert "steep" in in_bash("make compare BASE=steep", ran).stdout
    finally:
        put_back(ran)


def in_bash(script: str, clone: Clone) -> subprocess.CompletedProcess[str]:
    """What a reader would see who types `script` in the clone."""
    environment = {name: value for name, value in os.environ.items() if "MAKE" not in name}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    environment["COLUMNS"] = "80"  # a terminal narrower than the tables
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=clone.folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        timeout=HANG_S,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def put_back(clone: Clone) -> None:
    clone.run("git", "reset", "--quiet", "--hard")
    clone.run("git", "clean", "--quiet", "--force", "-d")
    clone.dvc("checkout", "--force")
