"""The Unsloth backend: the policy loaded, adapted and trained through Unsloth's patched kernels.

Unsloth replaces classes of transformers and TRL when it is imported, so it has to come before them
(`import_first`), and only where params ask for it: importing it needs a GPU. Its functions take
`**kwargs` and drop what they do not know; every argument here is checked against the signature.
Nothing in this module was run with the real package: the tests hold it to the signatures of
unsloth 2026.10.7 on a fake, and `make gpu-check` runs it on a GPU.
"""

import importlib
import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lib.errors import UserError
from lib.params.model import Model

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel

STANDBY = ("UNSLOTH_VLLM_STANDBY", "1")
"""The colocated vLLM's weights and cache share memory with training. It rules the next one out."""

EXPANDABLE = ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
"""Completions of many lengths do not fragment the memory. CUDA's allocator reads it when it starts.

torch 2.13 reads `PYTORCH_ALLOC_CONF`, its new name, where this one is not set.
"""

ALLOCATOR = (EXPANDABLE[0], "PYTORCH_ALLOC_CONF")
"""Either of them in the environment is the user's word."""

PATCHED = ("transformers", "trl", "peft")
"""What must not have been imported before Unsloth."""


def import_first(backend: str, *, generates: bool) -> None:
    """Set what CUDA's allocator and Unsloth read when they start, then import Unsloth.

    For the backend `transformers` nothing is imported. What the environment has already is kept.

    Args:
        generates: the phase samples completions, with Unsloth's colocated vLLM.

    Raises:
        UserError: unsloth is not installed, or does not find an accelerator.
        RuntimeError: transformers, trl or peft were imported already (a bug of the caller).
    """
    if backend == "unsloth" and generates:
        os.environ.setdefault(*STANDBY)
    elif not any(name in os.environ for name in ALLOCATOR):
        os.environ.update([EXPANDABLE])
    if backend != "unsloth":
        return
    early = [name for name in PATCHED if name in sys.modules]
    if early and "unsloth" not in sys.modules:
        raise RuntimeError(f"unsloth must be imported before {', '.join(early)}")
    _fast_language_model()


def load_unsloth(
    weights: Path, *, settings: Model, seed: int, fast_inference: bool, memory_share: float
) -> "PreTrainedModel":
    """The model in the folder `weights`, ready to be adapted or, without LoRA, to be trained.

    Args:
        seed: of what Unsloth draws while loading.
        fast_inference: generate with a colocated vLLM, which shares the model's weights.
        memory_share: part of the GPU that vLLM may take.
    """
    import torch

    model, _ = _exactly(
        _fast_language_model().from_pretrained,
        model_name=str(weights),
        max_seq_length=settings.max_seq_length,
        dtype=getattr(torch, settings.dtype),
        load_in_4bit=False,
        full_finetuning=settings.lora.rank == 0,
        fast_inference=fast_inference,
        gpu_memory_utilization=memory_share,
        random_state=seed,
        max_lora_rank=max(settings.lora.rank, 1),
    )
    return model


def adapt_unsloth(
    model: "PreTrainedModel", *, settings: Model, seed: int, adapter: Path | None
) -> "PeftModel":
    """Put LoRA adapters on `model`; with `adapter`, those that an earlier phase trained.

    Raises:
        UserError: the trained adapter does not fit onto params' LoRA.
    """
    lora = settings.lora
    adapted = _exactly(
        _fast_language_model().get_peft_model,
        model=model,
        r=lora.rank,
        target_modules=list(lora.target_modules),
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        bias="none",
        use_gradient_checkpointing="unsloth" if settings.gradient_checkpointing else False,
        random_state=seed,
        use_rslora=False,
    )
    if adapter is not None:
        from peft import load_peft_weights, set_peft_model_state_dict

        loaded = set_peft_model_state_dict(adapted, load_peft_weights(str(adapter)))
        if loaded.unexpected_keys:
            raise UserError(
                f"{adapter}: {len(loaded.unexpected_keys)} of its weights have no place in "
                f"model.lora of params, the first is {loaded.unexpected_keys[0]}; "
                "train both phases with the same model.lora"
            )
    _exactly(_fast_language_model().for_training, model=adapted)
    return adapted


def _fast_language_model() -> Any:
    try:
        return importlib.import_module("unsloth").FastLanguageModel
    except ModuleNotFoundError as error:
        if error.name != "unsloth":
            raise
        raise UserError(
            "model.backend=unsloth: unsloth is not installed; "
            "`make setup EXTRA=gpu` on a machine with a GPU, or set model.backend to transformers"
        ) from error
    except (NotImplementedError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(
            f"model.backend=unsloth: unsloth finds no accelerator here ({reason}); "
            "set model.backend to transformers"
        ) from error


def _exactly(function: Callable[..., Any], **arguments: Any) -> Any:
    """Call `function`, each argument one that its signature names.

    Raises:
        UserError: the installed version does not name an argument; `**kwargs` would have
            swallowed it.
    """
    named = {
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD
    }
    unknown = sorted(arguments.keys() - named)
    if unknown:
        raise UserError(
            f"this unsloth's {function.__name__} has no argument {', '.join(unknown)}; "
            "install the locked version: `make setup EXTRA=gpu`"
        )
    return function(**arguments)
