"""A stand-in for `unsloth` that has the signatures of 2026.10.7 and the bodies of transformers.

Every argument has to be one that a signature names: what the real functions would swallow as
`**kwargs` is recorded, and the tests want it empty.
"""

import sys
import types
from typing import Any

import pytest
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer


class Calls(list[tuple[str, dict[str, Any]]]):
    """What was called with what, in order."""

    def of(self, function: str) -> dict[str, Any]:
        (found,) = [arguments for name, arguments in self if name == function]
        return found


def install(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Put the fake in unsloth's place."""
    calls = Calls()

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
            rope_scaling=None,
            fix_tokenizer=True,
            trust_remote_code=False,
            use_gradient_checkpointing="unsloth",
            resize_model_vocab=None,
            revision=None,
            use_exact_model_name=False,
            fast_inference=False,
            gpu_memory_utilization=0.5,
            float8_kv_cache=False,
            random_state=3407,
            max_lora_rank=64,
            disable_log_stats=True,
            **kwargs,
        ):
            calls.append(("from_pretrained", locals()))
            model = AutoModelForCausalLM.from_pretrained(model_name, dtype=dtype)
            return model, AutoTokenizer.from_pretrained(model_name)

        @staticmethod
        def get_peft_model(
            model,
            r=16,
            target_modules=("q_proj", "k_proj", "v_proj", "o_proj"),
            lora_alpha=16,
            lora_dropout=0.0,
            bias="none",
            layers_to_transform=None,
            layers_pattern=None,
            use_gradient_checkpointing="unsloth",
            random_state=3407,
            max_seq_length=2048,
            use_rslora=False,
            modules_to_save=None,
            init_lora_weights=True,
            loftq_config=None,
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
            return get_peft_model(model, config)

        @staticmethod
        def for_training(model, use_gradient_checkpointing=True):
            calls.append(("for_training", locals()))
            return model.train()

    module = types.ModuleType("unsloth")
    module.FastLanguageModel = FastLanguageModel  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "unsloth", module)
    return calls
