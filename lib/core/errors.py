"""The exception for a user's mistake.

A `UserError` reaches the terminal as `Error: <message>` with exit code 1 and without a traceback.
Any other exception also prints one line; its traceback goes to a file (`process.report_crashes`).
"""

import os
import unicodedata
from pathlib import Path
from typing import IO, Any

import click


class UserError(click.ClickException):
    """A user's mistake: file, key or row, value, expectation, and the command that repairs it."""

    def format_message(self) -> str:
        """Return the message with control characters escaped; file names and rows may hold some."""
        return visible(self.message)

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the message; of several ranks that fail, only the first prints its own."""
        if is_first_to_fail():
            super().show(file)


def is_first_to_fail() -> bool:
    """Return True if no other rank of this machine has failed before; always without torchrun.

    The first failure is the cause of the others. Call this once per process: the first call leaves
    a file, so that a second call returns False.
    """
    # torchrun sets it to a path for each rank, one/attempt_0/1/error.json; parents[1] is attempt_0.
    own = os.environ.get("TORCHELASTIC_ERROR_FILE")
    try:
        if own:
            (Path(own).parents[1] / "failed").touch(exist_ok=False)
    except OSError as error:
        # FileExistsError: another rank was first. Any other fault must not hide the message.
        return not isinstance(error, FileExistsError)
    return True


# Unicode categories: control, format, unassigned, private use, surrogate, line and paragraph
# separators. `HIDDEN` in page.js is the same set.
_HIDDEN = {"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"}


def visible(text: str) -> str:
    """Return `text` with the code of every invisible character, so that a terminal obeys none.

    Line feeds and tabs stay. Control, format (text direction among them), surrogate and
    private-use characters become "⟨U+202E⟩".
    """
    return "".join(
        f"⟨U+{ord(character):04X}⟩"
        if unicodedata.category(character) in _HIDDEN and character not in "\n\t"
        else character
        for character in text
    )
