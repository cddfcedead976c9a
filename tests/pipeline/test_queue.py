"""Queued experiments: each runs its own params and its own code, new files once git knows them."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pipeline.test_end_to_end import Clone, clone_with_smoke

pytestmark = pytest.mark.slow

ARTIFACTS = Path("lib/artifacts/__init__.py")
MARKED = ("_numbers(metrics))", '_numbers({**metrics, "marked": MARK}))')


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Clone, str]]:
    """A clone in which whole smoke runs were queued and run, and what DVC printed."""
    clone = clone_with_smoke(tmp_path_factory.mktemp("queue") / "reckon")
    clone.commit("Choose smoke")
    queue(clone, "plain", seed=1)
    mark(clone, "import lib.mark\n\nMARK = 7")
    (clone.folder / "lib/mark.py").write_text('"""New."""\n', encoding="utf-8")
    queue(clone, "not-added", seed=2)
    clone.run("git", "add", "lib/mark.py")
    queue(clone, "added", seed=3)
    clone.run("git", "checkout", "--quiet", "HEAD", "--", ".")
    clone.run("git", "rm", "--quiet", "--force", "lib/mark.py")
    yield clone, clone.dvc("exp", "run", "--run-all")
    clone.dvc("queue", "stop")
    shutil.rmtree(clone.folder)


def queue(clone: Clone, name: str, *, seed: int) -> None:
    clone.dvc("exp", "run", "--queue", "--name", name, "--set-param", f"seed={seed}")


def mark(clone: Clone, code: str) -> None:
    file = clone.folder / ARTIFACTS
    text = file.read_text(encoding="utf-8")
    assert MARKED[0] in text
    text = text.replace(*MARKED).replace("import csv\n", f"import csv\n{code}\n", 1)
    file.write_text(text, encoding="utf-8")


def metrics_of(clone: Clone, name: str, stage: str) -> dict[str, float]:
    refs = clone.run("git", "for-each-ref", "--format=%(refname)", "refs/exps").split()
    (ref,) = (ref for ref in refs if ref.endswith(f"/{name}"))
    return json.loads(clone.run("git", "show", f"{ref}:reports/metrics/{stage}.json"))


def test_each_experiment_runs_the_code_that_it_was_queued_with(swept: tuple[Clone, str]) -> None:
    clone, _ = swept
    for stage in ("prepare", "sft", "grpo"):
        assert "marked" not in metrics_of(clone, "plain", stage)
        assert metrics_of(clone, "added", stage)["marked"] == 7


def test_each_experiment_runs_its_own_params_to_the_end(swept: tuple[Clone, str]) -> None:
    clone, _ = swept
    plain, added = (metrics_of(clone, name, "export") for name in ("plain", "added"))
    assert plain["num_prompts"] == added["num_prompts"] > 0
    losses = [metrics_of(clone, name, "sft")["loss"] for name in ("plain", "added")]
    assert losses[0] != losses[1]


def test_a_new_file_that_git_does_not_know_is_missed_in_words(swept: tuple[Clone, str]) -> None:
    clone, printed = swept
    assert "No module named 'lib.mark'" in printed
    assert "not-added" in clone.dvc("queue", "status")
    assert "Failed to reproduce experiment(s) 'not-added'" in printed


def test_the_workspace_stays_as_it_was(swept: tuple[Clone, str]) -> None:
    clone, _ = swept
    assert clone.run("git", "status", "--porcelain") == ""
