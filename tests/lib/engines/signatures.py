"""Compare the fake's signatures with the installed unsloth's; print the differences.

`UNSLOTH_ALLOW_CPU=1` lets the package be imported without a GPU. No test: CI has no unsloth.
"""

import inspect
import sys
from typing import Any

import click

FUNCTIONS = ("from_pretrained", "get_peft_model", "for_training", "for_inference")


def parameters(function: Any) -> dict[str, tuple[str, str]]:
    """Map a parameter's name to kind and default; a list or tuple becomes a list of its items."""
    return {
        name: (parameter.kind.description, _default(parameter.default))
        for name, parameter in inspect.signature(function).parameters.items()
    }


def _default(value: Any) -> str:
    return str(list(value)) if isinstance(value, list | tuple) else str(value or None)


def main() -> None:
    """Compare, and exit with 1 if signatures differ."""
    from unsloth import FastLanguageModel  # type: ignore[import-not-found]

    from tests.lib.engines.fake_unsloth import Calls, made

    fake = made(Calls(), None)
    differ = False
    for name in FUNCTIONS:
        real, ours = (parameters(getattr(each, name)) for each in (FastLanguageModel, fake))
        for parameter in sorted(real.keys() | ours.keys()):
            if real.get(parameter) != ours.get(parameter):
                differ = True
                click.echo(f"{name}({parameter}): {real.get(parameter)}, not {ours.get(parameter)}")
    click.echo("the signatures differ" if differ else f"equal: {', '.join(FUNCTIONS)}")
    sys.exit(differ)


if __name__ == "__main__":
    main()
