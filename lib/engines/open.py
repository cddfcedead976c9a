"""The engine that params name, around one of the pipeline's checkpoints."""

import contextlib
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from safetensors import SafetensorError

from lib.core.errors import UserError
from lib.core.process import require
from lib.engines.base import Engine
from lib.engines.registry import ENGINES


def check_engine(name: str, checkpoint: Path, *, base: Path) -> None:
    """Look for what `open_engine` will need, before a model is loaded or trained.

    Raises:
        UserError: the engine is not installed, or its server is down or serves another model.
    """
    _implementation(name).check(checkpoint, base=base)


def open_engine(name: str, checkpoint: Path, **settings: Any) -> Engine:
    """The engine of that name around a checkpoint; the caller closes it.

    Args:
        name: of `ENGINES`; `evaluate.engine`, `rollout.engine` or `validation.engine`.
        settings: see `Engine.open`; dtype, attention and length are `model.loading` in params.

    Raises:
        UserError: the engine is not installed, or cannot run this checkpoint here.
    """
    return _implementation(name).open(checkpoint, **settings)


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
