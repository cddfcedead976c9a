"""Prompts and responses appended to a JSONL file that several writers may share.

A row is one `write` under the file's lock, followed by fsync: rows of two writers never mix, and
what was appended is on disk when the call returns. A writer that is killed can at worst leave half
a line at the end; the next one sets that right before it adds its own.
"""

import fcntl
import json
import logging
import os
from pathlib import Path
from typing import Any

_LOG = logging.getLogger(__name__)

_BLOCK = 64 * 1024


def save_prompt_and_response(path: Path, *, prompt: str, response: str, **facts: Any) -> None:
    """Append one row with a prompt, the response to it, and further facts; makes the folder.

    A last line that a kill left unfinished is removed, and a warning logged that quotes it.

    Raises:
        OSError: the row could not be written whole; the file is then as it was.
    """
    row = {"prompt": prompt, "response": response, **facts}
    line = (json.dumps(row, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        _mend_last_line(file, path)
        _append(file, line)
    finally:
        os.close(file)


def _append(file: int, line: bytes) -> None:
    """Write all of `line` or none of it, and wait until it is on disk."""
    size = os.fstat(file).st_size
    written = os.write(file, line)
    if written < len(line):
        os.ftruncate(file, size)
        raise OSError(f"wrote {written} of {len(line)} bytes (disk full?); the row was taken back")
    os.fsync(file)


def _mend_last_line(file: int, path: Path) -> None:
    size = os.fstat(file).st_size
    start = _last_line_start(file, size)
    rest = os.pread(file, size - start, start)
    if not rest:
        return
    if _is_row(rest):
        # Only the line's end is missing: nothing to lose.
        _append(file, b"\n")
        return
    os.ftruncate(file, start)
    _LOG.warning(
        "%s ended in half a line, left by a writer that was killed; removed it: %s",
        path,
        rest[:80].decode("utf-8", "replace"),
    )


def _last_line_start(file: int, size: int) -> int:
    """Where what follows the last newline begins; `size` where nothing does."""
    end = size
    while end > 0:
        start = max(end - _BLOCK, 0)
        newline = os.pread(file, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def _is_row(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False
