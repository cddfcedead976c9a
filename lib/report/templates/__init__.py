"""The report's templates, and the one way to fill them."""

from pathlib import Path
from typing import Any

import jinja2


def render(name: str, *, autoescape: bool, **values: Any) -> str:
    """Fill the template `name` of this folder.

    Args:
        name: file name.
        autoescape: whether values are escaped as HTML.
        values: what the template may use; a name it does not find is an error.
    """
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(source),
        autoescape=autoescape,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(name).render(**values)


def source(name: str) -> str:
    """The text of a file of this folder, as it stands."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8")
