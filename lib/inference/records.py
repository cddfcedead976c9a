"""Prompts and responses appended to a JSONL file that several writers may share."""

import fcntl
import json
from pathlib import Path
from typing import Any


def save_prompt_and_response(path: Path, *, prompt: str, response: str, **facts: Any) -> None:
    """Append one row with a prompt, the response to it, and further facts; makes the folder.

    The line is written under the file's lock, so that rows of two writers never mix.
    """
    row = {"prompt": prompt, "response": response, **facts}
    path.parent.mkdir(parents=True, exist_ok=True)
    # A prompt from a terminal may hold half a surrogate pair, which UTF-8 has no bytes for.
    with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(json.dumps(row, ensure_ascii=False) + "\n")
