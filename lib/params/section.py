"""What every section of params.yaml is made of."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from lib.engines.registry import ENGINES
from lib.plugins import PATTERN, is_plugin

NAME = r"^[a-z0-9][a-z0-9_-]*$"

HELD_BACK = "validation"
"""Name of the problems that `prepare.validation_share` holds back."""


def _known_engine(name: str) -> str:
    if name not in ENGINES:
        raise ValueError(f"must be one of {', '.join(map(repr, ENGINES))}, got {name!r}")
    return name


EngineName = Annotated[str, AfterValidator(_known_engine)]
"""What generates completions (`lib.engines.registry`)."""

Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Decay = Annotated[float, Field(ge=0, lt=1)]
Share = Annotated[float, Field(ge=0, le=1)]
NonNegative = Annotated[float, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
Name = Annotated[str, Field(pattern=NAME)]
Part = Annotated[str, Field(pattern=f"{NAME}|{PATTERN}")]
"""A name that a registry knows, or `plugins/file.py:name` (`lib.plugins`)."""


def one_of(*names: str) -> AfterValidator:
    """One of `names`, or a plugin."""

    def check(name: str) -> str:
        if name not in names and not is_plugin(name):
            known = ", ".join(map(repr, names))
            raise ValueError(f"must be one of {known}, or plugins/file.py:name; got {name!r}")
        return name

    return AfterValidator(check)


class Section(BaseModel):
    """Base of every section: unknown keys are errors, values never coerced, numbers finite."""

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="forbid",
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )
