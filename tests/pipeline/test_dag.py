"""dvc.yaml names the code, inputs and outputs of each stage."""

import importlib
import re
from pathlib import Path
from typing import Any

import click
import pytest
from ruamel.yaml import YAML

from lib.artifacts import ROOT
from lib.artifacts.code import stage_code
from lib.params import preset_params
from lib.params.model import Evaluate
from stages.options import SECTIONS
from tests.conftest import run_command

DAG: dict[str, Any] = YAML(typ="safe").load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))
ROOTS = {name: path for entry in DAG["vars"] for name, path in entry.items()}
STAGES = list(DAG["stages"])


def resolved(text: str) -> str:
    """Fill in the variables of a path in dvc.yaml: roots, matrix item and params."""
    values = {**ROOTS, "item.checkpoint": "grpo", "export.checkpoint": "grpo"}
    values |= {"item.init": "sft"}
    return re.sub(r"\$\{([^}]+)\}", lambda match: values[match[1]], text)


def paths(stage: str, kind: str) -> set[str]:
    entries = DAG["stages"][stage].get(kind, [])
    return {resolved(next(iter(e)) if isinstance(e, dict) else e) for e in entries}


def is_code(path: str) -> bool:
    return path.partition("/")[0] in paths("check", "deps")


def options(stage: str) -> list[click.Option]:
    command = importlib.import_module(f"stages.{stage}").main
    return [option for option in command.params if isinstance(option, click.Option)]


def code_of(stage: str, **changes: Any) -> dict[str, str]:
    """Return a stage's code by the default params and changes: `reward__extra=["boxed"]`."""
    params = preset_params("tiny-cpu").model_dump()
    for key, value in changes.items():
        section, _, field = key.partition("__")
        params[section][field] = value
    # Importing a stage's script fills SECTIONS.
    importlib.import_module(f"stages.{stage}")
    sections = SECTIONS[stage]
    return stage_code(stage, {name: params[name] for name in sections or params})


CODED = [stage for stage in STAGES if stage != "check"]


@pytest.fixture(scope="module")
def manifests():
    return {stage: code_of(stage) for stage in CODED}


@pytest.mark.parametrize("stage", CODED)
def test_a_stage_depends_on_its_manifest_and_on_no_code(stage, manifests):
    assert f"data/checked/code/{stage}.json" in paths(stage, "deps")
    assert not any(map(is_code, paths(stage, "deps")))
    # `check` runs again if any of these files changes.
    assert f"stages/{stage}.py" in manifests[stage]
    assert all(map(is_code, manifests[stage]))

    # The manifest knows the stage's params.
    listed = DAG["stages"][stage]["params"]
    if listed == DAG["stages"]["check"]["params"]:
        assert SECTIONS[stage] is None
    else:
        assert {name.partition(".")[0] for name in listed} == SECTIONS[stage]


def test_a_stage_reaches_no_code_that_cannot_change_it(manifests):
    """Otherwise a changed verifier or reward would generate all completions again."""
    for stage, rooms in {
        "evaluate": ("reckon_verifier/", "lib/rewards/", "lib/grading/"),
        "grade": ("lib/engines/", "lib/models/", "lib/training/"),
        "sft": ("lib/training/grpo/", "lib/training/dpo.py", "lib/objectives/"),
        "report": ("lib/engines/", "lib/training/", "lib/rewards/"),
    }.items():
        assert not [file for file in manifests[stage] if file.startswith(rooms)], stage


def test_every_data_file_of_the_code_is_in_a_manifest(manifests):
    """But for launchers' files, overlays, what `plan` estimates with and rewards' audit reads."""
    unread = ("lib/planning/", *(f"lib/presets/{each}/" for each in ("launch", "models", "phases")))
    unread += ("lib/presets/README.md", "lib/presets/accelerate/", "plugins/")
    unread += ("reckon_verifier/wrong/",)
    tracked = run_command("git", "ls-files", *paths("check", "deps")).stdout.split()
    hashed = {file for code in manifests.values() for file in code}
    missed = {file for file in tracked if not file.endswith(".py")} - hashed
    assert {file for file in missed if not file.startswith(unread)} == set()
    assert "lib/presets/smoke.yaml" in manifests["report"]
    assert "lib/presets/smoke.yaml" not in manifests["sft"]


STACK = "lib/rewards/stacks/s4.py"
REWARD, FORMAT, LOSS, ADAPTER, TOOL = (
    f"plugins/{role}/examples.py"
    for role in ("rewards", "formats", "objectives", "adapters", "tools")
)


@pytest.mark.parametrize(
    ("changes", "file", "users"),
    [
        ({}, STACK, set()),
        ({"validation__stack": "s4"}, STACK, {"sft", "grpo", "dpo"}),
        ({"reward__stack": "s4"}, STACK, {"grpo", "grade"}),
        ({"reward__extra": ["s4:answer"]}, STACK, {"grpo", "grade"}),
        ({"reward__extra": ["repetition"]}, STACK, {"grpo", "grade"}),
        ({"reward__extra": [f"{REWARD}:brevity"]}, STACK, set()),
        ({"reward__extra": [f"{REWARD}:brevity"]}, REWARD, {"grpo", "grade", "export"}),
        ({"grpo__loss": f"{LOSS}:squared"}, LOSS, {"grpo", "export"}),
        ({"prompt__format": f"{FORMAT}:steps"}, FORMAT, {*CODED} - {"report"}),
        ({"prompt__tool": f"{TOOL}:hexadecimal"}, TOOL, {*CODED} - {"report"}),
        (
            {"prepare__benchmarks": [{"source": {"adapter": f"{ADAPTER}:nested"}}]},
            ADAPTER,
            {"prepare", "export"},
        ),
    ],
)
def test_plugins_and_stacks_count_where_params_name_them(changes, file, users, in_root):
    assert {stage for stage in CODED if file in code_of(stage, **changes)} == users


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
    data = {path for path in paths(stage, "deps") if not is_code(path)}
    read = read - {"params.yaml"}
    for some, others in ((read, data), (data, read)):
        for path in map(Path, some):
            assert any(path.is_relative_to(o) or Path(o).is_relative_to(path) for o in others), path


def test_a_stage_depends_on_the_params_it_reads():
    """The export on all: its provenance has them, and `./reckon push` compares them."""
    params = {name: stage.get("params") for name, stage in DAG["stages"].items()}
    assert params["export"] == params["check"]
    listed = {name for name in params["evaluate"] if name.startswith("evaluate")}
    knobs = Evaluate.model_fields.keys() - {"checkpoints"}
    assert listed == {f"evaluate.{name}" for name in knobs}
    source = (ROOT / "stages/report.py").read_text(encoding="utf-8")
    read = set(re.findall(r"\bparams\.(\w+)", source))
    # `Params.starts` reads `dpo.init`.
    sections = {"dpo" if name == "starts" else name for name in read}
    assert {name.split(".")[0] for name in params["report"]} == sections


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_has_a_description_and_an_output_not_in_git(stage):
    """With all outputs in git, a fresh clone would skip the stage and show committed numbers."""
    assert DAG["stages"][stage]["desc"]
    outs = DAG["stages"][stage]["outs"]
    cached = [out for out in outs if isinstance(out, str)]
    ignored = [path + end for path in map(resolved, cached) for end in ("", "/x")]
    assert run_command("git", "check-ignore", *ignored).returncode == 0
    # DVC 3.67 switches the run-cache off for a stage with an uncached output under `outs`.
    flags = [flags for out in outs if isinstance(out, dict) for flags in out.values()]
    assert stage == "report" or not [each for each in flags if each.get("cache") is False]
