"""The engine that params name, around one of the pipeline's checkpoints."""

import contextlib
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from safetensors import SafetensorError
from transformers import PreTrainedModel

from lib.engines.base import Engine, EngineRequest, LoadSettings
from lib.engines.registry import ENGINES
from lib.environment import require
from lib.errors import UserError
from lib.params.model import Model


def check_engine(name: str, checkpoint: Path, *, base: Path) -> None:
    """Look for what `open_engine` will need, before a model is loaded or trained.

    Raises:
        UserError: the engine is not installed, or its server is down or serves another model.
    """
    _implementation(name).check(checkpoint, base=base)


def open_engine(
    name: str,
    checkpoint: Path,
    *,
    base: Path,
    model: Model | LoadSettings,
    batch_size: int,
    label: str = "",
    policy: PreTrainedModel | None = None,
    memory_share: float = 0.9,
    device: str = "",
) -> Engine:
    """An engine that generates from `checkpoint`; the caller closes it.

    Args:
        name: of `ENGINES`; `evaluate.engine`, `rollout.engine` or `validation.engine`.
        checkpoint: what `prepare`, `sft` or `grpo` wrote.
        base: the weights that an adapter was trained on.
        batch_size: completions generated at a time.
        label: name of the progress bar; '' shows none.
        policy: the checkpoint where it is in memory already, as in training; `sync` brings the
            weights that it then has.
        memory_share: of a GPU, for an engine with a copy of the weights.
        device: for the same, where it is in this process: a GPU like `cuda:1`; '' for the first.

    Raises:
        UserError: the engine is not installed, or cannot run this checkpoint here.
    """
    return _implementation(name).open(
        EngineRequest(
            checkpoint=checkpoint,
            base=base,
            model=model,
            batch_size=batch_size,
            label=label,
            policy=policy,
            memory_share=memory_share,
            device=device,
        )
    )


@contextlib.contextmanager
def loading(folder: Path) -> Iterator[None]:
    """What libraries raise on a folder that holds no whole model, as a mistake in one line."""
    try:
        yield
    except (OSError, ValueError, SafetensorError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"{folder} cannot be loaded as a model: {reason}") from error


def _implementation(name: str) -> type[Engine]:
    facts = ENGINES[name]
    if facts.extra:
        require(facts.library, extra=facts.extra, why=f"engine: {name}")
    module, _, implementation = facts.implementation.partition(":")
    return cast(type[Engine], getattr(importlib.import_module(module), implementation))
