"""The plan says what the trainers then do, for every preset, without torch."""

import subprocess
import sys
from pathlib import Path

import pytest
from transformers import TrainingArguments

from lib.params import Params, preset_names, preset_params
from lib.planning.plan import cache_bytes, disk_bytes, plan_dpo, plan_grpo, plan_sft
from lib.planning.plan_words import plan_lines
from lib.planning.sizes import shape_of
from lib.problems.generated import GeneratedSets
from lib.prompts import prompt_format
from lib.trainers.dpo import dpo_arguments
from lib.trainers.grpo import grpo_arguments
from lib.trainers.sft import build_sft
from tests.conftest import ROOT


def test_planned_sft_is_what_the_trainer_resolves(
    smoke: Params, sets: GeneratedSets, base: Path, tmp_path: Path
) -> None:
    trainer = build_sft(
        sets.sft,
        base=base,
        prompt_format=prompt_format(smoke.prompt.format),
        system="",
        sft=smoke.sft,
        model=smoke.model,
        seed=0,
        scratch=tmp_path,
    )
    planned = plan_sft(smoke, shape_of(smoke.model))
    loader = trainer.get_train_dataloader()
    steps = trainer.set_initial_training_values(trainer.args, loader)[-1]
    assert planned.steps == steps
    assert planned.warmup_steps == trainer.args.get_warmup_steps(steps)
    for name, value in planned.trainer.items():
        assert getattr(trainer.args, name) == value
    trained = sum(w.numel() for w in trainer.model.parameters() if w.requires_grad)
    assert planned.memory["gradients"] == 4 * trained


@pytest.mark.parametrize("name", preset_names())
def test_planned_grpo_is_what_the_trainer_resolves(name: str, tmp_path: Path) -> None:
    params = preset_params(name)
    planned = plan_grpo(params, shape_of(params.model))
    assert planned.memory
    if params.grpo.max_steps == 0:
        assert planned.skipped == "grpo.max_steps is 0"
        return
    args = TrainingArguments(
        **grpo_arguments(params.grpo, model=params.model, seed=0, scratch=tmp_path)
    )
    for key, value in planned.trainer.items():
        assert getattr(args, key) == value
    assert planned.steps == args.max_steps
    assert planned.completions == args.train_batch_size * args.gradient_accumulation_steps
    assert planned.warmup_steps == args.get_warmup_steps(args.max_steps)


def preferring(params: Params, **changes: int) -> Params:
    dpo = params.dpo.model_copy(update={"init": ("sft",), **changes})
    return params.model_copy(update={"dpo": dpo})


@pytest.mark.parametrize("name", preset_names())
def test_planned_dpo_is_what_trl_resolves(name: str, tmp_path: Path) -> None:
    params = preset_params(name)
    planned = plan_dpo(params, shape_of(params.model))
    args = dpo_arguments(params.dpo, model=params.model, seed=0, scratch=tmp_path)
    for key, value in planned.trainer.items():
        assert getattr(args, key) == value
    assert (planned.memory["reference"] > 0) if not params.model.lora.rank else planned.memory


def test_dpo_stands_in_the_plan_where_params_ask_for_it() -> None:
    params = preset_params("tiny-cpu")
    assert not any("dpo" in line for line in plan_lines(params))
    lines = "\n".join(plan_lines(preferring(params)))
    assert "sft → grpo → pairs@sft → dpo@sft → evaluate@" in lines
    assert "dpo: steps unknown until pairs has run, warm-up unknown; learning rate 0.0002" in lines
    assert "trainer: per_device_train_batch_size=32, gradient_accumulation_steps=1" in lines
    assert "pairs: all GRPO problems × 8 completions of sft, at most 1 of each problem" in lines
    assert "objective: loss sigmoid, β 0.1" in lines
    skipped = "\n".join(plan_lines(preferring(params, num_epochs=0)))
    assert "dpo: skipped, dpo.num_epochs is 0" in skipped and "(dpo passed on)" in skipped
    sizes = [disk_bytes(each, shape_of(each.model)) for each in (params, preferring(params))]
    assert sizes[1] == {**sizes[0], "dpo": sizes[0]["sft"]}


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_has_a_plan(name: str) -> None:
    lines = list(plan_lines(preset_params(name)))
    assert lines[0].startswith("plan: base model ")
    assert any(line.startswith("disk ≈ ") for line in lines)


def test_a_plan_needs_no_torch() -> None:
    code = (
        "import sys; sys.argv = ['plan', 's0-qwen3-4b']\n"
        "from stages.plan import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print([n for n in ('torch', 'transformers', 'datasets', 'peft') if n in sys.modules])\n"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert shown[-1] == "[]"
    assert any("LoRA r 32 α 64" in line for line in shown)


def test_half_the_micro_batch_halves_what_grows_with_it() -> None:
    params = preset_params("tiny-cpu")
    shape = shape_of(params.model)
    half = params.model_copy(update={"sft": params.sft.model_copy(update={"micro_batch_size": 4})})
    before, after = plan_sft(params, shape).memory, plan_sft(half, shape).memory
    assert after["activations"] * 2 == before["activations"]
    assert after["logits"] * 2 == before["logits"]
    assert after["weights"] == before["weights"]


def test_a_known_model_takes_known_room() -> None:
    """4.02 billion weights of 2 bytes; 8 KiB × 36 layers of cache for each of 2 × 2048 tokens."""
    params = preset_params("s0-qwen3-4b")
    shape = shape_of(params.model)
    assert shape is not None
    assert plan_grpo(params, shape).memory["weights"] == 2 * 4_022_468_096
    assert cache_bytes(shape, params.model, sequences=2) == 2 * 2048 * 36 * 2 * 8 * 128 * 2
    assert disk_bytes(params, shape)["base"] == 0


def test_the_reference_policy_counts_where_no_adapter_can_be_switched_off() -> None:
    full, lora = (preset_params(name) for name in ("s1-qwen2.5-0.5b", "s4-gsm8k-lora"))
    planned = plan_grpo(full, shape_of(full.model)).memory
    assert planned["reference"] == planned["weights"]
    assert "reference" not in plan_grpo(lora, shape_of(lora.model)).memory


def test_vllms_cache_is_in_its_share_and_the_engine_is_named() -> None:
    params = preset_params("s1-qwen2.5-0.5b")
    assert "cache" not in plan_grpo(params, shape_of(params.model)).memory
    lines = list(plan_lines(params))
    assert any("engine vllm (vLLM takes 30% of the GPU beside" in line for line in lines)
    assert any(line.startswith("evaluate with vllm: ") for line in lines)


def test_the_plan_of_s0_says_that_its_vllm_shares_the_policys_weights() -> None:
    (line,) = [line for line in plan_lines(preset_params("s0-qwen3-4b")) if "  engine " in line]
    assert "engine vllm (vLLM takes 70% of the GPU with the weights, which are the" in line
    assert "Unsloth's fast_inference" in line


def test_a_model_of_unknown_shape_is_planned_without_sizes() -> None:
    params = preset_params("s1-qwen2.5-0.5b")
    model = params.model.model_copy(update={"name": "owner/elsewhere"})
    lines = list(plan_lines(params.model_copy(update={"model": model})))
    assert "memory and disk: unknown without the model's config.json" in lines


def test_the_plan_lists_every_param_that_is_not_the_defaults() -> None:
    lines = list(plan_lines(preset_params("s1-qwen2.5-0.5b")))
    listed = lines[lines.index(next(line for line in lines if line.startswith("params: "))) + 1 :]
    assert "  grpo.group_size: 16 (tiny-cpu: 8)" in listed
    assert not any(line.startswith("  seed: ") for line in listed)
    smallest = list(plan_lines(preset_params("tiny-cpu")))[-1]
    assert smallest.startswith("params: 0 of ")
