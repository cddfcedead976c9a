"""The system prompt: as params give it, from a file, or the format's own instructions."""

import json
from pathlib import Path

from lib.core.errors import UserError
from lib.prompts.base import PromptFormat

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
