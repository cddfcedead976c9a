"""Floor 0 stays light, and `lib` is the checkout's own."""

from pathlib import Path

import pytest

import lib
from tests.conftest import ROOT, run_command, run_python

TRAINERS = {"transformers", "trl", "peft", "accelerate", "datasets", "vllm", "unsloth", "wandb"}
HEAVY = {"torch", "transformers", "trl", "vllm", "unsloth"}
FLOOR_0 = ["artifacts", "core", "params", "problems", "prompts", "report", "rewards", "stats"]


def heavy_imports(code: str, heavy: set[str] = HEAVY) -> set[str]:
    """Run `code` in a fresh process; return the heavy packages in its `sys.modules`."""
    report = f"{code}\nimport sys; print(*sorted({heavy} & set(sys.modules)))"
    shown = run_python(report)
    assert shown.returncode == 0, shown.stderr
    return set(shown.stdout.split())


def modules(package: str) -> list[str]:
    folder = ROOT / package if package == "reckon_verifier" else ROOT / "lib" / package
    files = sorted(folder.rglob("*.py"))
    names = [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files]
    return [name.removesuffix(".__init__") for name in names]


def test_no_module_of_floor_0_imports_anything_heavy():
    imports = "\n".join(
        f"import {name}" for package in [*FLOOR_0, "reckon_verifier"] for name in modules(package)
    )
    of_models = ["files", "hub", "weights"]
    imports += "".join(f"\nimport lib.models.{name}" for name in of_models)
    assert heavy_imports(imports) == set()


def test_objectives_import_torch_and_no_trainer():
    """It also shows that these checks can fail: torch is detected."""
    torch_only = heavy_imports(
        "import examples.cs336, lib.training.phase.optim", {"torch", *TRAINERS}
    )
    assert torch_only == {"torch"}


def test_a_stage_imports_nothing_heavy_before_its_params():
    stages = ["prepare", "sft", "grpo", "evaluate", "export", "report"]
    assert heavy_imports("\n".join(f"import stages.{stage}" for stage in stages)) == set()


def test_lib_is_the_checkouts_own():
    assert Path(lib.__file__ or "").parents[1] == ROOT


@pytest.mark.parametrize("path", ["lib/params/__init__.py", "lib/artifacts/problems.py"])
def test_git_does_not_ignore_the_library(path):
    assert run_command("git", "check-ignore", "-q", path).returncode == 1
