"""After an edit DVC runs `check`, and then the stages that the edit reaches.

`check` is the real one; the other stages only write the hash of their input files.
"""

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from dvc.repo import Repo
from dvc.utils.serialize import modify_yaml
from ruamel.yaml import YAML

from tests.conftest import ROOT
from tests.docs.blocks import blocks_of
from tests.pipeline.test_end_to_end import ALL, Clone

pytestmark = pytest.mark.slow

VERIFIER = "reckon_verifier/equivalence.py"
CHANGED = "\nCHANGED = 1\n"
GRADES = ["grade@base", "grade@sft", "grade@grpo"]


def with_quick_stages(folder: Path) -> Clone:
    """Clone HEAD, and let each stage but `check` write the hash of its inputs."""
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
    clone = Clone(folder)
    with modify_yaml(folder / "dvc.yaml") as dag:
        stages = dag["stages"]
        deps = [dep for stage in stages.values() for dep in stage["deps"]]
        for name, stage in stages.items():
            if name == "check":
                continue
            entries = [out for kind in ("outs", "metrics", "plots") for out in stage.get(kind, [])]
            outs = [out if isinstance(out, str) else next(iter(out)) for out in entries]
            # An output folder holds what other stages read in it.
            outs += [dep for out in outs for dep in deps if dep.startswith(f"{out}/")]
            files = [path if Path(path).suffix else f"{path}/file" for path in outs]
            read = [dep for dep in stage["deps"] if "/code/" not in dep]
            stage["cmd"] = [
                f"find {' '.join(read)} -type f | sort | xargs cat | sha256sum > hash.$PPID",
                f"for f in {' '.join(files)}; do mkdir -p $(dirname $f); cp hash.$PPID $f; done",
                "rm hash.$PPID",
            ]
    (folder / "dvc.lock").unlink()
    return clone


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    clone = with_quick_stages(tmp_path_factory.mktemp("manifest") / "reckon")
    assert repro(clone) == ALL
    clone.commit("Run")
    return clone


@pytest.fixture(autouse=True)
def undone(clone):
    yield
    clone.run("git", "checkout", "--quiet", "HEAD", "--", ".")
    clone.run("git", "clean", "--force", "--quiet")
    with Repo(str(clone.folder)) as repo:
        repo.checkout(force=True)


def repro(clone: Clone, *targets: str) -> list[str]:
    """List the stages that `dvc repro` runs."""
    with Repo(str(clone.folder)) as repo, pytest.MonkeyPatch.context() as patch:
        patch.chdir(clone.folder)
        return [stage.addressing for stage in repo.reproduce(list(targets) or None)]


def ran(output: str) -> list[str]:
    return re.findall(r"^Running stage '(.+)':$", output, re.MULTILINE)


def edit(clone: Clone, path: str, change: tuple[str, str] | str) -> None:
    """Replace a text in a file, or append one."""
    file = clone.folder / path
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    assert isinstance(change, str) or change[0] in text
    file.write_text(text + change if isinstance(change, str) else text.replace(*change, 1))


def test_what_decides_no_result_runs_check_alone(clone):
    edit(clone, VERIFIER, ('"""', '"""Other words. '))
    edit(clone, "lib/grading/grade.py", "\n\n# A comment.\n")
    edit(clone, "lib/training/sft.py", ("\n\n\n", "\n\n\n\n"))
    edit(clone, "lib/core/errors.py", CHANGED)
    edit(clone, "lib/rewards/stacks/s4.py", CHANGED)
    edit(clone, "lib/grading/unused.py", CHANGED)
    edit(clone, "plugins/rewards/unused.py", CHANGED)
    edit(clone, "lib/presets/launch/slurm.sh", CHANGED)
    assert repro(clone) == ["check"]
    assert repro(clone) == []


def test_a_changed_constant_runs_what_reaches_it(clone):
    """Not `evaluate`, which generates."""
    edit(clone, VERIFIER, CHANGED)
    # A command of docs/evaluate.md.
    alone = clone.dvc("repro", "--single-item", "check", "grade@base")
    assert ran(alone) == ["check", "grade@base"]
    assert repro(clone) == ["prepare", "sft", "grpo", *GRADES[1:], "report"]
    edit(clone, "lib/training/grpo/trl.py", CHANGED)
    assert repro(clone) == ["check", "grpo"]


@pytest.mark.parametrize("how, rate", [("repro", 0.2), ("experiment", 0.3)])
def test_every_way_to_run_a_target_compares_the_same(clone, how, rate):
    # Other words each time: the run-cache would give back what `check` wrote.
    edit(clone, VERIFIER, ('"""', f'"""Words of {how}. '))
    assert ran(clone.dvc("repro", "sft")) == ["check"]
    edit(clone, VERIFIER, ('"""', '"""More '))
    changed = ("--set-param", f"sft.learning_rate={rate}")
    if how == "repro":
        clone.change(sft={"learning_rate": rate})
        output = clone.dvc("repro", "sft")
    else:
        output = clone.dvc("exp", "run", *changed, "sft")
    assert ran(output) == ["check", "sft"]


def test_a_queued_experiment_has_the_code_and_params_of_its_time(clone):
    """A new file counts if git knows it; the commands are those of docs/scale_out.md."""
    (script,) = (
        block.script for block in blocks_of(ROOT / "docs/scale_out.md") if "--queue" in block.script
    )
    queue, _, run_all, _, stop = (shlex.split(line)[1:] for line in script.splitlines())

    def queued(name: str, seed: int) -> None:
        clone.dvc(*queue, "--name", name, "--set-param", f"seed={seed}", "sft")

    queued("plain", 1)
    edit(clone, "lib/artifacts/__init__.py", "\n\nimport lib.mark  # noqa: E402\n")
    edit(clone, "lib/mark.py", "MARK = 7\n")
    queued("not-added", 2)
    clone.run("git", "add", "lib/mark.py")
    queued("added", 3)
    clone.run("git", "rm", "--quiet", "--force", "lib/mark.py")
    clone.run("git", "checkout", "--quiet", "HEAD", "--", ".")
    output = clone.dvc(*run_all)
    clone.dvc(*stop)
    assert "No module named 'lib.mark'" in output
    assert "Failed to reproduce experiment(s) 'not-added'" in output
    refs = clone.run("git", "for-each-ref", "--format=%(refname)", "refs/exps").split()
    made = {ref.rpartition("/")[2]: ref for ref in refs if ref.endswith(("/plain", "/added"))}
    params, locks = (
        [YAML(typ="safe").load(clone.run("git", "show", f"{made[name]}:{file}")) for name in made]
        for file in ("params.yaml", "dvc.lock")
    )
    assert {*made} == {"plain", "added"}
    assert sorted(each["seed"] for each in params) == [1, 3]
    codes = [lock["stages"]["sft"]["deps"][0] for lock in locks]
    assert codes[0]["path"] == codes[1]["path"] == "data/checked/code/sft.json"
    assert codes[0] != codes[1]


def test_a_fresh_clone_behaves_as_the_one_it_comes_from(clone, tmp_path):
    clone.run("git", "clone", "--quiet", ".", str(tmp_path / "fresh"))
    fresh = Clone(tmp_path / "fresh")
    by_hand = fresh.python("stages.sft", expected=2)
    assert "data/checked/code/sft.json" in by_hand
    assert "run `dvc repro check`" in by_hand
    fresh.dvc("cache", "dir", "--local", str(clone.folder / ".dvc/cache"))
    # The report has no run-cache.
    assert ran(fresh.dvc("repro")) == ["report"]
    edit(fresh, VERIFIER, ('"""', '"""Fresh words. '))
    assert ran(fresh.dvc("repro")) == ["check"]
