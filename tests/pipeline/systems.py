"""Settings of the five systems from their sources, completed as in docs/presets.md.

Literals only: nothing here is read from a preset, so that a changed preset differs from it.
"""

from typing import Any

from lib.training.phase.optim import MemoryEfficientAdamW
from tests.conftest import S1

ATTENTION_AND_MLP = {
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "gate_proj",
    "up_proj",
    "down_proj",
}

IN_16_BIT = {"bf16": True, "gradient_checkpointing": True}
"""Arguments of all systems' trainers."""

S0: dict[str, Any] = {
    **IN_16_BIT,
    "per_device_train_batch_size": 1,
    "lr_scheduler_type": "linear",
    "adam_beta1": 0.9,
    "adam_beta2": 0.999,
    "weight_decay": 0.01,
    "max_grad_norm": 1.0,
}

CS336: dict[str, Any] = {
    **IN_16_BIT,
    "adam_beta1": 0.9,
    "adam_beta2": 0.95,
    "weight_decay": 0.0,
    "max_grad_norm": 1.0,
}

CS336_SFT = {
    **CS336,
    "num_train_epochs": 1,
    "per_device_train_batch_size": 2,
    "lr_scheduler_type": "cosine",
    "warmup_steps": 0.03,
}

FLASH_IN_FLOAT32 = {
    "backend": "transformers",
    "attention": "flash_attention_2",
    "dtype": "float32",
    "mixed_precision": "bf16",
}

PLAIN = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "stop_strings": ()}

XML_SYSTEM = (
    "Work through the problem between <reasoning> and </reasoning>. "
    "Then give the answer alone between <answer> and </answer>. Each tag is on a line of its own:"
    "\n<reasoning>\n...\n</reasoning>\n<answer>\n...\n</answer>"
)

GSM8K_GRPO = {
    **IN_16_BIT,
    "group_size": 16,
    "per_device_train_batch_size": 16,
    "gradient_accumulation_steps": 4,
    "max_new_tokens": 786,
    "learning_rate": 5e-6,
    "lr_scheduler_type": "cosine",
    "warmup_steps": 0.1,
    "adam_beta1": 0.9,
    "adam_beta2": 0.99,
    "weight_decay": 0.1,
    "max_grad_norm": 0.1,
    "loss": "grpo",
    "advantage": "group",
    "importance_level": "token",
    "beta": 0.04,
    "kl_weighted": False,
    "num_iterations": 1,
    "save_steps": 100,
    "validated": ("gsm8k", 100),
    "sampling": PLAIN,
}

GSM8K = {
    "system": XML_SYSTEM,
    "prompt": ("<|im_start|>system\nWork through", "<|im_end|>\n<|im_start|>assistant\n"),
    "phases": (0, 1868),
    "lengths": (1280, 786),
    "sampled": (1.0, 1.0),
    "sft": None,
    "grpo": GSM8K_GRPO,
}

S4: dict[str, Any] = {
    **GSM8K,
    "engines": ("vllm", 0.3, "vllm"),
    "gpu": {**FLASH_IN_FLOAT32, "dtype": "bfloat16"},
    "lora": (16, 64, 0.05),
    "rewards": (
        ("s4_correctness", "s4_integer", "s4_strict_format", "s4_soft_format", "s4_tag_count"),
        [1.0] * 5,
    ),
}

COURSE_SYSTEM = (
    "A conversation between User and Assistant. The User asks a question, and the Assistant solves "
    "it. The Assistant first thinks about the reasoning process in the mind and then provides the "
    "User with the answer. The reasoning process is enclosed within <think> </think> and answer is "
    "enclosed within <answer> </answer> tags, respectively, i.e., <think> reasoning process here "
    "</think> <answer> answer here </answer>."
)

SYSTEMS: dict[str, dict[str, Any]] = {
    "s0-qwen3-4b": {
        "architecture": "qwen3",
        "model": "unsloth/Qwen3-4B-Base",
        "engines": ("vllm", 0.7, "vllm"),
        "gpu": {
            "backend": "unsloth",
            "attention": "sdpa",
            "dtype": "bfloat16",
            "mixed_precision": "bf16",
        },
        "phases": (2, 100),
        "lengths": (2048, 2047),
        "sampled": (1.0, 1.0),
        "system": (
            "Work through the problem between <start_working_out> and <end_working_out>. "
            "Then give the answer alone between <SOLUTION> and </SOLUTION>."
        ),
        "prompt": ("Work through the problem", "\n<start_working_out>"),
        "lora": (32, 64, 0.0),
        "rewards": (
            ("match_format_exactly", "match_format_approximately", "check_answer", "check_numbers"),
            [1.0] * 4,
        ),
        "sft": {
            **S0,
            "num_train_epochs": 2,
            "gradient_accumulation_steps": 1,
            "learning_rate": 2e-4,
            "warmup_steps": 0.01,
            "validated": ("validation", 500),
        },
        "grpo": {
            **S0,
            "group_size": 2,
            "gradient_accumulation_steps": 2,
            "learning_rate": 5e-6,
            "warmup_steps": 0.1,
            "loss": "dapo",
            "advantage": "group",
            "beta": 0.0,
            "num_iterations": 1,
            "save_steps": 100,
            "validated": ("validation", 20),
            "sampling": {**PLAIN, "min_p": 0.1},
        },
    },
    S1: {
        **GSM8K,
        "architecture": "qwen2",
        "model": "Qwen/Qwen2.5-0.5B-Instruct",
        "engines": ("vllm", 0.3, "vllm"),
        "gpu": {**FLASH_IN_FLOAT32, "attention": "sdpa"},
        "lora": None,
        "rewards": (("s1_correctness", "s1_numeric", "s1_xml_format"), [1.0] * 3),
        "grpo": {
            **GSM8K_GRPO,
            "per_device_train_batch_size": 8,
            "gradient_accumulation_steps": 8,
            "loss": "dapo",
            "beta": 0.0,
            "kl_weighted": True,
        },
    },
    "s2-math-sft": {
        "architecture": "qwen2",
        "model": "Qwen/Qwen2.5-Math-1.5B-Instruct",
        "engines": ("transformers", 0.3, "vllm"),
        "gpu": FLASH_IN_FLOAT32,
        "phases": (1, 0),
        "lengths": (2048, 1024),
        "sampled": (1.0, 1.0),
        "system": COURSE_SYSTEM,
        "prompt": (f"{COURSE_SYSTEM}\nUser: ", "\nAssistant: <think>"),
        "lora": None,
        "rewards": (("r1_zero",), [1.0]),
        "sft": {
            **CS336_SFT,
            "gradient_accumulation_steps": 8,
            "learning_rate": 1e-5,
            "validated": ("math", 100),
        },
        "grpo": None,
    },
    "s3-cs336": {
        "architecture": "qwen2",
        "model": "Qwen/Qwen2.5-Math-1.5B",
        "engines": ("vllm", 0.3, "vllm"),
        "gpu": FLASH_IN_FLOAT32,
        "phases": (1, 200),
        "lengths": (4096, 1024),
        "sampled": (0.6, 0.95),
        "system": "Solve the problem step by step. Put the final answer in \\boxed{}.",
        "prompt": ("Solve the problem step by step", "\n"),
        "lora": None,
        "rewards": (("boxed",), [1.0]),
        "sft": {
            **CS336_SFT,
            "gradient_accumulation_steps": 16,
            "learning_rate": 2e-5,
            "optimizer": MemoryEfficientAdamW,
            "validated": ("math500+gsm8k", 50),
        },
        "grpo": {
            **CS336,
            "group_size": 8,
            "prompts_per_step": 32,
            "max_new_tokens": 1024,
            "learning_rate": 1e-5,
            "lr_scheduler_type": "constant",
            "warmup_steps": 0.0,
            "beta": 0.0,
            "num_iterations": 1,
            "loss": "reinforce",
            "advantage": "group",
            "validated": ("math500+gsm8k", 50),
            "sampling": PLAIN,
        },
    },
    "s4-gsm8k-lora": {
        **S4,
        "architecture": "qwen2",
        "model": "Qwen/Qwen2.5-1.5B-Instruct",
    },
    "s4-gsm8k-lora-llama": {
        **S4,
        "architecture": "llama",
        "model": "meta-llama/Llama-3.2-1B-Instruct",
        "prompt": (
            "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nWork through",
            "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
        ),
    },
}
