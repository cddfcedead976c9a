"""The built-in generator's sets: SFT, GRPO, and two benchmarks, none sharing a problem."""

import dataclasses
from collections.abc import Iterable, Iterator
from itertools import islice

from lib.errors import UserError
from lib.params.data import Synthetic
from lib.problems.schema import Problem
from lib.problems.synthetic import (
    Bounds,
    GeneratorSettings,
    generate,
    shorten_solutions,
    tag_unseen_equations,
)


@dataclasses.dataclass(frozen=True)
class GeneratedSets:
    """Disjoint sets of problems: `sft` with solutions, `grpo`, `held_out` and `harder`."""

    sft: list[Problem]
    grpo: list[Problem]
    benchmarks: dict[str, list[Problem]]

    def named(self, name: str) -> list[Problem]:
        """The set that params call `name`."""
        return {"sft": self.sft, "grpo": self.grpo, **self.benchmarks}[name]


def synthetic_sets(settings: Synthetic, *, seed: int) -> GeneratedSets:
    """Generate all sets; none shares a problem with another.

    None holds a problem twice. Benchmark problems whose equation sequence occurs in neither
    training set are tagged, since those cannot be solved from memory.
    """
    training = _generator_settings(settings, settings.level_weights)
    only_harder = tuple(float(level == settings.harder_level) for level in range(1, 6))
    sft = _distinct("sft", seed=seed, count=settings.num_sft, settings=training)
    grpo = _distinct("grpo", seed=seed, count=settings.num_grpo, settings=training)
    held_out = _distinct("test", seed=seed, count=settings.num_held_out, settings=training)
    harder = _distinct(
        "test_harder",
        seed=seed,
        count=settings.num_harder,
        settings=_generator_settings(settings, only_harder),
    )
    seen = [*sft, *grpo]
    return GeneratedSets(
        sft=list(shorten_solutions(sft, share=settings.bare_answer_rate, seed=seed)),
        grpo=grpo,
        benchmarks={
            "held_out": list(tag_unseen_equations(held_out, training=seen)),
            "harder": list(tag_unseen_equations(harder, training=seen)),
        },
    )


def _generator_settings(settings: Synthetic, weights: tuple[float, ...]) -> GeneratorSettings:
    return GeneratorSettings(
        level_weights=weights,
        distractor_share=settings.distractor_rate,
        bounds=Bounds(
            max_value=settings.max_value,
            max_operand=settings.max_operand,
            max_factor=settings.max_factor,
        ),
    )


def _distinct(split: str, *, seed: int, count: int, settings: GeneratorSettings) -> list[Problem]:
    """The first `count` different problems; a few one-step stories come up twice.

    Raises:
        UserError: so narrow settings have not so many different problems to give.
    """
    twice_as_many = generate(split=split, seed=seed, count=2 * count + 50, settings=settings)
    different = list(islice(_first_of_each(twice_as_many), count))
    if len(different) < count:
        raise UserError(
            f"prepare.synthetic: {count} problems asked for `{split}`, but only {len(different)} "
            "different ones were found; raise max_operand or max_value, or ask for fewer"
        )
    return different


def _first_of_each(problems: Iterable[Problem]) -> Iterator[Problem]:
    seen: set[str] = set()
    for problem in problems:
        if problem.id not in seen:
            seen.add(problem.id)
            yield problem
