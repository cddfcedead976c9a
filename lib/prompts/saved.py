"""Write and read a model's prompt format and system prompt, as files beside its tokenizer.

The system prompt is a text from params or from a file, or the format's own instructions.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from lib.artifacts import parse_json, read_json
from lib.core.errors import UserError
from lib.core.plugins import plugin_hashes
from lib.prompts.formats import PromptFormat
from lib.prompts.registry import prompt_format

FORMAT_FILE = "prompt_format.json"
"""File with `prompt_format`'s arguments `name`, `tags`, `layout` and `tool`, and plugins' hashes.

An export's file also has the fields of `Generation`. They are not in `generation_config.json`,
where stop strings would make transformers require a tokenizer in `generate`, and the length would
override a caller's `max_length`.
"""


class Generation(NamedTuple):
    """The stop strings and the length limit of a model's completions when it was measured.

    Attributes:
        stop_strings: a completion ended after any of these.
        max_new_tokens: the length limit; None if unknown.
    """

    stop_strings: tuple[str, ...] = ()
    max_new_tokens: int | None = None


def save_prompt(
    folder: Path,
    *,
    system: str,
    rendering: Mapping[str, Any],
    generation: Generation | None = None,
) -> None:
    """Write the system prompt and the format into a model's folder, beside its tokenizer.

    Args:
        system: text of the system prompt; '' for none.
        rendering: the arguments of `prompt_format`.
        generation: stop strings and length limit with which the model was measured. They are
            saved with an export; None for other models.
    """
    save_system(folder, system)
    # Called for its errors only: the file must not name a format that cannot be read back.
    prompt_format(**rendering)
    content = {**rendering, "tags": list(rendering["tags"])}
    # {} unless the format's `name` is a plugin, then {name: hash of its file}, such as
    # {"plugins/formats/file.py:name": "0123…"}.
    content |= plugin_hashes(rendering)
    if generation:
        content |= generation._asdict()
    text = json.dumps(content, indent=2, sort_keys=True)
    (folder / FORMAT_FILE).write_text(text + "\n", encoding="utf-8")


def special_tokens(folder: Path) -> dict[str, str]:
    """Return `bos_token` and `eos_token` of the tokenizer in `folder`; '' for a missing one."""
    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    tokens = {name: config.get(name) or "" for name in ("bos_token", "eos_token")}
    # transformers writes a token as a text, or as a mapping with "content".
    return {
        name: each if isinstance(each, str) else each["content"] for name, each in tokens.items()
    }


def saved_format(folder: Path) -> PromptFormat | None:
    """Read the prompt format saved in a model's folder; None if there is none.

    Raises:
        UserError: the file is damaged, or names an unknown format or a plugin whose file changed
            after the model was trained.
    """
    path = folder / FORMAT_FILE
    if not path.is_file():
        return None
    try:
        content = parse_json(path.read_bytes())
        # Models of before had no tool.
        named = {"name": content["name"], "tool": content.get("tool", "")}
        own_format = prompt_format(**named, tags=content["tags"], layout=content["layout"])
        # {plugin's name: hash of its present file}; {} for a built-in format. Another version of a
        # plugin may render another prompt than the model has learned.
        for name, digest in plugin_hashes(named).items():
            if content.get(name) != digest:
                raise UserError(f"the model was trained with another version of {name}")
        return own_format
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} is damaged ({error!r}); expected name, tags and layout of a prompt format"
        ) from error
    except UserError as error:
        # Adds the path to the errors raised above.
        raise UserError(f"{path}: {error.message}") from error


def saved_generation(folder: Path) -> Generation:
    """Read a model's stop strings and length limit from its format file, or its generation config.

    Both files may have the keys `stop_strings` and `max_new_tokens`. The first file with one of
    them decides; without any, there are no stop strings, and the limit is None.

    Raises:
        UserError: a file is damaged.
    """
    # An export has them in the format file, a model from elsewhere only in transformers' file.
    for path in (folder / FORMAT_FILE, folder / "generation_config.json"):
        content = read_json(path, remedy="copy the model again") if path.is_file() else {}
        saved = content if isinstance(content, dict) else {}
        stops, max_new_tokens = saved.get("stop_strings"), saved.get("max_new_tokens")
        # In transformers' file, `stop_strings` may be one text instead of a list.
        stops = [stops] if isinstance(stops, str) else stops or []
        are_texts = isinstance(stops, list) and all(isinstance(stop, str) for stop in stops)
        if not are_texts or not isinstance(max_new_tokens, int | None):
            raise UserError(
                f"{path}: stop_strings={stops!r}, max_new_tokens={max_new_tokens!r}; expected a "
                "list of texts and a whole number"
            )
        if stops or max_new_tokens:
            return Generation(tuple(stops), max_new_tokens)
    return Generation()


OWN_INSTRUCTIONS = "format"
"""Value of `prompt.system` for the format's own instructions."""

SYSTEM_FILE = "system_prompt.txt"
"""File beside the tokenizer of a base model or an export, with the resolved `prompt.system`."""

FILE_PREFIX = "file:"
"""Prefix of a path in `prompt.system`."""


def system_prompt(value: str, *, prompt_format: PromptFormat) -> str:
    """Resolve `prompt.system` in params to the text of the system message, '' for none.

    `format` gives the format's own instructions, and `file:data/raw/system.txt` the text of that
    file without white space around it. Any other value is the text itself.

    Raises:
        UserError: the file is missing, is no UTF-8 text, or is empty.
    """
    if value == OWN_INSTRUCTIONS:
        return prompt_format.instructions
    if not value.startswith(FILE_PREFIX):
        return value
    path = Path(value.removeprefix(FILE_PREFIX))
    try:
        text = path.read_text(encoding="utf-8-sig").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"prompt.system: cannot read {path}: {error}") from error
    if not text:
        raise UserError(f"prompt.system: {path} is empty; write the prompt there or set ''")
    return text


def with_default_system(chat_template: str, system: str) -> str:
    """Return a chat template that adds `system` to conversations without a system message.

    If `system` is '', the template is returned unchanged.
    """
    if not system:
        return chat_template
    # `json.dumps` writes the text as a Jinja string. JSON's escapes are Jinja's too, except the
    # surrogate pairs that stand for an emoji in ASCII; hence ensure_ascii=False.
    message = f"{{'role': 'system', 'content': {json.dumps(system, ensure_ascii=False)}}}"
    return (
        # Jinja code in front of the template, which then reads the longer list `messages`. In an
        # f-string, `{{%-` writes Jinja's `{%-`.
        "{%- if messages[0]['role'] != 'system' -%}"
        f"{{%- set messages = [{message}] + messages -%}}"
        f"{{%- endif -%}}{chat_template}"
    )


def save_system(folder: Path, text: str) -> None:
    """Write the system prompt into a model's folder; later stages read the base model's."""
    (folder / SYSTEM_FILE).write_text(text, encoding="utf-8")


def saved_system(folder: Path) -> str:
    """Read the system prompt saved with the base model by `prepare`.

    Raises:
        UserError: the file is missing, or is no UTF-8 text.
    """
    path = folder / SYSTEM_FILE
    if not path.is_file():
        raise UserError(f"{path} is missing; `prepare` writes it: run `dvc repro prepare`")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text ({error}); write it again") from error
