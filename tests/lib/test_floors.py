"""Floor 0 stays light, and `lib` is the checkout's own."""

import subprocess
import sys
from pathlib import Path

import pytest

import lib

ROOT = Path(__file__).parents[2]
TRAINERS = {"transformers", "trl", "peft", "accelerate", "datasets", "vllm", "unsloth", "wandb"}
HEAVY = {"torch", "transformers", "trl", "vllm", "unsloth"}
FLOOR_0 = ["artifacts", "core", "params", "problems", "prompts", "report", "rewards", "stats"]
FLOOR_0 += ["verifier"]


def heavy_imports(code: str, heavy: set[str] = HEAVY) -> set[str]:
    """Heavy packages in `sys.modules` after `code` ran in a process of its own."""
    report = f"{code}\nimport sys; print(*sorted({heavy} & set(sys.modules)))"
    shown = subprocess.run(
        [sys.executable, "-c", report], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(shown.stdout.split())


def modules(package: str) -> list[str]:
    files = sorted((ROOT / "lib" / package).rglob("*.py"))
    names = [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files]
    return [name.removesuffix(".__init__") for name in names]


def test_no_module_of_floor_0_imports_anything_heavy() -> None:
    imports = "\n".join(f"import {name}" for package in FLOOR_0 for name in modules(package))
    assert heavy_imports(imports) == set()


def test_objectives_import_torch_and_no_trainer() -> None:
    """Also that the checks here can fail."""
    torch_only = heavy_imports("import lib.course, lib.training.phase.optim", {"torch", *TRAINERS})
    assert torch_only == {"torch"}


def test_a_stage_imports_nothing_heavy_before_its_params() -> None:
    stages = ["prepare", "sft", "grpo", "evaluate", "export", "report"]
    assert heavy_imports("\n".join(f"import stages.{stage}" for stage in stages)) == set()


def test_lib_is_the_checkouts_own() -> None:
    assert Path(lib.__file__ or "").parents[1] == ROOT


@pytest.mark.parametrize("path", ["lib/params/__init__.py", "lib/artifacts/problems.py"])
def test_git_does_not_ignore_the_library(path: str) -> None:
    ignored = subprocess.run(["git", "check-ignore", "-q", path], cwd=ROOT, check=False)
    assert ignored.returncode == 1
