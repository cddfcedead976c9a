"""A queued experiment runs its own params and code, new files if git tracks them."""

import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.conftest import ROOT
from tests.docs.blocks import blocks_of
from tests.pipeline.test_end_to_end import Clone, clone_with_smoke

pytestmark = pytest.mark.slow

ARTIFACTS = Path("lib/artifacts/__init__.py")
MARKED = ("**_numbers(metrics)", '**_numbers({**metrics, "marked": MARK})')


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """Queue and run experiments up to SFT in a clone; yield it with DVC's output."""
    clone = clone_with_smoke(tmp_path_factory.mktemp("queue") / "reckon")
    clone.commit("Choose smoke")
    blocks = blocks_of(ROOT / "docs/scale_out.md")
    (script,) = (block.script for block in blocks if "--queue" in block.script)
    plain, _, run_all, _, stop = (shlex.split(line)[1:] for line in script.splitlines())
    clone.dvc(*plain, "--name", "plain", "sft")
    mark(clone, "import lib.mark\n\nMARK = 7")
    (clone.folder / "lib/mark.py").write_text('"""New."""\n', encoding="utf-8")
    queue(clone, "not-added", seed=2)
    clone.run("git", "add", "lib/mark.py")
    queue(clone, "added", seed=3)
    clone.run("git", "checkout", "--quiet", "HEAD", "--", ".")
    clone.run("git", "rm", "--quiet", "--force", "lib/mark.py")
    yield clone, clone.dvc(*run_all)
    clone.dvc(*stop)
    shutil.rmtree(clone.folder)


def queue(clone: Clone, name: str, *, seed: int) -> None:
    clone.dvc("exp", "run", "--queue", "--name", name, "--set-param", f"seed={seed}", "sft")


def mark(clone: Clone, code: str) -> None:
    file = clone.folder / ARTIFACTS
    text = file.read_text(encoding="utf-8")
    assert MARKED[0] in text
    text = text.replace(*MARKED).replace("import csv\n", f"import csv\n{code}\n", 1)
    file.write_text(text, encoding="utf-8")


def read(clone: Clone, name: str, path: str) -> dict[str, Any]:
    refs = clone.run("git", "for-each-ref", "--format=%(refname)", "refs/exps").split()
    (ref,) = (ref for ref in refs if ref.endswith(f"/{name}"))
    return YAML(typ="safe").load(clone.run("git", "show", f"{ref}:{path}"))


def test_each_runs_the_code_and_params_that_were_queued(swept):
    clone, _ = swept
    for stage in ("prepare", "sft"):
        plain, added = (
            read(clone, name, f"reports/metrics/{stage}.json") for name in ("plain", "added")
        )
        assert "marked" not in plain
        assert added["marked"] == 7
    assert plain["loss"] != added["loss"]
    assert [read(clone, name, "params.yaml")["seed"] for name in ("plain", "added")] == [0, 3]
    assert clone.run("git", "status", "--porcelain") == ""


def test_a_new_file_that_git_does_not_know_is_missed(swept):
    clone, printed = swept
    assert "No module named 'lib.mark'" in printed
    assert "not-added" in clone.dvc("queue", "status")
    assert "Failed to reproduce experiment(s) 'not-added'" in printed
