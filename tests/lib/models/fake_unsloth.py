"""Stand-in for `unsloth`: signatures of 2026.10.7, bodies of transformers.

A signature has every parameter that is used here, with its default: the real functions swallow
unknown arguments as `**kwargs`, so these are recorded, and the tests want none.
`tests.lib.engines.signatures` looks for the parameters in an installed package.
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
    """Names and arguments of the calls, in order.

    Attributes:
        opened: the vLLMs opened by `fast_inference`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[Any] = []

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
            full_finetuning=False,
            trust_remote_code=False,
            use_gradient_checkpointing="unsloth",
            use_exact_model_name=False,
            fast_inference=False,
            gpu_memory_utilization=0.5,
            random_state=3407,
            max_lora_rank=64,
            **kwargs,
        ):
            calls.append(("from_pretrained", locals()))
            model = AutoModelForCausalLM.from_pretrained(model_name, dtype=dtype)
            if fast_inference and full_finetuning:
                raise NotImplementedError("`fast_inference=True` cannot be used together")
            if fast_inference and open_vllm:
                model.vllm_engine = open_vllm(Path(model_name), max_seq_length, max_lora_rank)
                calls.opened.append(model.vllm_engine)
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
            use_gradient_checkpointing="unsloth",
            random_state=3407,
            use_rslora=False,
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
