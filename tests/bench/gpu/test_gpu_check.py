"""`make gpu-check`, every part of it on a CPU with small models."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lib.engines.policy import load_tokenizer
from lib.planning.doctor import find_gpus
from lib.planning.memory import longest_row
from lib.prompts import format_settings, prompt_format, saved_system
from lib.training.sft import sft_dataset
from tests.bench.gpu import __main__ as check
from tests.bench.gpu import measure, rows
from tests.bench.gpu.rows import PARTS, SMALL, Row, row, small
from tests.conftest import ROOT

EXACT = {"dtype": "float32", "mixed_precision": "fp32"}

CASES = {
    f"{part}, {name}": each
    for part in ("presets", "precision", "generation", "determinism")
    for name, each in PARTS[part]().items()
    if not each.skipped
}


def measured(each: Row, folder: Path) -> dict[str, Any]:
    base = folder / "base"
    measure.write_base(base, each)
    return measure.measure(each, base, folder)


@pytest.mark.parametrize("case", CASES)
def test_a_row_is_measured_on_a_cpu(case: str, tmp_path: Path) -> None:
    each = small(CASES[case])
    figures = measured(each, tmp_path)
    assert figures["tokens_per_second"] > 0
    assert figures["peak_memory_bytes"] > 0
    if each.kind == "generation":
        return
    assert figures["steps"] == (5 if each.kind == "sft" else 2)
    assert figures["planned"]["peak_memory_bytes"] > 0
    settings, model = figures["settings"], each.params["model"]
    assert settings["weights"] == model["dtype"]
    assert settings["autocast"] == ("bfloat16" if model["mixed_precision"] == "bf16" else None)
    assert settings["trained"] == ["float32" if model["lora"]["rank"] else model["dtype"]]
    if each.kind == "grpo":
        # Products in bfloat16 round by parts in 256, in float32 by parts in 10⁷.
        exact = model["mixed_precision"] == "fp32"
        assert figures["sampler_gap_at_first_step"]["max"] < (1e-5 if exact else 1e-1)


def test_both_trainers_take_the_same_steps(tmp_path: Path) -> None:
    figures = {}
    for way in ("reckon", "trl"):
        (tmp_path / way).mkdir()
        each = small(row("Qwen/Qwen3-0.6B", model=EXACT, **rows.WAYS[way]))
        figures[way] = measured(each, tmp_path / way)
        # 4 problems × 8 completions × 16 tokens, and a random model seldom ends early.
        tokens = figures[way]["seconds_per_step"] * figures[way]["tokens_per_second"]
        assert 0.5 * 512 < tokens <= 512.001
    assert figures["reckon"]["settings"] == figures["trl"]["settings"]


@pytest.mark.parametrize("case", [name for name in CASES if name.startswith("presets")])
def test_rows_of_a_preset_are_as_long_as_its_params_allow(case: str, tmp_path: Path) -> None:
    """With the preset's own lengths: its prompt leaves room for a problem."""
    each = CASES[case]
    params = measure.params_of(each)
    measure.write_base(tmp_path, dataclasses.replace(each, shape=each.shape | SMALL))
    tokenizer, system = load_tokenizer(tmp_path), saved_system(tmp_path)
    problems = measure.problems_of(each, params, tokenizer, system=system)
    rendering = prompt_format(**format_settings(params.prompt))
    example = sft_dataset(problems[:1], tokenizer, prompt_format=rendering, system=system)[0]
    longest = longest_row(params, each.kind)
    if each.kind == "sft":
        assert len(example["input_ids"]) == longest
        assert len(problems) == 5 * params.sft.batch_size
    else:
        prompt = example["completion_mask"].count(0)
        assert prompt + params.rollout.max_new_tokens == longest
        assert len(problems) == params.grpo.prompts_per_step


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_same_weights(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(measure, "START", "fork")  # libraries are imported once
    (each,) = (small(each) for each in PARTS["resume"]().values())
    each.params["model"] |= EXACT
    figures = measured(each, tmp_path)
    assert figures == {
        "resumed_from_steps": [2],
        "largest_difference": 0.0,
        "weights_are_equal": True,
    }


def test_a_row_says_what_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows.importlib.util, "find_spec", lambda name: None)
    skipped = {way: each.skipped for way, each in PARTS["steps-0.6b"]().items()}
    assert skipped["reckon"] == skipped["trl"] == ""
    assert skipped["trl-vllm"] == "not installed: vllm"
    assert skipped["unsloth-vllm"] == "not installed: unsloth, vllm"
    assert check.outcome(PARTS["steps-0.6b"]()["unsloth"], Path()) == {
        "skipped": "not installed: unsloth"
    }
    # A preset is measured all the same, with what there is.
    s0 = PARTS["presets"]()["s0-qwen3-4b grpo"]
    assert not s0.skipped
    assert s0.instead == {"model.backend": "transformers", "rollout.engine": "transformers"}
    assert measure.params_of(s0).model.backend == "transformers"


@pytest.mark.parametrize("part", PARTS)
def test_with_every_engine_all_rows_are_params_of_a_stage(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows.importlib.util, "find_spec", lambda name: object())
    for each in PARTS[part]().values():
        assert not each.skipped
        assert not each.instead
        params = measure.params_of(each)
        if each.kind in {"sft", "grpo"}:
            assert measure.planned(params, each)["peak_memory_bytes"] > 10**9


@pytest.fixture
def outcomes(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Any]]:
    """Of the three rows of a part; another is an interruption."""
    found: dict[str, dict[str, Any]] = {}
    monkeypatch.setattr(check, "outcome", lambda row, models: found[row.kernels])
    return found


def gpu_check(folder: Path, *options: str) -> Any:
    return CliRunner().invoke(
        check.main, ["determinism", "--tiny", f"--out={folder}", *options], catch_exceptions=True
    )


def test_the_next_run_keeps_what_was_measured(
    outcomes: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    outcomes |= {"reproducible": {"figures": {"n": 1}}, "filled": {"failed": "no memory"}}
    killed = gpu_check(tmp_path)
    assert isinstance(killed.exception, KeyError)  # at the third row
    written = json.loads((tmp_path / "determinism.json").read_text())["rows"]
    assert {name: "figures" in found for name, found in written.items()} == {
        "reproducible": True,
        "filled": False,
    }
    assert written["filled"]["row"]["params"]["model.lora.rank"] == 32

    outcomes["reproducible"] = {"failed": "measured twice"}
    outcomes |= {"filled": {"figures": {"n": 2}}, "fastest": {"skipped": "not installed: x"}}
    again = gpu_check(tmp_path)
    assert again.exit_code == 0, again.output
    written = json.loads((tmp_path / "determinism.json").read_text())["rows"]
    assert [found.get("figures") for found in written.values()] == [None, {"n": 2}, {"n": 1}]


def test_failures_and_rows_without_time_are_named(
    outcomes: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    outcomes |= {"reproducible": {"failed": "no memory"}}
    failed = gpu_check(tmp_path, "--minutes=0")
    assert "3 rows are missing" in failed.output
    assert "determinism, filled: left, run the same command again" in failed.output
    assert not (tmp_path / "determinism.json").exists()


def test_a_row_that_fails_is_named_with_its_error(tmp_path: Path) -> None:
    wrong = small(row("Qwen/Qwen3-0.6B", grpo={"group_size": 1}))
    found = check.outcome(wrong, tmp_path)
    assert "group_size=1" in found["failed"]
    assert found["failed"] in found["stderr"]


def test_a_row_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "LIMIT_S", 0.2)
    code, _, _ = check.run([sys.executable, "-c", "import time; time.sleep(60)"], text="")
    assert code is None


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


@pytest.mark.gpu
@pytest.mark.parametrize("way", rows.WAYS)
def test_every_way_runs_for_real_on_a_gpu(tmp_path: Path, way: str) -> None:
    each = small(PARTS["steps-0.6b"]()[way])
    assert check.outcome(each, tmp_path).keys() <= {"figures", "skipped"}
