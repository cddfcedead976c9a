"""Look for the parameters of the fake's functions in the installed unsloth's; print differences.

`UNSLOTH_ALLOW_CPU=1` lets the package be imported without a GPU. No test: CI has no unsloth.
"""

import inspect
import sys
from typing import Any

import click

FUNCTIONS = ("from_pretrained", "get_peft_model", "for_training", "for_inference")


def parameters(function: Any) -> dict[str, str]:
    """Map a parameter's name to its default; a list or tuple becomes a list of its items."""
    defaults = {n: p.default for n, p in inspect.signature(function).parameters.items()}
    return {
        name: str(list(value)) if isinstance(value, list | tuple) else str(value or None)
        for name, value in defaults.items()
    }


def main() -> None:
    """Compare, and exit with 1 if a parameter is missing or has another default."""
    from unsloth import FastLanguageModel  # type: ignore[import-not-found]

    from tests.lib.models.fake_unsloth import Calls, made

    fake = made(Calls(), None)
    differ = False
    for name in FUNCTIONS:
        real, ours = (parameters(getattr(each, name)) for each in (FastLanguageModel, fake))
        for parameter in ours:
            if real.get(parameter) != ours[parameter]:
                differ = True
                click.echo(f"{name}({parameter}): {real.get(parameter)}, not {ours[parameter]}")
    click.echo("the signatures differ" if differ else f"equal: {', '.join(FUNCTIONS)}")
    sys.exit(differ)


if __name__ == "__main__":
    main()
