"""The whole DAG runs with the smoke preset in a scratch clone, and reruns changed stages only."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from dvc.utils.serialize import load_yaml, modify_yaml
from ruamel.yaml import YAML

from lib.artifacts import hash_path, read_json
from lib.params import preset_params
from lib.planning.memory import shape_of
from lib.planning.plan import evaluation_of, phases_of, validation_of
from tests.conftest import ROOT, run_command
from tests.docs.blocks import blocks_of

ALL = ["check", "prepare", "sft", "grpo", "evaluate@base", "evaluate@sft", "evaluate@grpo"]
ALL += ["grade@base", "grade@sft", "grade@grpo", "export", "report"]
WARM = "tests.pipeline.warm"
"""DVC with stages that start faster."""


def stages_of(text: str) -> dict[str, Any]:
    """Read the stages of a dvc.lock."""
    stages: dict[str, Any] = YAML(typ="safe").load(text)["stages"]
    return stages


class Clone:
    """A clone of HEAD; `first` lists the stages of its first run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.first: list[str] = []

    def run(self, *command: str, expected: int = 0) -> str:
        """Run a command, assert its exit code, and return stdout and stderr together."""
        ran = run_command(*command, cwd=self.folder)
        assert ran.returncode == expected, ran.stdout + ran.stderr
        return ran.stdout + ran.stderr

    def python(self, module: str, *arguments: str, expected: int = 0) -> str:
        return self.run(sys.executable, "-m", module, *arguments, expected=expected)

    def dvc(self, *arguments: str, expected: int = 0, module: str = WARM) -> str:
        return self.python(module, *arguments, expected=expected)

    def change(self, **sections: dict[str, Any]) -> None:
        """Change params by section."""
        with modify_yaml(self.folder / "params.yaml") as params:
            for section, values in sections.items():
                params[section] |= values

    def repro(self, module: str = WARM) -> list[str]:
        """Run `dvc repro`; list the executed stages in order."""
        printed = self.dvc("repro", module=module)
        return re.findall(r"^Running stage '(.+)':$", printed, re.MULTILINE)

    def commit(self, message: str) -> None:
        self.run("git", "add", "--all")
        identity = ["-c", "user.name=t", "-c", "user.email=t@localhost"]
        self.run("git", *identity, "commit", "--quiet", "--message", message)

    def read(self, path: str) -> str:
        return (self.folder / path).read_text(encoding="utf-8")


def clone_with_smoke(folder: Path) -> Clone:
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
    clone = Clone(folder)
    clone.python("commands", "preset", "smoke")
    return clone


def copy_of(smoke_run: Path, folder: Path) -> Clone:
    """Copy the clone with the smoke preset's run."""
    clone = Clone(Path(shutil.copytree(smoke_run / "smoke", folder, symlinks=True)))
    clone.first = read_json(smoke_run / "smoke.json")
    return clone


@pytest.fixture(scope="module")
def clone(smoke_run, tmp_path_factory):
    made = copy_of(smoke_run, tmp_path_factory.mktemp("end-to-end") / "reckon")
    yield made
    shutil.rmtree(made.folder)


def test_in_a_fresh_clone_every_stage_runs(clone):
    assert clone.first == ALL


def test_nothing_is_left_to_do_after_a_run(clone):
    assert clone.run("git", "status", "--porcelain") == ""
    assert clone.repro() == []


def test_the_plan_counts_what_the_run_made(clone):
    """Validations' points and every graded completion, as `./reckon plan` counts them before."""
    params = preset_params("smoke")
    for phase in phases_of(params, shape_of(params.model)):
        if counted := validation_of(params, phase):
            points = clone.read(f"reports/curves/{phase.name}_validation.csv").splitlines()[1:]
            # 4 problems of each of two sets.
            assert counted.completions == 8 * len(points) > 0
    planned, graded = evaluation_of(params), 0
    for checkpoint in params.evaluate.checkpoints:
        metrics = read_json(clone.folder / f"reports/metrics/evaluate/{checkpoint}.json")
        assert metrics["held_out"]["greedy"]["n"] == 12
        assert metrics["harder"]["sampled"]["num_samples"] == 2
        rows = clone.read(f"data/graded/{checkpoint}.jsonl").splitlines()
        # 12 problems of held_out and 6 of harder, one greedy completion and two samples each.
        assert len(rows) == (12 + 6) * (1 + 2)
        graded += len(rows)
    assert (planned.prompts, planned.completions) == (12 + 6, graded)


def test_the_summary_names_every_checkpoint_and_the_model(clone):
    summary = clone.python("commands", "summary")
    assert all(name in summary for name in ("base", "sft", "grpo", "data/models/export"))


@pytest.mark.slow
def test_a_skipped_grpo_reruns_what_depends_on_it(clone):
    """SFT's checkpoint passes through; with the old params, all but the report is cached."""
    before = clone.read("dvc.lock")
    clone.change(grpo={"max_steps": 0, "learning_rate": 0.02})
    assert clone.repro() == ["check", "grpo", "evaluate@grpo", "grade@grpo", "export", "report"]

    knobs = json.loads(clone.dvc("params", "diff", "--json"))["params.yaml"]
    assert knobs["grpo.max_steps"] == {"old": 3, "new": 0, "diff": -3}
    assert set(knobs) == {"grpo.max_steps", "grpo.learning_rate"}
    measured = {name: f"reports/metrics/evaluate/{name}.json" for name in ("base", "sft", "grpo")}
    changed = json.loads(clone.dvc("metrics", "diff", "--json"))
    # Three steps may change no rate: the completions differ.
    assert "reports/metrics/grpo.json" in changed
    answered = [stages_of(text)["evaluate@grpo"] for text in (before, clone.read("dvc.lock"))]
    assert answered[0]["outs"][0] != answered[1]["outs"][0]
    assert not set(changed) & {"reports/metrics/sft.json", measured["base"], measured["sft"]}
    assert clone.read(measured["sft"]) == clone.read(measured["grpo"])
    assert "skipped" in clone.read("reports/report.md")

    clone.run("git", "checkout", "params.yaml")
    assert clone.repro() == ["report"]
    assert clone.read("dvc.lock") == before
    assert clone.run("git", "status", "--porcelain") == ""


@pytest.mark.slow
def test_what_would_fail_stops_before_anything_is_lost(clone):
    """Wrong values and unknown keys fail early; so do a missing engine and a missing file."""
    models = hash_path(clone.folder / "data/models")
    wrong = {"sft": {"warmup_ratio": 10, "learning_rte": 1}}
    absent = {"model": {"backend": "unsloth"}, "prompt": {"system": "file:data/raw/missing.txt"}}
    for changes, named in (
        (wrong, ("sft.warmup_ratio", "sft.learning_rte")),
        (absent, ("model.backend=unsloth", "missing.txt")),
    ):
        clone.change(**changes)
        printed = clone.dvc("repro", expected=255)
        assert all(name in printed for name in named)
        assert "Traceback" not in printed
        assert clone.run("git", "status", "--porcelain").split() == ["M", "params.yaml"]
        assert hash_path(clone.folder / "data/models") == models
        clone.run("git", "checkout", "params.yaml")


def commands_of(page: str) -> list[list[str]]:
    """Split each command of docs/<page>.md into words."""
    (block,) = (each for each in blocks_of(ROOT / f"docs/{page}.md") if each.script)
    return [shlex.split(line) for line in block.script.splitlines()]


@pytest.mark.slow
def test_dpo_beside_the_other_phases_runs_only_what_is_new(clone):
    (_, _, preset, *options), (_, *run) = commands_of("dpo")
    assert preset == "tiny-cpu"
    clone.python("commands", "preset", "smoke", *options)
    printed = clone.dvc(*run)
    ran = re.findall(r"^Running stage '(.+)':$", printed, re.MULTILINE)
    assert ran == ["check", "pairs@sft", "dpo@sft", "evaluate@dpo", "grade@dpo", "export", "report"]

    pairs = load_yaml(str(clone.folder / "params.yaml"))["dpo"]["pairs"]
    num_problems = pairs["num_problems"] or len(clone.read("data/problems/grpo.jsonl").splitlines())
    assert read_json(clone.folder / "reports/metrics/pairs.json")["num_problems"] == num_problems
    differences = read_json(clone.folder / "reports/metrics/report.json")
    assert set(differences) - {"measured_on", "paired"} == {"base_to_sft", "sft_to_dpo", "exported"}
    report = clone.read("reports/report.md")
    assert "The exported model is `dpo`" in report
    assert "Training: dpo" in report
    assert "`dpo` checkpoint" in clone.read("data/models/export/README.md")
    clone.run("git", "checkout", ".")
    clone.run("git", "clean", "--force", "--quiet", "reports")
    clone.dvc("checkout", "--force")


@pytest.mark.slow
def test_two_fresh_clones_give_the_same_lock(clone, tmp_path):
    other = clone_with_smoke(tmp_path / "reckon")
    (other.folder / "dvc.lock").unlink()
    # The stages are processes of their own here.
    assert other.repro("dvc") == ALL
    assert load_yaml(other.folder / "dvc.lock") == load_yaml(clone.folder / "dvc.lock")
