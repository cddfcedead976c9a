"""The commands of `./reckon`: what is no stage of the DAG. Each file with a `main` is one command.

The first line of a file's docstring is its help: listing the commands imports none of them.
"""

import ast
import importlib
from pathlib import Path

import click
from click.shell_completion import CompletionItem

GROUPS = {
    "Run": ("plan", "preset", "fetch", "doctor", "study"),
    "Look": (
        *("summary", "compare", "experiments", "serve", "solve"),
        *("evaluate", "grade", "compare-logs", "audit-reward", "debug-rollouts"),
    ),
    "Data": ("data", "benchmarks", "difficulty"),
    "GPU": ("memory-probe", "vllm-server", "serve-model"),
    "Share": ("push",),
}


class Commands(click.Group):
    """The files of this folder, imported only when they run."""

    def list_commands(self, context: click.Context) -> list[str]:
        return [name for names in GROUPS.values() for name in names]

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in self.list_commands(context):
            return None
        # Prepares the process, as for a stage.
        importlib.import_module("stages")
        command: click.Command = importlib.import_module(f"commands.{_module(name)}").main
        return command

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        for group, names in GROUPS.items():
            with formatter.section(group):
                formatter.write_dl([(name, _help(name)) for name in names])

    def shell_complete(self, context: click.Context, incomplete: str) -> list[CompletionItem]:
        names = [name for name in self.list_commands(context) if name.startswith(incomplete)]
        options = click.Command.shell_complete(self, context, incomplete)
        return [CompletionItem(name, help=_help(name)) for name in names] + options


@click.command(cls=Commands)
def main() -> None:
    """Everything around the pipeline, which itself is `make repro`.

    Paths are relative to the checkout. Completion in bash (or zsh, fish):
    eval "$(_RECKON_COMPLETE=bash_source ./reckon)"
    """


def _module(name: str) -> str:
    return name.replace("-", "_")


def _help(name: str) -> str:
    """Return the first line of a command's docstring, without its full stop."""
    source = Path(__file__).with_name(f"{_module(name)}.py").read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0].removesuffix(".")
