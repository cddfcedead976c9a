"""The prompt format as a file beside a tokenizer: a model's folder tells how to prompt it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lib.core.errors import UserError
from lib.core.plugins import plugin_hashes
from lib.prompts.base import PromptFormat
from lib.prompts.registry import prompt_format
from lib.prompts.system import save_system

FORMAT_FILE = "prompt_format.json"
"""Holds `name`, `tags` and `layout`: what `prompt_format` takes; of a plugin, its hash."""


def save_prompt(folder: Path, *, system: str, rendering: Mapping[str, Any]) -> None:
    """Keep how a model is asked beside its tokenizer: the system prompt, and the format."""
    save_system(folder, system)
    save_format(folder, rendering)


def save_format(folder: Path, rendering: Mapping[str, Any]) -> None:
    """Keep what `prompt_format` takes beside a tokenizer."""
    prompt_format(**rendering)
    content = {**rendering, "tags": list(rendering["tags"])}
    content |= plugin_hashes(rendering)
    text = json.dumps(content, indent=2, sort_keys=True)
    (folder / FORMAT_FILE).write_text(text + "\n", encoding="utf-8")


def special_tokens(folder: Path) -> dict[str, str]:
    """`bos_token` and `eos_token` of the tokenizer in `folder`; '' for one that it has not."""
    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    tokens = {name: config.get(name) or "" for name in ("bos_token", "eos_token")}
    # As transformers writes them: a text, or its settings.
    return {
        name: each if isinstance(each, str) else each["content"] for name, each in tokens.items()
    }


def saved_format(folder: Path) -> PromptFormat | None:
    """The format that is kept in `folder`, None where none is.

    Raises:
        UserError: the file is damaged, or names what there is not.
    """
    path = folder / FORMAT_FILE
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        own = prompt_format(content["name"], tags=content["tags"], layout=content["layout"])
        for name, digest in plugin_hashes(content["name"]).items():
            if content.get(name) != digest:
                raise UserError(f"the model was trained with another version of {name}")
        return own
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} is damaged ({error!r}); expected name, tags and layout of a prompt format"
        ) from error
    except UserError as error:
        raise UserError(f"{path}: {error.message}") from error
