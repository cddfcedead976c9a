"""`make gpu-check` runs in every part on a CPU with small models."""

import dataclasses
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bench.gpu import __main__ as check
from bench.gpu import measure, rows
from bench.gpu.rows import PARTS, SMALL, Row, row, small
from lib.core.errors import UserError
from lib.engines.policy import load_tokenizer
from lib.planning.memory import longest_row
from lib.prompts import prompt_format, saved_system
from lib.training.sft import sft_dataset

EXACT = {"dtype": "float32", "mixed_precision": "fp32"}
PRESETS = PARTS["presets"]()
MEASURED = {name: PRESETS[name] for name in ("s0-qwen3-4b sft", "s3-cs336 grpo")} | {
    "exact": row("Qwen/Qwen3-0.6B", model=EXACT),
    "export": PARTS["export"]()["s0-qwen3-4b"],
}
"""Both phases, adapters and full weights, both types; an export."""


def measured(each: Row, folder: Path) -> dict[str, Any]:
    base = folder / "base"
    measure.write_base(base, each)
    return measure.measure(each, base, folder)


@pytest.mark.parametrize("case", MEASURED)
def test_a_row_is_measured_on_a_cpu(case, tmp_path):
    each = small(MEASURED[case])
    figures = measured(each, tmp_path)
    assert figures["peak_memory_bytes"] > 0
    assert figures["planned"]["peak_memory_bytes"] > 0
    if each.kind == "export":
        assert set(figures["errors"]) >= {"fold", "rounding", "merged", "adapter"}
        return
    assert figures["tokens_per_second"] > 0
    assert (0 < figures["generation_share"] < 1) == (each.kind == "grpo")
    assert figures["steps"] == (5 if each.kind == "sft" else 2)
    settings, model = figures["settings"], each.params["model"]
    assert settings["weights"] == model["dtype"]
    assert settings["autocast"] == ("bfloat16" if model["mixed_precision"] == "bf16" else None)
    assert settings["trained"] == ["float32" if model["lora"]["rank"] else model["dtype"]]
    if each.kind == "grpo":
        # Products in bfloat16 round by parts in 256, in float32 by parts in 10⁷.
        exact = model["mixed_precision"] == "fp32"
        for step in ("first", "last"):
            assert figures[f"sampler_gap_at_{step}_step"]["max"] < (1e-5 if exact else 1e-1)


def test_trls_trainer_takes_the_same_steps(tmp_path):
    figures = {}
    for way in ("reckon", "trl"):
        (tmp_path / way).mkdir()
        each = small(row("Qwen/Qwen3-0.6B", model=EXACT, **rows.WAYS[way]))
        figures[way] = measured(each, tmp_path / way)
        # 4 problems × 8 completions × 16 tokens, and a random model seldom ends early.
        tokens = figures[way]["seconds_per_step"] * figures[way]["tokens_per_second"]
        assert 0.5 * 512 < tokens <= 512.001
    assert figures["reckon"]["settings"] == figures["trl"]["settings"]


@pytest.mark.parametrize("case", PRESETS)
def test_a_presets_rows_are_as_long_as_params_allow(case, tmp_path):
    """The preset's own prompt and lengths leave room for a problem."""
    each = PRESETS[case]
    params = measure.params_of(each)
    measure.write_base(tmp_path, dataclasses.replace(each, shape=each.shape | SMALL))
    tokenizer, system = load_tokenizer(tmp_path), saved_system(tmp_path)
    problems = measure.problems_of(each, params, tokenizer, system=system)
    rendering = prompt_format(**params.prompt.rendering)
    example = sft_dataset(problems[:1], tokenizer, prompt_format=rendering, system=system)[0]
    rollout = example["completion_mask"].count(0) + params.rollout.max_new_tokens
    longest = min(rollout, params.model.max_seq_length)
    length = len(example["input_ids"]) if each.kind == "sft" else longest
    assert length == longest_row(params, each.kind)


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_same_weights(monkeypatch, tmp_path):
    monkeypatch.setattr(measure, "START", "fork")  # libraries are imported once
    (each,) = (small(each) for each in PARTS["resume"]().values())
    each.params["model"] |= EXACT
    assert measured(each, tmp_path) == {
        "resumed_from_steps": [2],
        "relative_difference": 0.0,
        "tolerance": measure.TOLERANCE,
        "alike": True,
    }


def test_a_row_names_its_missing_packages(monkeypatch):
    monkeypatch.setattr(rows.importlib.util, "find_spec", lambda name: None)
    skipped = {way: each.skipped for way, each in PARTS["steps-0.6b"]().items()}
    assert skipped["reckon"] == skipped["trl"] == ""
    assert skipped["unsloth-vllm"] == "not installed: unsloth, vllm"
    row_of_unsloth = PARTS["steps-0.6b"]()["unsloth"]
    assert check.outcome(row_of_unsloth, Path()) == {"skipped": "not installed: unsloth"}
    # A preset is measured with substitutes.
    s0 = PARTS["presets"]()["s0-qwen3-4b grpo"]
    assert not s0.skipped
    keys = ("model.backend", "rollout.engine", "validation.engine")
    assert s0.instead == dict.fromkeys(keys, "transformers")
    assert measure.params_of(s0).model.backend == "transformers"


@pytest.mark.parametrize("part", PARTS)
def test_with_every_engine_all_rows_are_a_stages_params(part, monkeypatch):
    monkeypatch.setattr(rows.importlib.util, "find_spec", lambda name: object())
    for each in PARTS[part]().values():
        assert not each.skipped
        assert not each.instead
        params = measure.params_of(each)
        if each.kind in ("sft", "grpo"):
            assert measure.planned(params, each)["peak_memory_bytes"] > 10**9


@pytest.fixture
def outcomes(monkeypatch):
    """Script outcomes of a part's three rows, by group size; a missing one is an interruption."""
    scripted: dict[int, dict[str, Any]] = {}
    three = {f"{size} each": row(rows.SMALLEST, grpo={"group_size": size}) for size in (2, 4, 8)}
    monkeypatch.setitem(check.PARTS, "export", lambda: three)
    monkeypatch.setattr(check, "find_gpus", tuple)
    monkeypatch.setattr(
        check, "outcome", lambda row, models: scripted[row.params["grpo"]["group_size"]]
    )
    return scripted


def gpu_check(folder: Path, *options: str) -> Any:
    return CliRunner().invoke(check.main, ["export", "--tiny", f"--out={folder}", *options])


def test_the_next_run_keeps_what_was_measured(outcomes, tmp_path):
    figures = {
        "seconds_per_step": 1.5,
        "generation_share": 0.5,
        "peak_memory_bytes": 2**30,
        "planned": {"peak_memory_bytes": 2**31},
        "sampler_gap_at_first_step": {"mean": 0.001, "max": 0.02},
        "sampler_gap_at_last_step": {"mean": 0.01, "max": 0.2},
    }
    outcomes |= {2: {"figures": figures}, 4: {"failed": "no memory"}}
    killed = gpu_check(tmp_path)
    assert isinstance(killed.exception, KeyError)  # at the third row
    *_, first, second = (tmp_path / "cpu.md").read_text().splitlines()
    assert first == "| export: 2 each | 1.5 | 50% |  | 1 (2) |  | 0.01, 0.2 |  |"
    assert second == "| export: 4 each |  |  |  |  |  |  | failed: no memory |"

    outcomes |= {2: {"failed": "measured twice"}, 4: {"figures": {"seconds_per_step": 2.0}}}
    outcomes[8] = {"skipped": "not installed: x"}
    again = gpu_check(tmp_path)
    assert again.exit_code == 0, again.output
    *_, first, second, third = (tmp_path / "cpu.md").read_text().splitlines()
    assert first.startswith("| export: 2 each | 1.5 |")
    assert second.startswith("| export: 4 each | 2 |")
    assert "not installed: x" in third


def test_failures_and_rows_without_time_are_named(outcomes, tmp_path):
    failed = gpu_check(tmp_path, "--minutes=0")
    assert "3 rows are missing" in failed.output
    assert "export: 4 each: left, run the same command again" in failed.output
    assert not (tmp_path / "cpu.json").exists()


def test_a_preset_keeps_its_attention_where_the_kernel_is(
    monkeypatch,
):
    commit, kernel = "0" * 40, "kernels-community/flash-attn2"
    here = {"kernels", "vllm"}
    monkeypatch.setattr(rows.importlib.util, "find_spec", lambda name: name in here or None)
    monkeypatch.setattr(rows, "look_up", lambda repository: (commit, 1))
    monkeypatch.setattr(rows, "fetch", lambda repository: None)
    rows.flash_attention.cache_clear()
    s3 = PARTS["presets"]()["s3-cs336 grpo"]
    assert (s3.params["model"]["attention"], s3.instead) == (f"{kernel}@{commit}", {})

    def no_build(repository: object) -> None:
        raise UserError("no build for this torch")

    rows.flash_attention.cache_clear()
    monkeypatch.setattr(rows, "look_up", no_build)
    s3 = PARTS["presets"]()["s3-cs336 grpo"]
    assert s3.params["model"]["attention"] == "sdpa"
    assert s3.instead == {"model.attention": "no build for this torch"}


def test_a_row_that_fails_is_named_with_its_error(tmp_path):
    wrong = small(row("Qwen/Qwen3-0.6B", grpo={"group_size": 1}))
    outcome = check.outcome(wrong, tmp_path)
    assert "group_size=1" in outcome["failed"]
    assert outcome["failed"] in outcome["stderr"]


def test_a_row_that_hangs_is_ended(monkeypatch):
    monkeypatch.setattr(check, "LIMIT_S", 0.2)
    code, _, _ = check.run([sys.executable, "-c", "import time; time.sleep(60)"], text="")
    assert code is None


def test_without_a_gpu_it_is_one_line(monkeypatch):
    monkeypatch.setattr(check, "find_gpus", list)
    done = CliRunner().invoke(check.main, [])
    assert done.exit_code == 1
    assert done.output.startswith("Error: gpu-check needs an NVIDIA GPU")


def test_the_tests_part_collects_only_tests_for_a_gpu(in_root):
    listed = check.gpu_tests()
    assert "tests/lib/objectives/test_optim.py" in listed
    code, output, _ = check.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "--collect-only", *listed], text=""
    )
    assert code == 0, output
    assert "error" not in output
