"""Two processes train as one does: same batches, same gradients, equal weights on both."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from lib.artifacts.problems import write_problems
from lib.params import preset_params
from lib.problems.generated import GeneratedSets
from tests.conftest import ROOT
from tests.lib.training.grpo_stage import grpo_stage, learned

pytestmark = pytest.mark.slow

LORA = pytest.mark.parametrize("rank", [0, 8], ids=["full", "LoRA"])
NO_CLIPPING = 1e9
TWO = ["torchrun", "--nproc_per_node", "2"]


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
        [*launcher, "-m", "tests.lib.training.ranks", stage, str(folder)],
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
    whole = preset_params("smoke").model.lora.model_dump(mode="json")
    return {"lora": {**whole, "rank": rank}}


def agree(one: dict[str, Any], other: dict[str, Any], *, within: float) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, other[name], rtol=0, atol=within)


def launched(launcher: Sequence[str], stage: Sequence[str]) -> subprocess.CompletedProcess[str]:
    program, *options = launcher
    command = [str(Path(sys.executable).with_name(program)), *options, *stage]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_stage_trains_on_two_ranks_and_fails_with_one_where_two_were_asked_for(
    base: Path, sets: GeneratedSets, tmp_path: Path
) -> None:
    stage = grpo_stage(tmp_path, base=base, sets=sets)
    refused = launched(["accelerate", "launch", "--num_processes", "2", "--cpu"], stage)
    assert refused.returncode != 0
    assert "told to start 2 processes and started 1" in refused.stderr
    assert not (tmp_path / "model").exists()
    ran = launched(TWO, stage)
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "model/tokenizer.json").is_file()
    assert learned(tmp_path)


def test_the_sft_stage_trains_on_two_ranks_and_fails_with_one_where_two_were_asked_for(
    base: Path, sets: GeneratedSets, tmp_path: Path
) -> None:
    write_problems(tmp_path / "sft.jsonl", sets.sft[:48])
    shared = grpo_stage(tmp_path, base=base, sets=sets)[2:]
    options = [option for option in shared if not option.startswith(("--init", "--rollouts"))]
    stage = ["-m", "stages.sft", *options]
    stage += [f"--problems={tmp_path / 'sft.jsonl'}", f"--validation-curve={tmp_path / 'steps'}"]
    refused = launched(["accelerate", "launch", "--num_processes", "2", "--cpu"], stage)
    assert refused.returncode != 0
    assert "told to start 2 processes and started 1" in refused.stderr
    assert not (tmp_path / "model").exists()
    ran = launched(TWO, stage)
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "model/tokenizer.json").is_file()


def test_two_ranks_that_were_killed_go_on_and_end_with_the_weights_of_an_undisturbed_run(
    base: Path, sets: GeneratedSets, tmp_path: Path
) -> None:
    weights = {}
    for name in ("undisturbed", "killed"):
        (tmp_path / name).mkdir()
        stage = grpo_stage(tmp_path / name, base=base, sets=sets)
        if name == "killed":
            died = launched(TWO, ["-m", "tests.lib.training.dies", *stage[2:]])
            assert "SIGKILL" in died.stderr
            stage = ["-m", "tests.lib.training.dies", *stage[2:]]
        ran = launched(TWO, stage)
        assert ran.returncode == 0, ran.stderr
        assert ("resumes from step 2" in ran.stdout + ran.stderr) == (name == "killed")
        assert learned(tmp_path / name)
        weights[name] = (tmp_path / name / "model/adapter_model.safetensors").read_bytes()
    assert weights["killed"] == weights["undisturbed"]


@pytest.mark.vllm
@LORA
def test_two_ranks_each_with_a_vllm_of_its_own_train_to_the_end_and_write_the_model(
    rank: int, base: Path, sets: GeneratedSets, tmp_path: Path
) -> None:
    """An engine that is closed at the end of training leaves the ranks' process group alone."""
    engine = {"engine": "vllm"}
    stage = grpo_stage(tmp_path, base=base, sets=sets, rollout=engine, model=lora(rank))
    ran = launched(TWO, stage)
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "model/tokenizer.json").is_file()
    assert learned(tmp_path)


def test_ranks_that_trained_apart_are_found_out(base: Path, tmp_path: Path) -> None:
    torchrun = Path(sys.executable).with_name("torchrun")
    command = [torchrun, "--nproc_per_node", "2", "-m", "tests.lib.training.disagrees", str(base)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode != 0
    assert "the weights of 2 ranks differ after training" in ran.stderr
