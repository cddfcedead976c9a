"""The plan equals the trainers' own values, for every preset, without torch."""

import pytest
from transformers import TrainingArguments

from lib.params import Params, preset_names, preset_params
from lib.params.data import GeneratorSource, HubSource, Ingredient, PathSource
from lib.params.model import Decoding, Override
from lib.planning.memory import cache_bytes_per_token, samplers_of, shape_of
from lib.planning.plan import (
    Phase,
    disk_bytes,
    evaluation_of,
    phases_of,
    plan_lines,
)
from lib.training.dpo import dpo_arguments
from lib.training.grpo import grpo_arguments
from lib.training.phase.launch import Launch
from tests.conftest import run_python
from tests.lib.training.steps import plain_sft

GIB = 2**30


def phase_of(params: Params, name: str) -> Phase:
    (phase,) = (each for each in phases_of(params, shape_of(params.model)) if each.name == name)
    return phase


def test_planned_sft_is_what_the_trainer_resolves(smoke, sets, base, tmp_path):
    trainer = plain_sft(sets.sft, base, smoke, tmp_path)
    planned = phase_of(smoke, "sft")
    loader = trainer.get_train_dataloader()
    steps = trainer.set_initial_training_values(trainer.args, loader)[-1]
    assert planned.steps == steps
    assert planned.warmup_steps == trainer.args.get_warmup_steps(steps)
    for name, value in planned.trainer.items():
        assert getattr(trainer.args, name) == value


@pytest.mark.parametrize("name", preset_names())
def test_planned_grpo_is_what_the_trainer_resolves(name, tmp_path):
    params = preset_params(name)
    planned = phase_of(params, "grpo")
    assert planned.memory
    if params.grpo.max_steps == 0:
        assert planned.skipped == params.grpo.skipped != ""
        return
    args = TrainingArguments(**grpo_arguments(params, scratch=tmp_path))
    for key, value in planned.trainer.items():
        assert getattr(args, key) == value
    assert planned.steps == args.max_steps
    assert planned.completions == args.train_batch_size * args.gradient_accumulation_steps
    assert planned.tokens == planned.completions * params.rollout.max_new_tokens
    assert planned.warmup_steps == args.get_warmup_steps(args.max_steps)


@pytest.mark.parametrize("name", preset_names())
def test_planned_dpo_is_what_trl_resolves(name, tmp_path):
    params = preset_params(name).replaced(dpo={"init": ("sft",)})
    planned = phase_of(params, "dpo")
    args = dpo_arguments(params, scratch=tmp_path)
    for key, value in planned.trainer.items():
        assert getattr(args, key) == value
    assert "reference" in planned.memory


def test_dpo_is_in_the_plan_where_params_name_it():
    params = preset_params("tiny-cpu")
    preferring = params.replaced(dpo={"init": ("sft",)})
    for each, is_named in ((params, False), (preferring, True)):
        assert any("dpo@sft" in line for line in plan_lines(each)) == is_named
    skipping = preferring.replaced(dpo={"num_epochs": 0})
    assert "dpo: skipped, dpo.num_epochs is 0" in list(plan_lines(skipping))
    sizes = [disk_bytes(each, shape_of(each.model)) for each in (params, preferring)]
    assert sizes[1] == {**sizes[0], "dpo": sizes[0]["sft"]}


def test_evaluation_counts_every_set_sample_and_checkpoint():
    s3 = preset_params("s3-cs336")
    whole = evaluation_of(s3)
    # 500 + 5,000 + 1,319 + 30 + 30 + 30 + 40 + 272 + 674 problems.
    assert len(s3.evaluate.benchmarks) == 9
    assert (whole.prompts, whole.completions) == (7_895, 118_425)
    decoding = {name: getattr(s3.evaluate, name) for name in Decoding.model_fields}
    aime = Override(**decoding | {"num_samples": 16}, benchmark="aime24")
    often = s3.replaced(evaluate={"overrides": (aime,)})
    more = evaluation_of(often)
    assert more.completions == whole.completions + 30 * 12 * 3
    first, *others = s3.prepare.benchmarks
    own = {"adapter": "table", "columns": {}, "limit": "all"}
    mmlu = {**own, "hub": "cais/mmlu", "revision": "", "split": "test", "files": ""}
    for source, is_counted in (
        (PathSource(path="data/raw/a.jsonl", **own), False),
        (HubSource(**mmlu, subset="all"), True),
        (HubSource(**mmlu, subset="abstract_algebra"), False),
    ):
        benchmarks = (first.model_copy(update={"source": source}), *others)
        counted = evaluation_of(s3.replaced(prepare={"benchmarks": benchmarks}))
        assert (counted is not None) == is_counted


def test_a_plan_needs_no_torch():
    code = (
        "import sys; from commands.plan import main\n"
        "main(['s0-qwen3-4b'], standalone_mode=False)\n"
        "print([n for n in ('torch', 'transformers', 'datasets', 'peft') if n in sys.modules])\n"
    )
    lines = run_python(code).stdout.splitlines()
    assert lines[-1] == "[]"
    assert any("model.lora.rank: 32" in line for line in lines)


def test_a_known_model_takes_known_room():
    """4.02 billion weights take 2 bytes each, adapters 4; a token 4 KiB in each of 36 layers."""
    params = preset_params("s0-qwen3-4b")
    shape = shape_of(params.model)
    memory, trained = phase_of(params, "grpo").memory, shape.trained(params.model)
    assert memory["weights"] == 2 * 4_022_468_096 + 4 * trained
    assert memory["optimizer"] == 2 * memory["gradients"] == 8 * trained
    penalised = phase_of(params.replaced(grpo={"beta": 0.1}), "grpo").memory
    assert penalised["reference"] == 4 * trained
    assert cache_bytes_per_token(shape, params.model) == 36 * 2 * 8 * 128 * 2
    adapted = params.replaced(sft={"adapter": "data/raw/adapter"}, export={"gguf": "q8_0"})
    sizes = disk_bytes(adapted, shape)
    assert sizes["base"] == 0
    assert sizes["sft"] == sizes["grpo"] == 4 * trained
    assert sizes["gguf"] == 34 * 4_022_468_096 // 32


def test_steps_are_unknown_before_packing():
    params = preset_params("tiny-cpu")
    packed = phase_of(params.replaced(sft={"packing": True, "group_by_length": False}), "sft")
    assert packed.rows == phase_of(params, "sft").rows
    assert packed.steps is packed.warmup_steps is None


@pytest.mark.parametrize(("weights", "rows"), [(("all", "all"), 400), ((1.0, 1.0), 200)])
def test_weighted_sources_give_the_rows_of_their_mixture(weights, rows):
    sets = zip(weights, ("sft", "grpo"), strict=True)
    data = [Ingredient(weight=each, source=GeneratorSource(generator=of)) for each, of in sets]
    tiny = preset_params("tiny-cpu").prepare
    sft = tiny.sft.model_copy(update={"sources": tuple(data)})
    synthetic = tiny.synthetic.model_copy(update={"num_sft": 300, "num_grpo": 100})
    prepare = {"sft": sft, "synthetic": synthetic, "validation_share": 0.0}
    assert phase_of(preset_params("tiny-cpu").replaced(prepare=prepare), "sft").rows == rows


def test_vllm_counts_where_it_is():
    """S0's vLLM has the policy's weights; S2's validates on another GPU, or on the same."""
    params = preset_params("s0-qwen3-4b")
    s0 = phase_of(params, "grpo")
    own = sum(s0.memory.values()) - s0.memory["weights"]
    assert s0.bytes_on(80 * GIB) == pytest.approx(own + 56 * GIB + GIB / 2)
    assert not phase_of(params.replaced(grpo={"trainer": "trl"}), "grpo").shares_weights
    params = preset_params("s2-math-sft")
    apart, together = (
        phase_of(params.replaced(rollout={"device": device}), "sft") for device in ("cuda:1", "")
    )
    # vLLM and training take turns on a GPU.
    held = together.memory["weights"] + together.memory["optimizer"]
    trains = apart.bytes_on(80 * GIB)
    for card in (80 * GIB, 1000 * GIB):
        share = int(params.validation.gpu_memory_utilization * card)
        assert together.bytes_on(card) == max(trains + GIB, held + share + GIB // 2)


def test_generation_by_the_policy_counts_with_its_cache():
    params = preset_params("s0-qwen3-4b").replaced(validation={"engine": "transformers"})
    shape = shape_of(params.model)
    token = cache_bytes_per_token(shape, params.model)
    for batch_size in (16, 64):
        own = {"engine": "transformers", "batch_size": batch_size}
        crowded = phase_of(params.replaced(validation=own), "sft")
        assert crowded.memory["cache"] == batch_size * 2048 * token
    assert "cache" not in phase_of(params.replaced(sft={"eval_steps": 0}), "sft").memory


@pytest.mark.parametrize(("ranks", "updates"), [(1, 1), (1, 2), (2, 1)])
def test_a_rank_generates_its_part_of_a_generation_at_once(ranks, updates):
    params = preset_params("tiny-cpu").replaced(grpo={"updates_per_rollout": updates})
    rollouts, validation = samplers_of(params, "grpo", Launch(ranks))
    grpo = params.grpo
    assert rollouts.batch_size == grpo.prompts_per_step * grpo.group_size // ranks
    assert validation.batch_size == params.validation.batch_size
