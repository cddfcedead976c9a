"""Each of the five systems runs through its stages on a CPU, as itself but small.

Changed are the weights' size, the number of steps and of problems, and what needs a GPU: the
preset's own value of that is asserted first. What is then asserted of a trainer is what it resolved
its arguments to.
"""

import importlib
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from peft import PeftModel
from ruamel.yaml import YAML

from lib.objectives import MemoryEfficientAdamW
from lib.params import compose_preset
from lib.problems.generated import synthetic_sets
from lib.prompts import prompt_format
from tests.conftest import preset_params
from tests.lib.engines.hub_models import COMMIT, write_snapshot
from tests.pipeline.source_rows import lay_out

STAGES = {
    name: importlib.import_module(f"stages.{name}").main
    for name in ("prepare", "sft", "grpo", "evaluate", "export")
}

ATTENTION_AND_MLP = {
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "gate_proj",
    "up_proj",
    "down_proj",
}

GSM8K_GRPO = {
    "num_generations": 16,
    "per_device_train_batch_size": 16,
    "gradient_accumulation_steps": 4,
    "learning_rate": 5e-6,
    "lr_scheduler_type": "cosine",
    "warmup_steps": 0.1,
    "loss_type": "grpo",
    "scale_rewards": "group",
    "beta": 0.04,
    "save_steps": 100,
    "temperature": 1.0,
}

S4 = {
    "engines": ("transformers", 0.3, "transformers"),
    "layout": "chatml",
    "gpu": {"attention": "flash_attention_2", "mixed_precision": "bf16", "dtype": "bfloat16"},
    "prompt": ("xml", "<|im_start|>assistant\n"),
    "lora": (16, 64),
    "rewards": (
        ("s4_correctness", "s4_integer", "s4_strict_format", "s4_soft_format", "s4_tag_count"),
        [1.0] * 5,
    ),
    "sft": None,
    "grpo": GSM8K_GRPO,
}

EXPECTED: dict[str, dict[str, Any]] = {
    "s0-qwen3-4b": {
        "architecture": "qwen3",
        "model": "unsloth/Qwen3-4B-Base",
        "engines": ("vllm", 0.7, "vllm"),
        "gpu": {"backend": "unsloth", "dtype": "bfloat16", "mixed_precision": "bf16"},
        "prompt": ("working_out", "<start_working_out>"),
        "lora": (32, 64),
        "rewards": (
            ("match_format_exactly", "match_format_approximately", "check_answer", "check_numbers"),
            [1.0] * 4,
        ),
        "sft": {
            "num_train_epochs": 2,
            "per_device_train_batch_size": 1,
            "learning_rate": 2e-4,
            "lr_scheduler_type": "linear",
        },
        "grpo": {
            "num_generations": 2,
            "per_device_train_batch_size": 1,
            "gradient_accumulation_steps": 2,
            "learning_rate": 5e-6,
            "lr_scheduler_type": "linear",
            "temperature": 1.0,
            "loss_type": "dapo",
            "beta": 0.0,
        },
    },
    "s1-qwen2.5-0.5b": {
        "architecture": "qwen2",
        "model": "Qwen/Qwen2.5-0.5B-Instruct",
        "engines": ("vllm", 0.3, "vllm"),
        "gpu": {"dtype": "bfloat16", "mixed_precision": "bf16"},
        "prompt": ("xml", "<|im_start|>assistant\n"),
        "lora": None,
        "rewards": (("s1_correctness", "s1_numeric", "s1_xml_format"), [1.0] * 3),
        "sft": None,
        "grpo": GSM8K_GRPO,
    },
    "s2-math-sft": {
        "architecture": "qwen2",
        "model": "Qwen/Qwen2.5-Math-1.5B-Instruct",
        "engines": ("transformers", 0.3, "vllm"),
        "gpu": {"attention": "flash_attention_2", "dtype": "bfloat16"},
        "prompt": ("r1_zero", "Assistant: <think>"),
        "lora": None,
        "rewards": (("r1_zero",), [1.0]),
        "sft": {
            "num_train_epochs": 1,
            "per_device_train_batch_size": 2,
            "gradient_accumulation_steps": 8,
            "learning_rate": 1e-5,
            "lr_scheduler_type": "cosine",
            "gradient_checkpointing": True,
        },
        "grpo": None,
    },
    "s3-cs336": {
        "architecture": "qwen2",
        "model": "Qwen/Qwen2.5-Math-1.5B",
        "engines": ("vllm", 0.3, "vllm"),
        "gpu": {"attention": "flash_attention_2", "gradient_checkpointing": True},
        "prompt": ("r1_zero", "Assistant: <think>"),
        "lora": None,
        "rewards": (("r1_zero",), [1.0]),
        "sft": {
            "gradient_accumulation_steps": 16,
            "lr_scheduler_type": "cosine",
            "gradient_checkpointing": True,
            "optimizer": MemoryEfficientAdamW,
        },
        "grpo": {
            "num_generations": 8,
            "generation_batch_size": 256,
            "learning_rate": 1e-5,
            "lr_scheduler_type": "constant",
            "temperature": 1.0,
            "adam_beta1": 0.9,
            "adam_beta2": 0.95,
            "weight_decay": 0.0,
            "max_grad_norm": 1.0,
            "max_completion_length": 1024,
            "objective": ("group", True),
        },
    },
    "s4-gsm8k-lora": {
        "architecture": "qwen2",
        "model": "Qwen/Qwen2.5-1.5B-Instruct",
        **S4,
    },
    "s4-gsm8k-lora-llama": {
        "architecture": "llama",
        "model": "meta-llama/Llama-3.2-1B-Instruct",
        **S4,
        "prompt": ("xml", "<|start_header_id|>assistant<|end_header_id|>\n\n"),
    },
}

CPU = {"backend": "transformers", "attention": "sdpa"}
"""What takes the place of settings that need a GPU."""


@pytest.fixture
def trainers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The trainers that stages built, by phase."""
    built: dict[str, Any] = {}
    for phase in ("sft", "grpo"):
        module = importlib.import_module(f"lib.trainers.{phase}")
        build = getattr(module, f"build_{phase}")

        def recorded(*arguments: Any, phase: str = phase, build: Any = build, **named: Any) -> Any:
            built[phase] = build(*arguments, **named)
            return built[phase]

        monkeypatch.setattr(module, f"build_{phase}", recorded)
    return built


@pytest.fixture
def checkout(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, Any]]:
    """A folder with the preset's params made small, its data, and a Hub cache with its model."""
    name = request.getfixturevalue("preset")
    small = preset_params("smoke").prepare.synthetic
    sets = synthetic_sets(small.model_copy(update={"num_sft": 60, "bare_answer_rate": 0.0}), seed=0)
    expected = EXPECTED[name]
    content = YAML(typ="safe").load(compose_preset(name))
    worked = [problem for problem in sets.sft if problem.solution]
    lay_out(content, tmp_path, worked=worked)
    revision = content["model"]["revision"]
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    # For the process in which the export is loaded again.
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    write_snapshot(
        tmp_path / "hub",
        name=content["model"]["name"],
        architecture=expected["architecture"],
        texts=["Tom has 3 apples and 4 pears. How many has he in all?", "3 + 4 = 7"],
        commit=COMMIT if revision == "main" else revision,
    )
    content["model"] |= CPU
    content["rollout"]["engine"] = content["evaluate"]["engine"] = "transformers"
    if content["grpo"]["max_steps"]:
        content["grpo"]["max_steps"] = 2
    content["evaluate"] |= {"num_samples": 2, "batch_size": 64, "max_new_tokens": 32}
    content["validation"] |= {"num_problems": 2, "max_new_tokens": 16}
    content["export"]["num_verified"] = 2
    written = io.StringIO()
    YAML().dump(content, written)
    (tmp_path / "params.yaml").write_text(written.getvalue(), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    yield content


def run(stage: str, *options: str) -> None:
    STAGES[stage]([*options], standalone_mode=False)


def resolved(trainer: Any, name: str) -> Any:
    if name == "optimizer":
        return type(getattr(trainer.optimizer, "optimizer", trainer.optimizer))
    if name == "objective":
        return trainer.objective.advantage, trainer.objective.reinforce
    return getattr(trainer.args, name)


@pytest.mark.parametrize("preset", EXPECTED)
def test_a_preset_has_its_systems_gpu_settings(preset: str) -> None:
    expected, own = EXPECTED[preset], preset_params(preset)
    assert own.model.name == expected["model"]
    for key, value in expected["gpu"].items():
        assert getattr(own.model, key) == value, key
    rollout = own.rollout
    engines = rollout.engine, rollout.gpu_memory_utilization, own.evaluate.engine
    assert engines == expected["engines"]


@pytest.mark.slow
@pytest.mark.parametrize("preset", EXPECTED)
def test_a_system_runs_as_itself(
    preset: str, checkout: dict[str, Any], trainers: dict[str, Any]
) -> None:
    expected, own = EXPECTED[preset], preset_params(preset)
    run("prepare")
    assert not list(Path("data/models/base").glob("*.safetensors"))
    run("sft")
    run("grpo")
    assert set(trainers) == {phase for phase in ("sft", "grpo") if expected[phase]}
    for phase, trainer in trainers.items():
        for name, value in expected[phase].items():
            assert resolved(trainer, name) == value, (phase, name)
        _check_policy(trainer, expected, own)
    if expected["grpo"]:
        names, weights = expected["rewards"]
        trainer = trainers["grpo"]
        assert tuple(function.__name__ for function in trainer.reward_funcs) == names
        assert trainer.reward_weights.tolist() == weights
        assert trainer.state.global_step == 2

    exported = own.export.checkpoint
    for checkpoint in own.evaluate.checkpoints:
        run("evaluate", *_evaluated(checkpoint))
    run(
        "export",
        f"--checkpoint=data/models/{exported}",
        f"--measured=reports/metrics/evaluate/{exported}.json",
    )
    measured = json.loads(Path(f"reports/metrics/evaluate/{exported}.json").read_text("utf-8"))
    assert set(own.evaluate.benchmarks) <= set(measured)
    config = json.loads(Path("data/models/export/config.json").read_text("utf-8"))
    assert config["model_type"] == expected["architecture"]


def _check_policy(trainer: Any, expected: dict[str, Any], own: Any) -> None:
    adapted = isinstance(trainer.model, PeftModel)
    assert adapted == bool(expected["lora"])
    if adapted:
        config = trainer.model.peft_config["default"]
        assert (config.r, config.lora_alpha) == expected["lora"]
        assert set(config.target_modules) == ATTENTION_AND_MLP
    name, ending = expected["prompt"]
    tokenizer = trainer.processing_class
    chosen = prompt_format(name, layout=own.prompt.layout)
    assert tokenizer.chat_template == chosen.chat_template
    asked = chosen.prompt("What is 1 + 1?", system="")
    text = tokenizer.apply_chat_template(asked, add_generation_prompt=True, tokenize=False)
    assert text.endswith(ending)


def _evaluated(checkpoint: str) -> list[str]:
    return [
        f"--checkpoint=data/models/{checkpoint}",
        f"--completions=data/completions/{checkpoint}.jsonl",
        f"--metrics=reports/metrics/evaluate/{checkpoint}.json",
        f"--provenance=reports/provenance/evaluate/{checkpoint}.json",
    ]
