"""The Unsloth backend: load, adapt and train the policy with Unsloth's kernels.

Unsloth replaces classes of transformers and TRL when it is imported, so it must be imported before
them (`import_first`), and only if params ask for it: importing it needs a GPU. Its functions ignore
unknown arguments, so tests compare every argument with the locked version's signatures.
docs/engines.md lists the parts that were run, and where; none was run on a GPU.
"""

import contextlib
import importlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lib.artifacts import SCRATCH, read_json
from lib.core.errors import UserError, first_line
from lib.models import compat
from lib.models.files import ADAPTER_FILES
from lib.models.gpu import find_gpus, gpu_fault
from lib.params.engines import ENGINES
from lib.params.model import Model

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel

STANDBY = {
    # vLLM's cache frees its memory while the policy trains. It excludes `expandable_segments`.
    "UNSLOTH_VLLM_STANDBY": "1",
    # Without this, standby takes about 0.88 of the GPU and ignores `gpu_memory_utilization`.
    "UNSLOTH_VLLM_STANDBY_UTIL_OVERRIDE": "1",
}
"""Environment variables for a policy that shares its weights with vLLM; read when Unsloth is
imported."""

EXPANDABLE = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
"""Environment variable against memory fragmentation by completions of many lengths. CUDA's
allocator reads it when it starts.

If this variable is not set, torch 2.13 reads `PYTORCH_ALLOC_CONF`, its new name.
"""

ALLOCATOR = (*EXPANDABLE, "PYTORCH_ALLOC_CONF")
"""The allocator's variables; if the user has set one of them, `EXPANDABLE` is not applied."""

COMPILED = {"UNSLOTH_COMPILE_LOCATION": str(SCRATCH / "unsloth")}
"""Environment variable: folder for the code that Unsloth generates, by default the current one."""

PATCHED = ("transformers", "trl", "peft")
"""Packages that must not be imported before Unsloth."""


def import_first(backend: str, *, generates: bool) -> None:
    """Set the environment variables of CUDA's allocator and of Unsloth, then import Unsloth.

    The backend `transformers` needs only the allocator's. Variables that are set already are kept.

    Args:
        backend: `model.backend`, `transformers` or `unsloth`.
        generates: True if the phase samples from a vLLM that shares the policy's weights.

    Raises:
        UserError: unsloth is not installed, or does not find an accelerator.
        RuntimeError: transformers, trl or peft were imported already (a bug of the caller).
    """
    shares_weights_with_vllm = backend == "unsloth" and generates
    if shares_weights_with_vllm:
        compat.prepare_vllm()
        os.environ |= STANDBY | os.environ
    # Otherwise set expandable memory segments, against fragmentation: standby cannot run with them.
    # If the user has set one of the allocator's variables, nothing is changed.
    elif not any(name in os.environ for name in ALLOCATOR):
        os.environ |= EXPANDABLE
    if backend != "unsloth" or "unsloth" in sys.modules:
        return
    # Unsloth replaces classes of these packages when it is imported.
    early = [name for name in PATCHED if name in sys.modules]
    if early:
        raise RuntimeError(f"unsloth must be imported before {', '.join(early)}")
    os.environ |= COMPILED | os.environ
    _fast_language_model()
    compat.keep_trl()


def shares_weights(model: Model, *, engine: str) -> bool:
    """Return True if the engine is a vLLM on the policy's own weights in memory, not on a copy."""
    return model.backend == "unsloth" and ENGINES[engine].below_unsloth


def is_unsloth(model: Any) -> bool:
    """Return True if Unsloth loaded `model`; it then has another forward pass and `generate`."""
    # A method that Unsloth adds to its models.
    return hasattr(model, "for_training")


def load_unsloth(
    weights: Path, *, settings: Model, seed: int, memory_share: float = 0.0
) -> "PreTrainedModel":
    """Load the model in the folder `weights` with Unsloth, for LoRA or for training all weights.

    Args:
        memory_share: share of the GPU for a vLLM that shares the model's weights; 0 loads none.

    Raises:
        UserError: Unsloth loaded no vLLM on this GPU, about which it only prints a line.
    """
    import torch

    shares = memory_share > 0
    with compat.undisturbed() if shares else contextlib.nullcontext():
        model, _ = _fast_language_model().from_pretrained(
            model_name=str(weights),
            max_seq_length=settings.max_seq_length,
            dtype=getattr(torch, settings.dtype),
            load_in_4bit=False,
            full_finetuning=settings.lora.rank == 0,
            # False, or Unsloth's own kind of gradient checkpointing.
            use_gradient_checkpointing=settings.gradient_checkpointing and "unsloth",
            use_exact_model_name=True,  # the folder, not another build of the model from the Hub
            fast_inference=shares,
            # 0.5, Unsloth's default, is read only with `fast_inference`.
            gpu_memory_utilization=memory_share or 0.5,
            random_state=seed,
            trust_remote_code=False,
            max_lora_rank=max(settings.lora.rank, 1),
        )
    if shares and getattr(model, "vllm_engine", None) is None:
        raise UserError(
            "rollout.engine=vllm: Unsloth can share no weights with vLLM on this GPU; "
            "set rollout.engine to transformers, or model.backend to transformers"
        )
    return model


def adapt_unsloth(
    model: "PreTrainedModel", *, settings: Model, seed: int, adapter: Path | None
) -> "PeftModel":
    """Put a LoRA adapter on a model from `load_unsloth`: a new one, or the trained `adapter`.

    Raises:
        UserError: the trained adapter has other modules than `model.lora` in params.
    """
    lora = settings.lora
    # The new adapter below has one scale, alpha / rank; weights of another would silently differ.
    scales = ("use_rslora", "alpha_pattern")
    if adapter and (
        others := [name for name in scales if read_json(adapter / ADAPTER_FILES[0]).get(name)]
    ):
        raise UserError(
            f"{adapter}: {others[0]} of its config is set, which backend unsloth cannot load; set "
            "model.backend to transformers"
        )
    adapted = _fast_language_model().get_peft_model(
        model=model,
        r=lora.rank,
        target_modules=list(lora.target_modules),
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        bias="none",
        use_gradient_checkpointing=settings.gradient_checkpointing and "unsloth",
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
    _fast_language_model().for_training(model=adapted)
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
    # Unsloth raises these if it finds no accelerator.
    except (NotImplementedError, RuntimeError) as error:
        fault = gpu_fault(find_gpus()) or (
            f"unsloth finds no accelerator here ({first_line(error)}); "
            "set model.backend to transformers"
        )
        raise UserError(f"model.backend=unsloth: {fault}") from error
