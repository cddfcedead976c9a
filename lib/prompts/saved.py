"""How a model is prompted, as files beside its tokenizer: the format, and the system prompt.

The system prompt is as params have it, from a file, or the format's own instructions.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lib.core.errors import UserError
from lib.core.plugins import plugin_hashes
from lib.prompts.formats import PromptFormat, prompt_format

FORMAT_FILE = "prompt_format.json"
"""Holds `name`, `tags` and `layout`: what `prompt_format` takes; of a plugin, its hash."""


def save_prompt(folder: Path, *, system: str, rendering: Mapping[str, Any]) -> None:
    """Keep how a model is asked beside its tokenizer: the system prompt, and the format."""
    save_system(folder, system)
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


FORMAT_OWN = "format"
"""Value of `prompt.system` that asks for the format's own instructions."""

SAVED = "system_prompt.txt"
"""File beside the base model's tokenizer that keeps what `prompt.system` stood for."""

FROM_FILE = "file:"
"""Prefix of `prompt.system` that makes the rest a path."""


def system_prompt(value: str, *, prompt_format: PromptFormat) -> str:
    """The system message that `prompt.system` means, '' for none.

    `format` is the format's own instructions, `file:data/raw/system.txt` is that file's text
    without the blank lines around it, anything else is the text itself.

    Raises:
        UserError: the file is missing, is no UTF-8 text, or is empty.
    """
    if value == FORMAT_OWN:
        return prompt_format.instructions
    if not value.startswith(FROM_FILE):
        return value
    path = Path(value.removeprefix(FROM_FILE))
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"prompt.system: cannot read {path}: {error}") from error
    if not text:
        raise UserError(f"prompt.system: {path} is empty; write the prompt there or set ''")
    return text


def with_default_system(chat_template: str, system: str) -> str:
    """A template that renders `system` before a conversation without a system message.

    The same template where `system` is ''.
    """
    if not system:
        return chat_template
    # JSON's escapes are Jinja's too, but for those of half a character.
    message = f"{{'role': 'system', 'content': {json.dumps(system, ensure_ascii=False)}}}"
    return (
        "{%- if messages[0]['role'] != 'system' -%}"
        f"{{%- set messages = [{message}] + messages -%}}"
        f"{{%- endif -%}}{chat_template}"
    )


def save_system(folder: Path, text: str) -> None:
    """Keep the system prompt with the base model, which every later stage depends on."""
    (folder / SAVED).write_text(text, encoding="utf-8")


def saved_system(folder: Path) -> str:
    """The system prompt that `prepare` kept with the base model.

    Raises:
        UserError: it is not there.
    """
    path = folder / SAVED
    if not path.is_file():
        raise UserError(f"{path} is missing; `prepare` writes it: run `dvc repro prepare`")
    return path.read_text(encoding="utf-8")
