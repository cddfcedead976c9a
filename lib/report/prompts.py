"""The prompts that a checkpoint's completions answer, as the model read them."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lib.artifacts.completions import GradedCompletion
from lib.errors import UserError
from lib.prompts import render
from lib.prompts.base import conversation

Key = tuple[str, str]
"""Benchmark and problem id."""

Prompts = Mapping[Key, str]
"""By problem, the text of its prompt: chat template and system prompt included."""


def rendered_prompts(rows: Iterable[GradedCompletion], *, base: Path, system: str) -> Prompts:
    """The prompts of a checkpoint of the pipeline.

    Args:
        rows: its completions.
        base: the base model, whose tokenizer brings the chat template to all checkpoints.
        system: its system prompt, '' for none.

    Raises:
        UserError: the tokenizer's files are missing or damaged.
    """
    try:
        template = (base / "chat_template.jinja").read_text(encoding="utf-8")
        config = json.loads((base / "tokenizer_config.json").read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(
            f"{base}: no tokenizer with a chat template ({error}); `prepare` writes it: "
            "run `dvc repro`"
        ) from error
    problems = {(row.benchmark, row.problem_id): row.problem for row in rows}
    return {
        key: render(
            conversation(problem, system=system),
            template=template,
            bos_token=_token(config.get("bos_token")),
            eos_token=_token(config.get("eos_token")),
            add_generation_prompt=True,
        )
        for key, problem in problems.items()
    }


def _token(entry: Any) -> str:
    """As the file has it: text, its settings, or nothing."""
    return (entry["content"] if isinstance(entry, dict) else entry) or ""
