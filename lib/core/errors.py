"""The exception for a user's mistake.

A `UserError` reaches the terminal as `Error: <message>` with exit code 1 and without a traceback.
Whatever else ends a stage is one line too, and its traceback a file (`process.report_crashes`).
"""

import os
import unicodedata
from pathlib import Path
from typing import IO, Any

import click


class UserError(click.ClickException):
    """A user's mistake: file, key or row, value, expectation, and the command that repairs it."""

    def format_message(self) -> str:
        """Return the message with control characters escaped: names of files and rows may hold
        them.
        """
        return visible(self.message)

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the message, once where it ends several ranks."""
        if is_first_to_fail():
            super().show(file)


def is_first_to_fail() -> bool:
    """Return True unless another rank of this machine has failed before, which is then the cause.

    Ask once: the answer is noted.
    """
    # torchrun's, of a rank: one/attempt_0/1/error.json
    own = os.environ.get("TORCHELASTIC_ERROR_FILE")
    try:
        if own:
            (Path(own).parents[1] / "failed").touch(exist_ok=False)
    except OSError as error:
        return not isinstance(error, FileExistsError)
    return True


# Unicode categories: control, format, unassigned, private use, surrogate, line and paragraph
# separators. `HIDDEN` in page.js is the same set.
_HIDDEN = {"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"}


def visible(text: str) -> str:
    """Return `text` with every invisible character written out, so that a terminal obeys none.

    Line feeds and tabs stay. Control, format (text direction among them), surrogate and
    private-use characters become "⟨U+202E⟩".
    """
    return "".join(
        f"⟨U+{ord(character):04X}⟩"
        if unicodedata.category(character) in _HIDDEN and character not in "\n\t"
        else character
        for character in text
    )
