"""The harness that compares GRPO on a GPU, on a CPU with a tiny shape."""

import dataclasses
import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lib.planning.machine import find_gpus
from lib.planning.sizes import Shape
from tests.bench.gpu.comparison import NEEDS, WAYS, compare, failures
from tests.bench.gpu.contenders import Work, params_of
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
    lora_rank=4,
)


@pytest.mark.slow
def test_both_trainers_are_measured_and_what_is_not_installed_says_so(tmp_path: Path) -> None:
    found = compare(TINY, ("reckon", "trl", "unsloth"), scratch=tmp_path)
    for way in ("reckon", "trl"):
        figures = found["ways"][way]
        figures_alone = {"seconds_per_step", "tokens_per_second", "peak_memory_bytes"}
        assert set(figures) == {*figures_alone, "settings"}
        # At most 2 problems × 4 completions × 16 tokens, and a random model seldom ends early.
        tokens = figures["seconds_per_step"] * figures["tokens_per_second"]
        assert 0.5 * 128 < tokens <= 128
    ours, stock = (dict(found["ways"][way]["settings"]) for way in ("reckon", "trl"))
    assert ours.pop("sampler_gap") < 1e-5
    assert stock.pop("sampler_gap") is None
    assert ours == stock
    assert ours["trained"] == ["float32"]
    assert ours["lora"]["rank"] == 4
    assert found["ways"]["unsloth"] == {"skipped": "unsloth is not installed"}
    assert found["versions"]["trl"]
    assert failures(found) == []


@pytest.mark.slow
def test_a_way_that_fails_is_named_with_its_error(tmp_path: Path) -> None:
    found = compare(dataclasses.replace(TINY, group=1), ("trl",), scratch=tmp_path)
    (failure,) = failures(found)
    assert failure.startswith("trl:")
    assert "group_size=1" in failure


@pytest.mark.skipif(bool(find_gpus()), reason="has a GPU")
def test_without_a_gpu_it_is_one_line_and_exit_code_1() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.gpu"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("Error: gpu-check needs an NVIDIA GPU, and nvidia-smi lists none here")


@pytest.mark.parametrize(
    ("changes", "vllm", "engine"),
    [
        ({"dtype": "bfloat16"}, True, "vllm"),
        ({"dtype": "bfloat16"}, False, "transformers"),
        ({"dtype": "bfloat16", "lora_rank": 0}, True, "transformers"),
        ({}, True, "transformers"),
    ],
)
def test_unsloth_shares_weights_with_vllm_wherever_params_let_it(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    changes: dict[str, Any],
    vllm: bool,
    engine: str,
) -> None:
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: object() if name == "vllm" and vllm else None
    )
    work = dataclasses.replace(TINY, **changes)
    params = params_of("unsloth", work, tmp_path)
    assert (params.model.backend, params.rollout.engine) == ("unsloth", engine)
    assert params_of("reckon", work, tmp_path).rollout.engine == "transformers"


@pytest.mark.gpu
@pytest.mark.parametrize("way", WAYS)
def test_every_way_runs_for_real_on_a_gpu(tmp_path: Path, way: str) -> None:
    if importlib.util.find_spec(NEEDS[way]) is None:
        pytest.skip(f"{NEEDS[way]} is not installed")
    work = dataclasses.replace(TINY, dtype="bfloat16")
    assert compare(work, (way,), scratch=tmp_path)["ways"][way].get("seconds_per_step")
