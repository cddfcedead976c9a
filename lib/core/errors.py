"""The one exception that a user's mistake raises.

A `UserError` reaches the terminal as `Error: <message>` with exit code 1 and without a traceback.
Whatever else is raised is a bug and crashes with one.
"""

import click


class UserError(click.ClickException):
    """What is wrong (file, key or row, value), what was expected, and the command that mends it."""
