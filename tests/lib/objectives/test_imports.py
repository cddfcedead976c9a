"""The library is importable by itself: torch, and nothing of the trainers."""

import subprocess
import sys

HEAVY = {"transformers", "trl", "peft", "accelerate", "datasets", "vllm", "unsloth", "wandb"}


def loaded_by(statement: str) -> set[str]:
    script = f"import sys; {statement}; print(*{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def test_importing_objectives_loads_torch_and_no_trainer() -> None:
    loaded = loaded_by("import lib.course, lib.training.phase.optim")
    assert "torch" in loaded
    assert not loaded & HEAVY


def test_the_check_can_fail() -> None:
    assert loaded_by("import datasets, lib.course") & HEAVY == {"datasets"}
