"""Trainer arguments that SFT, GRPO and DPO share, from params to transformers' names."""

from pathlib import Path
from typing import Any

import torch
from transformers import Trainer

from lib.engines import compat
from lib.params.model import Model
from lib.params.training import Optimisation
from lib.training.phase.launch import micro_batches, num_processes
from lib.training.phase.optim import MemoryEfficientAdamW


def shared_arguments(
    section: Optimisation, *, batch: int, model: Model, seed: int, scratch: Path
) -> dict[str, Any]:
    """Keyword arguments of `transformers.TrainingArguments`.

    Args:
        batch: rows of an optimiser step, on all ranks.
        scratch: folder for whatever a trainer writes on its own; not an output of the stage.
    """
    compat.one_gpu_per_process()
    gpu = torch.accelerator.is_available()
    return {
        **micro_batches(batch, micro_batch=section.micro_batch_size, world_size=num_processes()),
        "output_dir": str(scratch),
        "learning_rate": section.learning_rate,
        "lr_scheduler_type": section.lr_schedule,
        # transformers reads a fraction as a share of all steps, and 1 as one step.
        "warmup_steps": min(section.warmup_ratio, 1 - 1e-9),
        "adam_beta1": section.adam_beta1,
        "adam_beta2": section.adam_beta2,
        "weight_decay": section.weight_decay,
        "max_grad_norm": section.max_grad_norm,
        "logging_steps": section.logging_steps,
        "bf16": model.mixed_precision == "bf16",
        # Without it and without a GPU, transformers refuses to compute in bf16, and accelerate lets
        # several ranks train apart.
        "use_cpu": not gpu,
        # Unsloth's policy brings its own (`lib.engines.unsloth`); this would put it out of action.
        "gradient_checkpointing": model.gradient_checkpointing and model.backend != "unsloth",
        "seed": seed,
        "save_strategy": "steps" if section.save_steps else "no",
        "save_steps": section.save_steps or 1,
        "report_to": "none",
        "disable_tqdm": True,
        "dataloader_pin_memory": torch.cuda.is_available(),
        "ddp_backend": None if gpu or num_processes() == 1 else "gloo",
    }


def choose_optimizer(trainer: Trainer, name: str) -> None:
    """Make `trainer` build the optimiser that params name; AdamW is its own.

    Args:
        name: `optimizer` in params. The trainer still groups the parameters, builds the schedule
            and saves the state.
    """
    if name == "memory_efficient_adamw":
        args = trainer.args
        trainer.optimizer_cls_and_kwargs = (
            MemoryEfficientAdamW,
            {
                "lr": args.learning_rate,
                "betas": (args.adam_beta1, args.adam_beta2),
                "eps": args.adam_epsilon,
            },
        )
