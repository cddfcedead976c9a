"""dvc.yaml lists exactly the code, inputs and outputs of each stage."""

import importlib
import re
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest
from dvc.repo import Repo
from ruamel.yaml import YAML

from lib.params.model import Evaluate
from lib.rewards.functions import STACKS
from tests.conftest import run_command
from tests.pipeline.imports import ROOT, dependencies, reachable, script

DAG: dict[str, Any] = YAML(typ="safe").load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))
ROOTS = {name: path for entry in DAG["vars"] for name, path in entry.items()}
STAGES = list(DAG["stages"])


def resolved(text: str) -> str:
    """Fill in the variables of a path in dvc.yaml: roots, matrix item and params."""
    values = {**ROOTS, "item.checkpoint": "grpo", "export.checkpoint": "grpo"}
    values |= {"validation.stack": "tiny", "item.init": "sft"}
    return re.sub(r"\$\{([^}]+)\}", lambda match: values[match[1]], text)


def paths(stage: str, kind: str) -> set[str]:
    entries = DAG["stages"][stage].get(kind, [])
    return {resolved(next(iter(e)) if isinstance(e, dict) else e) for e in entries}


def is_code(path: str) -> bool:
    return path.startswith(("lib/", "stages/"))


def options(stage: str) -> list[click.Option]:
    command = importlib.import_module(f"stages.{script(DAG['stages'][stage]).stem}").main
    return [option for option in command.params if isinstance(option, click.Option)]


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_lists_exactly_the_code_that_it_reaches(stage):
    listed = {path for path in paths(stage, "deps") if is_code(path)}
    assert listed == {resolved(path) for path in dependencies(DAG["stages"][stage])}


def test_completions_depend_on_nothing_that_grades():
    """Otherwise a changed verifier or reward would generate all completions again."""
    assert not any(path.startswith("reckon_verifier") for path in paths("evaluate", "deps"))
    assert "reward" not in DAG["stages"]["evaluate"]["params"]
    assert not any(path.startswith("lib/engines") for path in paths("grade", "deps"))


@pytest.mark.parametrize(
    ("role", "expected"),
    [
        ("rewards", {"grpo", "grade", "evaluate", "export", "report"}),
        ("objectives", {"grpo", "grade", "evaluate", "export", "report"}),
        ("adapters", {"prepare", "sft"}),
        ("formats", {"prepare", "sft", "grpo", "evaluate", "grade", "export"}),
    ],
)
def test_a_plugin_re_runs_its_role_s_stages(role, expected):
    """Stages downstream run again too; a reward or a loss retrains no SFT."""
    changed, rerun = {f"plugins/{role}"}, set[str]()
    for stage in STAGES * len(STAGES):
        if changed & paths(stage, "deps"):
            rerun.add(stage)
            changed |= paths(stage, "outs") | paths(stage, "metrics")
    assert expected <= rerun
    assert ("sft" in rerun) == (role in ("adapters", "formats"))


@pytest.mark.parametrize("stack", sorted(STACKS))
def test_a_stack_retrains_no_sft_that_validates_with_another(stack):
    """Here `validation.stack` is tiny; `reward.extra` may name a reward of any stack."""
    file = Path(f"lib/rewards/stacks/{stack}.py")
    users = {
        name for name in STAGES if any(file.is_relative_to(dep) for dep in paths(name, "deps"))
    }
    validated = {"sft", "dpo"} if stack == "tiny" else set[str]()
    assert users == {"grpo", "grade"} | validated


@pytest.mark.parametrize("stack", sorted(STACKS))
def test_a_stack_imports_only_what_its_sft_lists(stack):
    """Stacks are imported by name, so that no import walk would see another stack behind one."""
    own = ROOT / f"lib/rewards/stacks/{stack}.py"
    imported = {file for file in reachable(own) - {own} if file.name != "__init__.py"}
    listed = [ROOT / dep for dep in paths("sft", "deps")]
    assert all(any(file.is_relative_to(dep) for dep in listed) for file in imported), imported


@pytest.mark.parametrize("stage", STAGES)
def test_a_stages_options_are_the_paths_that_dvc_knows(stage):
    """Written paths are its outputs; read paths lie below a dependency, or above one."""
    declared = options(stage)
    assert all(isinstance(option.type, click.Path) for option in declared)
    read, written = (
        {str(option.default) for option in declared if (option.help or "").startswith(kind)}
        for kind in ("Reads", "Writes")
    )
    assert written == paths(stage, "outs") | paths(stage, "metrics") | paths(stage, "plots")
    # No option: the output of `check` (for the order only), and plugins (params name them).
    data = paths(stage, "deps") - paths("check", "outs")
    data = {path for path in data if not (is_code(path) or path.startswith("plugins"))}
    read = read - {"params.yaml"}
    for some, others in ((read, data), (data, read)):
        for path in map(Path, some):
            assert any(path.is_relative_to(o) or Path(o).is_relative_to(path) for o in others), path


def test_evaluation_depends_on_all_its_knobs_but_the_checkpoints():
    listed = {name for name in DAG["stages"]["evaluate"]["params"] if name.startswith("evaluate")}
    assert listed == {f"evaluate.{name}" for name in Evaluate.model_fields} - {
        "evaluate.checkpoints"
    }


def test_the_export_depends_on_every_param():
    """Its provenance has all, and `./reckon push` compares them."""
    assert DAG["stages"]["export"]["params"] == DAG["stages"]["check"]["params"]


def test_the_report_depends_on_the_sections_it_reads():
    source = (ROOT / "stages/report.py").read_text(encoding="utf-8")
    read = set(re.findall(r"\bparams\.(\w+)", source))
    # `Params.starts` reads `dpo.init`.
    sections = {"dpo" if name == "starts" else name for name in read}
    assert {name.split(".")[0] for name in DAG["stages"]["report"]["params"]} == sections


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_has_a_description_and_an_output_not_in_git(stage):
    """With all outputs in git, a fresh clone would skip the stage and show committed numbers."""
    assert DAG["stages"][stage]["desc"]
    cached = [out for out in DAG["stages"][stage]["outs"] if isinstance(out, str)]
    ignored = [path + end for path in map(resolved, cached) for end in ("", "/x")]
    assert run_command("git", "check-ignore", *ignored).returncode == 0


def test_the_lock_was_made_from_the_code_beside_it(tmp_path):
    """The code in HEAD has the hashes of dvc.lock."""
    subprocess.run(["git", "clone", "-q", str(ROOT), str(tmp_path / "clone")], check=True)
    with Repo(str(tmp_path / "clone")) as repo:
        stale = [
            f"{stage.addressing}: {dep.def_path}"
            for stage in repo.index.stages
            for dep in stage.deps
            if is_code(dep.def_path) and dep.status()
        ]
    assert not stale, "run `dvc repro` and commit dvc.lock"


@pytest.mark.parametrize("stage", [stage for stage in STAGES if stage != "report"])
def test_the_run_cache_is_on(stage):
    """DVC 3.67 switches it off for a stage with an uncached output under `outs`."""
    outs = [out for out in DAG["stages"][stage]["outs"] if isinstance(out, dict)]
    assert not [out for out in outs for flags in out.values() if flags.get("cache") is False]
