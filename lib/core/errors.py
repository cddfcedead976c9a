"""The exception for a user's mistake.

A `UserError` reaches the terminal as `Error: <message>` with exit code 1 and without a traceback.
Whatever else ends a stage is one line too, and its traceback a file (`process.report_crashes`).
"""

import click


class UserError(click.ClickException):
    """A user's mistake: file, key or row, value, expectation, and the command that repairs it."""

    def format_message(self) -> str:
        """Return the message with control characters escaped: names of files and rows may hold
        them.
        """
        return printable(self.message)


def printable(text: str) -> str:
    """Return the text with control characters escaped, so that a terminal obeys none of them."""
    return "".join(
        each if each.isprintable() or each in "\n\t" else each.encode("unicode_escape").decode()
        for each in text
    )
