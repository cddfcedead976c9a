"""Sections of params.yaml on how checkpoints are measured, and which one leaves the pipeline."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from lib.params.data import Once, first_repeated
from lib.params.section import Count, EngineName, Name, Positive, PositiveFloat, Section

Checkpoint = Literal["base", "sft", "grpo", "dpo"]


class Decoding(Section):
    """How a benchmark is answered: greedily, by sampling, or both."""

    greedy: bool
    """One completion per problem at temperature 0."""
    num_samples: Count
    """Sampled completions per problem (k of pass@k and maj@k); 0 for none."""
    temperature: PositiveFloat
    """Temperature of the sampled completions."""
    top_p: Annotated[float, Field(gt=0, le=1)]
    """Nucleus of the sampled completions."""
    max_new_tokens: Positive
    """Longest completion."""

    @model_validator(mode="after")
    def _measures_something(self) -> Self:
        if not self.greedy and not self.num_samples:
            raise ValueError("greedy=false and num_samples=0 leave nothing to measure")
        return self


class Override(Decoding):
    """The decoding of one benchmark, in place of that of all."""

    benchmark: Name
    """Which of `evaluate.benchmarks`."""


class Evaluate(Decoding):
    """How checkpoints are measured."""

    checkpoints: Annotated[tuple[Checkpoint, ...], Field(min_length=1), Once]
    """Checkpoints that are evaluated, in the order of training."""
    benchmarks: Annotated[tuple[Name, ...], Field(min_length=1), Once]
    """Sets of held-out problems; the first is the headline."""
    engine: EngineName
    """What generates the completions; changes speed, and rounding."""
    overrides: tuple[Override, ...]
    """Benchmarks that are answered in another way; [] for none."""
    batch_size: Positive
    """Sequences generated at a time; changes speed and memory, and rounding."""

    @model_validator(mode="after")
    def _overrides_apply(self) -> Self:
        named = [override.benchmark for override in self.overrides]
        if twice := first_repeated(named):
            raise ValueError(f"overrides: `{twice}` is listed twice")
        for name in named:
            if name not in self.benchmarks:
                raise ValueError(
                    f"overrides: `{name}` is not in benchmarks ({', '.join(self.benchmarks)})"
                )
        return self


class Export(Section):
    """What leaves the pipeline."""

    checkpoint: Checkpoint
    """The checkpoint that is exported; it has to be evaluated too."""
    dtype: Literal["float32", "bfloat16", "float16"]
    """Type of the exported weights."""
    license: Annotated[str, Field(min_length=1)]
    """Licence that the model card states, as the Hub abbreviates it; the base model's binds you."""
    language: Annotated[str, Field(pattern=r"^[a-z]{2,3}$")]
    """Language that the model card states, as ISO 639 abbreviates it."""
    num_verified: Positive
    """Held-out prompts on which the export must repeat the checkpoint's greedy tokens."""
