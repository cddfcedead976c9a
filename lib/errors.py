"""The one exception that a user's mistake raises.

A `UserError` reaches the terminal as `Error: <message>` with exit code 1 and without a traceback
(`lib.cli`). Whatever else is raised is a bug and crashes with one.
"""

import os
import sys
from errno import ENOSPC
from types import TracebackType

import click


class UserError(click.ClickException):
    """What is wrong (file, key or row, value), what was expected, and the command that mends it."""


def explain_full_disk() -> None:
    """Let a full disk, whichever library meets it, end the process with one line."""
    sys.excepthook = _one_line_for_a_full_disk


def _one_line_for_a_full_disk(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    # safetensors and torch raise errors of their own that quote the system's words.
    if os.strerror(ENOSPC) not in str(error):
        sys.__excepthook__(kind, error, trace)
        return
    click.echo(
        f"Error: the disk is full ({error}); make room (`dvc gc --workspace` removes what no "
        "commit here uses) and run the same again: training resumes from its last checkpoint",
        err=True,
    )
