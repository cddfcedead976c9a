"""Prompts and responses appended to a JSONL file that several writers may share.

A row is one `write` under the file's lock, followed by fsync: rows of two writers never mix, and
what was appended is on disk when the call returns. A writer that is killed can at worst leave half
a line at the end; the next one repairs that before it adds its own.
"""

import fcntl
import json
import logging
import mmap
import os
from io import FileIO
from pathlib import Path
from typing import Any

_LOG = logging.getLogger(__name__)


def save_prompt_and_response(path: Path, *, prompt: str, response: str, **facts: Any) -> None:
    """Append one row with a prompt, the response to it, and further facts; makes the folder.

    A last line that a kill left unfinished is removed, and a warning logged that quotes it.

    Raises:
        OSError: the row could not be written whole; the file is then as it was.
    """
    row = {"prompt": prompt, "response": response, **facts}
    line = (json.dumps(row, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b", buffering=0) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        _repair_last_line(file, path)
        _append(file, line)


def _append(file: FileIO, line: bytes) -> None:
    """Write all of `line` or none of it, and wait until it is on disk."""
    size = os.fstat(file.fileno()).st_size
    written = os.write(file.fileno(), line)
    if written < len(line):
        file.truncate(size)
        raise OSError(f"wrote {written} of {len(line)} bytes (disk full?); the row was taken back")
    os.fsync(file.fileno())


def _repair_last_line(file: FileIO, path: Path) -> None:
    if not os.fstat(file.fileno()).st_size:
        return  # an empty file cannot be mapped
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        start = content.rfind(b"\n") + 1
        rest = content[start:]
    if not rest:
        return
    if _is_row(rest):
        # Only the line's end is missing: nothing to lose.
        _append(file, b"\n")
        return
    file.truncate(start)
    _LOG.warning(
        "%s ended in half a line, left by a writer that was killed; removed it: %s",
        path,
        rest[:80].decode("utf-8", "replace"),
    )


def _is_row(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False
