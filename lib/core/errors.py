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
    """A user's mistake, printed without a traceback, mostly on one line.

    The message names the file, key or row, the value, the expectation, and the command that repairs
    it: "train.jsonl:3: not a problem record (KeyError: 'tags'); … run `dvc repro prepare`".
    """

    def format_message(self) -> str:
        """Return the message with control characters escaped; file names and rows may hold some."""
        return visible(self.message)

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the message; if several ranks fail, only the first rank prints."""
        if is_first_to_fail():
            super().show(file)


def is_first_to_fail() -> bool:
    """Return True if this process is the first rank on its machine to fail; True without torchrun.

    The first failure causes the others. Call this once per process: the call creates a marker file,
    so that a second call returns False.
    """
    # torchrun gives each rank its own path, for rank 1 <logs>/attempt_0/1/error.json. The marker
    # <logs>/attempt_0/failed is common to all ranks of the machine.
    error_file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if error_file:
        try:
            # exist_ok=False: only one rank can create the file.
            (Path(error_file).parents[1] / "failed").touch(exist_ok=False)
        except FileExistsError:  # another rank created it
            return False
        except OSError:  # such as a full disk: this must not hide the rank's own message
            return True
    return True


# Unicode categories: control, format, unassigned, private use, surrogate, line and paragraph
# separators. `HIDDEN` in page.js is the same set.
_HIDDEN = {"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"}


def first_line(error: object) -> str:
    """Return the first line of an error's message, or its type's name if it has none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def shorten(text: str, limit: int) -> str:
    """Return the first `limit` characters of `text`, with a note on how many are left out."""
    left_out = len(text) - limit
    return text if left_out <= 0 else f"{text[:limit]} … ({left_out:,} more characters)"


def visible(text: str) -> str:
    """Replace each invisible character by its code point: "a\\u202eb" -> "a⟨U+202E⟩b".

    A terminal would obey control characters and changes of text direction. Line feeds and tabs
    stay.
    """
    return "".join(
        f"⟨U+{ord(character):04X}⟩"
        if unicodedata.category(character) in _HIDDEN and character not in "\n\t"
        else character
        for character in text
    )
