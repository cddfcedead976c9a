"""The harness that compares GRPO on a GPU, on a CPU with a tiny shape."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from lib.engines.sizes import Shape
from lib.trainers.comparison import NEEDS, WAYS, Work, compare
from lib.trainers.machine import find_gpus
from tests.conftest import ROOT

TINY = Work(
    shape=Shape(
        hidden=32,
        intermediate=64,
        layers=1,
        heads=2,
        kv_heads=1,
        head_dim=16,
        vocab=512,
        qk_norm=True,
    ),
    prompts=2,
    group=4,
    tokens=16,
    steps=2,
    dtype="float32",
)


@pytest.mark.slow
def test_both_trainers_are_measured_and_what_is_not_installed_says_so(tmp_path: Path) -> None:
    found = compare(TINY, ("reckon", "trl", "unsloth"), scratch=tmp_path)
    for way in ("reckon", "trl"):
        figures = found["ways"][way]
        assert set(figures) == {"seconds_per_step", "tokens_per_second", "peak_memory_bytes"}
        # At most 2 problems × 4 completions × 16 tokens, and a random model seldom ends early.
        tokens = figures["seconds_per_step"] * figures["tokens_per_second"]
        assert 0.5 * 128 < tokens <= 128
    assert found["ways"]["unsloth"] == {"skipped": "unsloth is not installed"}
    assert found["versions"]["trl"]


@pytest.mark.skipif(bool(find_gpus()), reason="has a GPU")
def test_without_a_gpu_it_is_one_line_and_exit_code_1() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "stages.gpu_check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("Error: gpu-check needs an NVIDIA GPU, and nvidia-smi lists none here")


@pytest.mark.gpu
@pytest.mark.parametrize("way", WAYS)
def test_every_way_runs_for_real_on_a_gpu(tmp_path: Path, way: str) -> None:
    pytest.importorskip(NEEDS[way])
    work = dataclasses.replace(TINY, dtype="bfloat16")
    assert compare(work, (way,), scratch=tmp_path)["ways"][way].get("seconds_per_step")
