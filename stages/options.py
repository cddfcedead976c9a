"""What every stage's command line shares: paths in, paths out, and what to do if one is missing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from lib.params import PARAMS_FILE

Command = TypeVar("Command", bound=Callable[..., Any])


def reads(option: str, default: str, what: str) -> Callable[[Command], Command]:
    """A path that an earlier stage writes; checked before anything heavy is imported."""
    return click.option(
        option,
        type=click.Path(path_type=Path),
        default=Path(default),
        show_default=True,
        callback=_must_exist,
        help=f"Reads {what}.",
    )


def writes(option: str, default: str, what: str) -> Callable[[Command], Command]:
    """A path that this stage writes; its folder is made."""
    return click.option(
        option,
        type=click.Path(path_type=Path),
        default=Path(default),
        show_default=True,
        callback=_with_folder,
        help=f"Writes {what}.",
    )


def reads_params(command: Command) -> Command:
    """`--params`: where the knobs are."""
    return click.option(
        "--params",
        "params_file",
        type=click.Path(path_type=Path),
        default=PARAMS_FILE,
        show_default=True,
        help="Reads every knob.",
    )(command)


def _must_exist(context: click.Context, option: click.Parameter, path: Path) -> Path:
    if not path.exists() and not context.resilient_parsing:
        beside = sorted(each.name for each in path.parent.glob("[!.]*") if each.is_dir())
        there = f" (there: {', '.join(beside)})" if beside and not path.suffix else ""
        raise click.BadParameter(
            f"{path} is missing{there}. An earlier stage writes it: run `dvc repro`.", param=option
        )
    return path


def _with_folder(context: click.Context, option: click.Parameter, path: Path) -> Path:
    if not context.resilient_parsing:
        path.parent.mkdir(parents=True, exist_ok=True)
    return path
