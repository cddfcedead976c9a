"""The base class of every section of params.yaml, and the common types of values."""

import difflib
from collections.abc import Callable, Collection, Iterator
from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from lib.core.plugins import is_plugin
from lib.params.engines import ENGINES

HELD_BACK_SET = "validation"
"""Set name of the problems that `prepare.validation_share` holds back."""


def suggest(name: str, known: Collection[str]) -> str:
    """Return a hint for an unknown name: "did you mean `seed`?", or a list of the known names."""
    # Either, not both: the nearest name would be lost in a list of all names.
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean `{near[0]}`?" if near else f"there are {', '.join(known)}"


def one_of(
    names: Collection[str] | Callable[[], Collection[str]], *, role: str = ""
) -> AfterValidator:
    """Return a pydantic validator that accepts one of the names, or a plugin of this role.

    Args:
        names: the names, or a function that returns them when a value is validated: their module
            may import this one.
        role: the plugin's folder in plugins/, such as "rewards"; '' accepts no plugin.
    """

    def check(name: str) -> str:
        """Return `name` unchanged; raise ValueError unless it is in `names` or a plugin of `role`.

        `names` and `role` are the arguments of `one_of`; with '' as `role`, no plugin is accepted.
        """
        if role and is_plugin(name, role=role):
            return name
        if role and name.startswith("plugins/"):
            raise ValueError(f"expected plugins/{role}/file.py:name, got {name!r}")
        known = names() if callable(names) else names
        if name not in known:
            raise ValueError(f"no `{name}`; {suggest(name, known)}")
        return name

    return AfterValidator(check)


EngineName = Annotated[str, one_of(ENGINES)]
"""Name of an engine (`lib.params.engines`)."""

Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
BelowOne = Annotated[float, Field(ge=0, lt=1)]
Share = Annotated[float, Field(ge=0, le=1)]
NonNegative = Annotated[float, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")]


class Section(BaseModel):
    """Base of every section: it refuses unknown keys, values of another type, infinity and NaN."""

    model_config = ConfigDict(
        frozen=True,
        # YAML's `yes` or '8' must not pass as true or 8.
        strict=True,
        extra="forbid",
        # `.inf` and `.nan` are valid YAML numbers.
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )

    def contradictions(self) -> Iterator[str]:
        """Yield a line for each contradiction between settings of this section."""
        return iter(())

    @model_validator(mode="after")
    def _without_contradictions(self) -> Self:
        if faults := tuple(self.contradictions()):
            # One argument per contradiction: `parse_section` makes a line of each.
            raise ValueError(*faults)
        return self
