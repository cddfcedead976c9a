"""The plan says what the trainers then do, for every preset, without torch."""

import subprocess
import sys
from pathlib import Path

import pytest
from transformers import TrainingArguments

from lib.params import Params, preset_names, preset_params
from lib.planning.memory import cache_bytes_per_token
from lib.planning.phases import Phase, disk_bytes, phases_of
from lib.planning.plan import plan_lines
from lib.planning.sizes import shape_of
from lib.problems.generated import GeneratedSets
from lib.prompts import prompt_format
from lib.trainers.dpo import dpo_arguments
from lib.trainers.grpo import grpo_arguments
from lib.trainers.sft import build_sft
from tests.conftest import ROOT


def phase_of(params: Params, name: str) -> Phase:
    (phase,) = (each for each in phases_of(params, shape_of(params.model)) if each.name == name)
    return phase


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
    planned = phase_of(smoke, "sft")
    loader = trainer.get_train_dataloader()
    steps = trainer.set_initial_training_values(trainer.args, loader)[-1]
    assert planned.steps == steps
    assert planned.warmup_steps == trainer.args.get_warmup_steps(steps)
    for name, value in planned.trainer.items():
        assert getattr(trainer.args, name) == value
    trained = sum(w.numel() for w in trainer.model.parameters() if w.requires_grad)
    shape = shape_of(smoke.model)
    assert shape is not None
    assert shape.trained(smoke.model) == trained


@pytest.mark.parametrize("name", preset_names())
def test_planned_grpo_is_what_the_trainer_resolves(name: str, tmp_path: Path) -> None:
    params = preset_params(name)
    planned = phase_of(params, "grpo")
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
    measured = params.evaluate.model_copy(update={"checkpoints": ("base", "sft", "grpo", "dpo")})
    planned = phase_of(preferring(params.model_copy(update={"evaluate": measured})), "dpo")
    args = dpo_arguments(params.dpo, model=params.model, seed=0, scratch=tmp_path)
    for key, value in planned.trainer.items():
        assert getattr(args, key) == value
    assert ("reference" in planned.memory) == (not params.model.lora.rank)


def test_dpo_stands_in_the_plan_where_params_ask_for_it() -> None:
    params = preset_params("tiny-cpu")
    assert not any("dpo" in line for line in plan_lines(params))
    lines = "\n".join(plan_lines(preferring(params)))
    assert "sft → grpo → pairs@sft → dpo@sft → evaluate@" in lines
    assert "dpo@sft: steps unknown, warm-up unknown; learning rate 0.0002" in lines
    assert "data: unknown rows (pairs has to run first)" in lines
    assert "trainer: per_device_train_batch_size=32, gradient_accumulation_steps=1" in lines
    assert "8 completions of each GRPO problem, at most 1 pairs kept" in lines
    assert "objective: loss sigmoid, β 0.1" in lines
    skipped = "\n".join(plan_lines(preferring(params, num_epochs=0)))
    assert "dpo: skipped, dpo.num_epochs is 0" in skipped and "(dpo passed on)" in skipped
    sizes = [disk_bytes(each, shape_of(each.model)) for each in (params, preferring(params))]
    assert sizes[1] == {**sizes[0], "dpo": sizes[0]["sft"]}


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_has_a_plan_and_so_has_dpo(name: str) -> None:
    preset = preset_params(name)
    lines = list(plan_lines(preset))
    assert lines[0].startswith("plan: base model ")
    assert any(line.startswith("disk ≈ ") for line in lines)
    params = preferring(preset)
    planned = {phase.name: phase for phase in phases_of(params, shape_of(params.model))}
    assert list(planned) == ["sft", "grpo", "pairs", "dpo"]
    pairs, num_rows = params.dpo.pairs, planned["grpo"].rows
    assert num_rows
    sampling = planned["pairs"]
    assert sampling.steps == -(-num_rows * pairs.num_completions // pairs.batch_size)
    assert sampling.tokens == pairs.batch_size * params.rollout.max_new_tokens
    assert sampling.vllm_share == (0.9 if params.rollout.engine == "vllm" else 0)
    assert bool(sampling.memory) == (params.rollout.engine == "transformers")
    stages = next(line for line in plan_lines(params) if line.startswith("  stages: "))
    assert "pairs@sft → dpo@sft → evaluate@" in stages
    if params.rollout.engine == "transformers":
        assert "cache" in planned["pairs"].memory


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


def test_a_known_model_takes_known_room() -> None:
    """4.02 billion weights of 2 bytes and adapters of 4; and 4 KiB × 36 layers a token."""
    params = preset_params("s0-qwen3-4b")
    shape = shape_of(params.model)
    assert shape is not None
    weights = phase_of(params, "grpo").memory["weights"]
    assert weights == 2 * 4_022_468_096 + 4 * shape.trained(params.model)
    assert cache_bytes_per_token(shape, params.model) == 36 * 2 * 8 * 128 * 2
    assert disk_bytes(params, shape)["base"] == 0


def test_the_reference_policy_counts_where_no_adapter_can_be_switched_off() -> None:
    full, lora = (preset_params(name) for name in ("s1-qwen2.5-0.5b", "s4-gsm8k-lora"))
    planned = phase_of(full, "grpo").memory
    assert planned["reference"] == planned["weights"]
    assert "reference" not in phase_of(lora, "grpo").memory


def test_vllm_counts_once_where_it_is_and_with_the_weights_where_it_shares_them() -> None:
    """S0's vLLM holds the policy's weights; S2's validates on another GPU, or else on the same."""
    gib = 2**30
    s0 = phase_of(preset_params("s0-qwen3-4b"), "grpo")
    own = sum(s0.memory.values()) - s0.memory["weights"]
    assert s0.bytes_on(80 * gib) == pytest.approx(own + 56 * gib + gib / 2)
    apart = preset_params("s2-math-sft")
    assert apart.rollout.device == "cuda:1"
    rollout = apart.rollout.model_copy(update={"device": ""})
    together = apart.model_copy(update={"rollout": rollout})
    difference = phase_of(together, "sft").bytes_on(80 * gib) - phase_of(apart, "sft").bytes_on(
        80 * gib
    )
    share = apart.validation.gpu_memory_utilization
    assert difference == pytest.approx(share * 80 * gib)
    assert phase_of(apart, "sft").fits(40 * gib)
    assert not phase_of(together, "sft").fits(40 * gib)


def test_generation_by_the_policy_counts_with_its_cache() -> None:
    params = preset_params("s0-qwen3-4b")
    shape = shape_of(params.model)
    assert shape is not None
    token = cache_bytes_per_token(shape, params.model)
    for batch_size in (16, 64):
        validation = params.validation.model_copy(update={"batch_size": batch_size})
        crowded = params.model_copy(update={"validation": validation})
        assert phase_of(crowded, "sft").memory["cache"] == batch_size * 2048 * token
    none = params.model_copy(update={"sft": params.sft.model_copy(update={"eval_steps": 0})})
    assert "cache" not in phase_of(none, "sft").memory


def test_vllms_cache_is_in_its_share_and_the_engine_is_named() -> None:
    params = preset_params("s1-qwen2.5-0.5b")
    assert "cache" not in phase_of(params, "grpo").memory
    lines = list(plan_lines(params))
    assert any(line.endswith("; vLLM 30% of the policy's GPU") for line in lines)
    assert any(line.startswith("  engine vllm; rollouts: ") for line in lines)
    assert any(line.startswith("evaluate with vllm: ") for line in lines)


def test_the_plan_of_s0_says_that_its_vllm_shares_the_policys_weights() -> None:
    (line,) = [each for each in plan_lines(preset_params("s0-qwen3-4b")) if "vLLM 70%" in each]
    assert line.endswith("with the weights, which are the policy's own: Unsloth's fast_inference")


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
