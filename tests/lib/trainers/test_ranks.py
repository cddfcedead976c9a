"""Two processes train as one does: same batches, same gradients, equal weights on both."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from lib.problems.generated import GeneratedSets
from lib.problems.schema import write_problems
from tests.conftest import ROOT

pytestmark = pytest.mark.slow

LORA = pytest.mark.parametrize("rank", [0, 8], ids=["full", "LoRA"])
NO_CLIPPING = 1e9


def trained(
    stage: str, folder: Path, *, processes: int, base: Path, sets: GeneratedSets, **changes: Any
) -> list[dict[str, Any]]:
    """What each rank came to."""
    folder.mkdir()
    shutil.copytree(base, folder / "base")
    write_problems(folder / "sft.jsonl", sets.sft[:48])
    write_problems(folder / "grpo.jsonl", sets.grpo)
    (folder / "changes.json").write_text(json.dumps(changes), encoding="utf-8")
    launcher = [sys.executable]
    if processes > 1:
        torchrun = Path(sys.executable).with_name("torchrun")
        launcher = [str(torchrun), "--nproc_per_node", str(processes)]
    ran = subprocess.run(
        [*launcher, "-m", "tests.lib.trainers.ranks", stage, str(folder)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout
    return [
        torch.load(folder / f"{processes}-{rank}.pt", weights_only=False)
        for rank in range(processes)
    ]


@LORA
def test_sft_on_two_ranks_has_the_losses_of_one_and_equal_weights(
    rank: int, base: Path, sets: GeneratedSets, tmp_path: Path
) -> None:
    changes = {
        "model": lora(rank),
        "sft": {"num_epochs": 1, "logging_steps": 1, "learning_rate": 0.002},
    }
    shared: dict[str, Any] = {"base": base, "sets": sets, **changes}
    (alone,) = trained("sft", tmp_path / "one", processes=1, **shared)
    first, second = trained("sft", tmp_path / "two", processes=2, **shared)
    assert (first["num_processes"], second["num_processes"]) == (2, 2)
    assert len(alone["losses"]) == 3
    assert first["losses"] == pytest.approx(alone["losses"], rel=1e-5)
    agree(first["weights"], second["weights"], within=0)
    agree(first["weights"], alone["weights"], within=1e-5)


@LORA
def test_grpo_on_two_ranks_has_the_gradient_of_one_and_equal_weights(
    rank: int, base: Path, sets: GeneratedSets, tmp_path: Path
) -> None:
    changes = {
        "model": lora(rank),
        "grpo": {"max_steps": 2, "max_grad_norm": NO_CLIPPING},
        "rollout": {"max_logp_difference": 100.0},
    }
    shared: dict[str, Any] = {"base": base, "sets": sets, **changes}
    (alone,) = trained("grpo", tmp_path / "one", processes=1, **shared)
    first, second = trained("grpo", tmp_path / "two", processes=2, **shared)
    assert (first["num_processes"], second["num_processes"]) == (2, 2)
    largest = max(gradient.abs().max().item() for gradient in alone["gradients"].values())
    assert largest > 1e-3
    agree(first["gradients"], alone["gradients"], within=1e-5)
    agree(second["gradients"], alone["gradients"], within=1e-5)
    agree(first["weights"], second["weights"], within=0)


def lora(rank: int) -> dict[str, Any]:
    from tests.conftest import preset_params

    whole = preset_params("smoke").model.lora.model_dump(mode="json")
    return {"lora": {**whole, "rank": rank}}


def agree(one: dict[str, Any], other: dict[str, Any], *, within: float) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, other[name], rtol=0, atol=within)
