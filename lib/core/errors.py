"""The exception for a user's mistake.

A `UserError` reaches the terminal as `Error: <message>` with exit code 1 and without a traceback.
Whatever else ends a stage is one line too, and its traceback a file (`process.report_crashes`).
"""

import os
from pathlib import Path
from typing import IO, Any

import click


class UserError(click.ClickException):
    """A user's mistake: file, key or row, value, expectation, and the command that repairs it."""

    def format_message(self) -> str:
        """Return the message with control characters escaped: names of files and rows may hold
        them.
        """
        return printable(self.message)

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


def printable(text: str) -> str:
    """Return the text with control characters escaped, so that a terminal obeys none of them."""
    return "".join(
        each if each.isprintable() or each in "\n\t" else each.encode("unicode_escape").decode()
        for each in text
    )
