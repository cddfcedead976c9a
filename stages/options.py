"""Click options common to all stages: input and output paths."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


def reads(option: str, default: str, what: str) -> Callable[[Command], Command]:
    """Return a decorator for the option of an input path, which has to exist.

    Click checks the path before the stage imports anything heavy.

    Args:
        option: the option, like `--base`.
        default: its default path.
        what: the rest of its help, after "Reads".
    """
    return click.option(
        option,
        type=click.Path(path_type=Path),
        default=Path(default),
        show_default=True,
        callback=_existing_input,
        help=f"Reads {what}.",
    )


def writes(option: str, default: str, what: str) -> Callable[[Command], Command]:
    """Return a decorator for the option of an output path; click creates the folder around it.

    Args:
        option: the option, like `--model`.
        default: its default path.
        what: the rest of its help, after "Writes".
    """
    return click.option(
        option,
        type=click.Path(path_type=Path),
        default=Path(default),
        show_default=True,
        callback=_checked_output,
        help=f"Writes {what}.",
    )


def reads_params(command: Command) -> Command:
    """Add the option `--params`, the path of params.yaml, as the argument `params_file`."""
    # Here: `./reckon grade` does without the packages of params.
    from lib.params import PARAMS_FILE

    return click.option(
        "--params",
        "params_file",
        type=click.Path(path_type=Path),
        default=PARAMS_FILE,
        show_default=True,
        help="The params file.",
    )(command)


SECTIONS: dict[str, set[str] | None] = {}
"""Stage → the sections of params that it depends on, None for all."""


def reads_code(stage: str, sections: set[str] | None) -> Callable[[Command], Command]:
    """Return a decorator for `--code`, the stage's code manifest, which DVC compares.

    The stage only looks whether the file exists: if not, `check` has not passed before it.

    Args:
        stage: its name.
        sections: its entry in `SECTIONS`.
    """
    SECTIONS[stage] = sections
    return click.option(
        "--code",
        type=click.Path(path_type=Path),
        default=Path(f"data/checked/code/{stage}.json"),
        show_default=True,
        callback=_existing_manifest,
        expose_value=False,
        help="Reads the hashes of the stage's code, for DVC.",
    )


def _existing_manifest(context: click.Context, option: click.Parameter, path: Path) -> Path:
    if not path.exists() and not context.resilient_parsing:
        raise click.BadParameter(
            f"{path} is missing. `check` writes it: run `dvc repro check`.", param=option
        )
    return path


def _checked_output(context: click.Context, option: click.Parameter, path: Path) -> Path:
    """Return the output path, and create the folder around it.

    A folder with files is refused, unless it is the option's default: a stage replaces an output
    folder as a whole, and a folder elsewhere may hold the user's files.
    """
    if context.resilient_parsing:
        return path
    if Path(str(option.default)).suffix and path.is_dir():
        raise click.BadParameter(f"{path} is a folder; expected a file", param=option)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.BadParameter(f"{path}: {error.strerror}", param=option) from error
    if path.is_dir() and path != option.get_default(context) and any(path.iterdir()):
        raise click.BadParameter(
            f"{path} is a folder with files, which this command would replace; choose a path that "
            "does not exist",
            param=option,
        )
    return path


def _existing_input(context: click.Context, option: click.Parameter, path: Path) -> Path:
    if not path.exists() and not context.resilient_parsing:
        # A missing folder is usually a misspelt checkpoint: name the folders beside it, without
        # hidden ones. A path with a suffix is a file.
        beside = sorted(each.name for each in path.parent.glob("[!.]*") if each.is_dir())
        there = f" (there: {', '.join(beside)})" if beside and not path.suffix else ""
        raise click.BadParameter(
            f"{path} is missing{there}. An earlier stage writes it: run `dvc repro`.", param=option
        )
    return path
