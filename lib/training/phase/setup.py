"""Build a training run: the arguments and settings that SFT, GRPO and DPO share."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PrinterCallback, Trainer

from lib.artifacts import replacing
from lib.artifacts.problems import Problem
from lib.core.errors import UserError
from lib.models import compat
from lib.models.save import save_policy
from lib.params.model import NEEDS_GPU
from lib.params.schema import Params
from lib.params.training import Optimisation
from lib.prompts import PromptFormat, prompt_format, saved_system
from lib.rewards.functions import RewardFn
from lib.training.phase.launch import micro_batches, num_processes
from lib.training.phase.optim import MemoryEfficientAdamW
from lib.training.phase.ranks import gather_weights
from lib.training.phase.tracking import curve_points, track


@dataclasses.dataclass(frozen=True)
class Setup:
    """A training run ready to start: a trainer, its data and its rewards.

    Attributes:
        problems: the training problems; none in DPO, which learns from pairs.
        rewards: functions with TRL's signature, in the order of `reward.weights`; GRPO only.
        settings: the params of the run, for the trackers' config.
    """

    trainer: Trainer
    problems: Sequence[Problem] = ()
    rewards: Sequence[RewardFn] = ()
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def prompt_settings(params: Params, base: Path) -> tuple[PromptFormat, str]:
    """Return the prompt format of params, and the system prompt saved with `base`; '' for none."""
    return prompt_format(**params.prompt.rendering), saved_system(base)


def shared_arguments(
    params: Params, section: Optimisation, *, batch: int, scratch: Path
) -> dict[str, Any]:
    """Return the keyword arguments of `transformers.TrainingArguments` common to all phases.

    Args:
        section: the phase's section of `params`.
        batch: rows of an optimiser step, on all ranks.
        scratch: the trainer's output folder; not an output of the stage.

    Raises:
        UserError: float16 without a GPU, or micro-batches that the ranks cannot share evenly.
    """
    # Otherwise a trainer without a launcher takes all visible GPUs (`nn.DataParallel`).
    compat.one_gpu_per_process()
    gpu, model = torch.accelerator.is_available(), params.model
    schedule: str = section.lr_schedule
    if schedule == "constant" and section.warmup_ratio:
        # transformers' schedule `constant` ignores the warm-up.
        schedule = "constant_with_warmup"
    # In float16 a scaler multiplies the loss, and skips steps with overflowing gradients.
    scaled = model.mixed_precision == "fp16"
    if scaled and not gpu:
        # accelerate would train in float32 without a warning.
        raise UserError(f"model.mixed_precision=fp16: {NEEDS_GPU}")
    return {
        **micro_batches(batch, micro_batch=section.micro_batch_size, world_size=num_processes()),
        "output_dir": str(scratch),
        "learning_rate": section.learning_rate,
        "lr_scheduler_type": schedule,
        # transformers reads a number below 1 as a share of all steps, but 1 as one step.
        "warmup_steps": min(section.warmup_ratio, 1 - 1e-9),
        "adam_beta1": section.adam_beta1,
        "adam_beta2": section.adam_beta2,
        "weight_decay": section.weight_decay,
        "max_grad_norm": section.max_grad_norm,
        "logging_steps": section.logging_steps,
        "bf16": model.mixed_precision == "bf16",
        "fp16": scaled,
        # The default, torch's fused AdamW, skips an overflowing step by itself, and accelerate
        # 1.15.0 advances the schedule (`AcceleratedOptimizer.step`).
        **({"optim": "adamw_torch"} if scaled else {}),
        # Else, without a GPU, transformers refuses bf16 and each of several ranks trains by itself.
        "use_cpu": not gpu,
        # Unsloth's policy has its own (`lib.models.unsloth`).
        "gradient_checkpointing": model.gradient_checkpointing and model.backend != "unsloth",
        "seed": params.seed,
        "save_strategy": "steps" if section.save_steps else "no",
        # Any positive number if nothing is saved.
        "save_steps": section.save_steps or 1,
        # `track` and `ProgressLines` log instead.
        "report_to": "none",
        "disable_tqdm": True,
        # accelerate would fill up the last micro-batch of several ranks with repeated rows.
        "dataloader_drop_last": num_processes() > 1,
        "dataloader_pin_memory": torch.cuda.is_available(),
        "ddp_find_unused_parameters": False,
        # accelerate would take MPI if torch was built with it.
        "ddp_backend": None if gpu or num_processes() == 1 else "gloo",
    }


def set_optimizer(trainer: Trainer, section: Optimisation) -> None:
    """Set the memory-efficient AdamW if params name it, and stop transformers' printing of logs.

    The other optimiser, `adamw`, is the trainer's own.

    Args:
        section: the phase's section of params.
    """
    # `ProgressLines` prints the logs instead.
    trainer.remove_callback(PrinterCallback)
    if section.optimizer == "memory_efficient_adamw":
        args = trainer.args
        # The trainer also sets the weight decay, per group of parameters.
        trainer.optimizer_cls_and_kwargs = (
            MemoryEfficientAdamW,
            {
                "lr": args.learning_rate,
                "betas": (args.adam_beta1, args.adam_beta2),
                "eps": args.adam_epsilon,
            },
        )


def save(trainer: Trainer, checkpoint: Path) -> None:
    """Write the policy's weights; called on every rank, as gathering shards is collective."""
    weights = gather_weights(trainer)
    if trainer.is_world_process_zero():
        with replacing(checkpoint) as unfinished:
            save_policy(trainer.model, trainer.processing_class, unfinished, weights=weights)


def run_training(setup: Setup, *, to: Path | None = None) -> list[dict[str, float]]:
    """Train to the end and return the curve: for each logged step, its numbers by column.

    Trackers get the curve too (`lib.training.phase.tracking`). Stages call
    `lib.training.phase.run.run_phase`, which adds resuming, validation and outputs.

    Args:
        to: folder for the checkpoint; None saves nothing.
    """
    track(setup.trainer, "run", setup.settings)
    setup.trainer.train()
    if to:
        save(setup.trainer, to)
    return curve_points(setup.trainer.state)
