"""What every section of params.yaml is made of."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

NAME = r"^[a-z0-9][a-z0-9_-]*$"

HELD_BACK = "validation"
"""Name of the problems that `prepare.validation_share` holds back."""

EngineName = Literal["transformers", "vllm", "vllm-server"]
"""What generates completions (lib/engines)."""

Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]
NonNegative = Annotated[float, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
Name = Annotated[str, Field(pattern=NAME)]


class Section(BaseModel):
    """Base of every section: unknown keys are errors, values never coerced, numbers finite."""

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="forbid",
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )
