"""The base of every section of params.yaml."""

import difflib
from collections.abc import Callable, Collection, Iterator
from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from lib.core.plugins import is_plugin
from lib.engines.registry import ENGINES

HELD_BACK_SET = "validation"
"""Set name of the problems that `prepare.validation_share` holds back."""


def suggest(name: str, known: Collection[str]) -> str:
    """Return the nearest of the known names, or all of them."""
    # Only the nearest name, which a list of all names would hide.
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean `{near[0]}`?" if near else f"there are {', '.join(known)}"


def one_of(
    names: Collection[str] | Callable[[], Collection[str]], *, role: str = ""
) -> AfterValidator:
    """Return a validator for a registry's names, or a plugin of this role ('' for none).

    Args:
        names: the names, or a function that returns them if their registry imports params.
    """

    def check(name: str) -> str:
        if role and is_plugin(name, role=role):
            return name
        # The name is a plugin of another role, or names no object in its file.
        if role and name.startswith("plugins/"):
            raise ValueError(f"expected plugins/{role}/file.py:name, got {name!r}")
        known = names() if callable(names) else names
        if name not in known:
            raise ValueError(f"no `{name}`; {suggest(name, known)}")
        return name

    return AfterValidator(check)


EngineName = Annotated[str, one_of(ENGINES)]
"""Name of an engine (`lib.engines.registry`)."""

Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
# Below 1, since AdamW's bias correction at step t divides by 1 − decay^t.
Decay = Annotated[float, Field(ge=0, lt=1)]
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
        """List settings of this section that contradict each other."""
        return iter(())

    @model_validator(mode="after")
    def _without_contradictions(self) -> Self:
        if faults := tuple(self.contradictions()):
            # All of them: `parse_section` makes a line of each argument.
            raise ValueError(*faults)
        return self
