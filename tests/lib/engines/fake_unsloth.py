"""Stand-in for `unsloth`: signatures of 2026.10.7, bodies of transformers.

A signature has to name every argument: the real functions swallow others as `**kwargs`, so they
are recorded, and the tests want none. `tests.lib.engines.signatures` compares the signatures with
an installed package's.
"""

import functools
import json
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")

OpenVllm = Callable[[Path, int, int], Any]
"""Opens the object at `model.vllm_engine` from weights, longest sequence and rank."""


class Calls(list[tuple[str, dict[str, Any]]]):
    """Names and arguments of the calls, in order."""

    def arguments(self, function: str) -> dict[str, Any]:
        (only,) = [arguments for name, arguments in self if name == function]
        return only


def install(monkeypatch: pytest.MonkeyPatch, open_vllm: OpenVllm | None = None) -> Calls:
    """Put the fake in unsloth's place.

    Args:
        open_vllm: opens the vLLM of `fast_inference`; without it there is none, as on an old GPU.
    """
    module = types.ModuleType("unsloth")
    calls = Calls()
    module.FastLanguageModel = made(calls, open_vllm)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "unsloth", module)
    return calls


def made(calls: Calls, open_vllm: OpenVllm | None) -> type:
    """Make a `FastLanguageModel`; its calls go into `calls`."""

    class FastLanguageModel:
        @staticmethod
        def from_pretrained(
            model_name="unsloth/Llama-3.2-1B-Instruct",
            max_seq_length=2048,
            dtype=None,
            load_in_4bit=True,
            load_in_8bit=False,
            load_in_16bit=False,
            full_finetuning=False,
            token=None,
            device_map="sequential",
            device_map_planner_kwargs=None,
            rope_scaling=None,
            fix_tokenizer=True,
            trust_remote_code=False,
            use_gradient_checkpointing="unsloth",
            resize_model_vocab=None,
            revision=None,
            use_exact_model_name=False,
            offload_embedding="auto",
            float32_mixed_precision=None,
            fast_inference=False,
            gpu_memory_utilization=0.5,
            float8_kv_cache=False,
            random_state=3407,
            max_lora_rank=64,
            disable_log_stats=True,
            qat_scheme=None,
            load_in_fp8=False,
            unsloth_tiled_mlp=False,
            text_only=False,
            *args,
            on_model_resolved=None,
            **kwargs,
        ):
            calls.append(("from_pretrained", locals()))
            model = AutoModelForCausalLM.from_pretrained(model_name, dtype=dtype)
            if fast_inference and full_finetuning:
                raise NotImplementedError("`fast_inference=True` cannot be used together")
            if fast_inference and open_vllm:
                model.vllm_engine = open_vllm(Path(model_name), max_seq_length, max_lora_rank)
            adapter = Path(model_name, "adapter_config.json")
            # An adapter's tokenizer is its model's.
            named = json.loads(adapter.read_text()) if adapter.is_file() else {}
            below = named.get("base_model_name_or_path", model_name)
            return _with_modes(model), AutoTokenizer.from_pretrained(below)

        @staticmethod
        def get_peft_model(
            model,
            r=16,
            target_modules=TARGETS,
            lora_alpha=16,
            lora_dropout=0.0,
            bias="none",
            layers_to_transform=None,
            layers_pattern=None,
            finetune_last_n_layers=None,
            use_gradient_checkpointing="unsloth",
            random_state=3407,
            max_seq_length=2048,
            use_rslora=False,
            modules_to_save=None,
            init_lora_weights=True,
            loftq_config=None,
            temporary_location="_unsloth_temporary_saved_buffers",
            qat_scheme=None,
            target_parameters=None,
            ensure_weight_tying=None,
            offload_layers=None,
            checkpoint_skip_layers=0,
            **kwargs,
        ):
            calls.append(("get_peft_model", locals()))
            config = LoraConfig(
                r=r,
                lora_alpha=lora_alpha,
                lora_dropout=lora_dropout,
                target_modules=list(target_modules),
                task_type="CAUSAL_LM",
            )
            adapted = _with_modes(get_peft_model(model, config))
            if hasattr(model, "vllm_engine"):
                adapted.vllm_engine = model.vllm_engine
                adapted.load_lora = functools.partial(load_lora, adapted)
            return adapted

        @staticmethod
        def for_training(model, use_gradient_checkpointing=None):
            calls.append(("for_training", locals()))
            return model.train()

        @staticmethod
        def for_inference(model):
            calls.append(("for_inference", locals()))
            return model.eval()

    def load_lora(model, save_directory, load_tensors=False, lora_request_id=None):
        calls.append(("load_lora", locals()))
        assert Path(save_directory).exists()
        number = sum(name == "load_lora" for name, _ in calls)
        return model.vllm_engine.lora_request(str(number), number, save_directory)

    def _with_modes(model):
        model.for_training = functools.partial(FastLanguageModel.for_training, model)
        model.for_inference = functools.partial(FastLanguageModel.for_inference, model)
        return model

    return FastLanguageModel
