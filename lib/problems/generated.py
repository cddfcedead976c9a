"""The built-in generator of multi-step word problems with worked solutions.

Each problem is a function of (seed, split, index) only: its random numbers come from a hash of the
three, so that neither the number of problems nor the others matter. Splits cannot share a problem:
each owns one bucket of the content hash, and a problem is drawn anew until its text falls into the
bucket of its split.
"""

import dataclasses
import hashlib
import operator
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from lib.artifacts.problems import Problem
from lib.core.errors import UserError
from lib.params.data import Synthetic

SPLIT_BUCKETS: dict[str, int] = {
    "sft": 0,
    "grpo": 1,
    "validation": 2,
    "test": 3,
    "test_harder": 4,
}
NUM_BUCKETS = 8
"""More than there are splits: a further split leaves the problems of these as they are."""

UNSEEN_EQUATIONS = "unseen_equations"
DISTRACTOR = "distractor"

_WORDING = YAML(typ="safe").load(Path(__file__).with_name("stories.yaml"))
PEOPLE: list[tuple[str, str, str]] = [tuple(person) for person in _WORDING["people"]]
STORIES: list[dict[str, Any]] = _WORDING["stories"]

OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.floordiv,  # nothing remains, see `equation_chain`
}

_WRITTEN = re.compile(r"(\d{1,9}) ?([-+*/]) ?(\d{1,9}) ?= ?(\d{1,9})(?!\d)")


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
    demonstrated, only_harder = settings.levels_of("sft"), (0.0,) * (settings.harder_level - 1)
    levels = {
        "sft": demonstrated,
        "grpo": settings.levels_of("grpo"),
        "test": demonstrated,
        "test_harder": (*only_harder, 1.0),
    }
    sizes = (settings.num_sft, settings.num_grpo, settings.num_held_out, settings.num_harder)
    sft, grpo, held_out, harder = (
        _distinct(
            split, size, settings.model_copy(update={"level_weights": levels[split]}), seed=seed
        )
        for split, size in zip(levels, sizes, strict=True)
    )
    benchmarks = {"held_out": held_out, "harder": harder}
    training = [*sft, *grpo]
    return GeneratedSets(
        sft=list(shorten_solutions(sft, share=settings.bare_answer_rate, seed=seed)),
        grpo=grpo,
        benchmarks={
            name: list(tag_unseen_equations(problems, training=training))
            for name, problems in benchmarks.items()
        },
    )


def _distinct(split: str, count: int, settings: Synthetic, *, seed: int) -> list[Problem]:
    """The first `count` different problems; a few one-step stories come up twice.

    Raises:
        UserError: so narrow settings have not so many different problems.
    """
    different: dict[str, Problem] = {}
    for problem in generate(split=split, seed=seed, count=2 * count + 50, settings=settings):
        if len(different) == count:
            break
        different.setdefault(problem.id, problem)
    if len(different) < count:
        raise UserError(
            f"prepare.synthetic: {count} problems for `{split}`, but only {len(different)} "
            "different ones exist; raise max_operand or max_value, or set fewer"
        )
    return list(different.values())


def generate(*, split: str, seed: int, count: int, settings: Synthetic) -> Iterator[Problem]:
    """The first `count` problems of `split`; `level` is the number of steps.

    The worked solution is one equation per line, the reference the value of the last one.
    Within a split the same text can come up twice (rarely, and only for one-step problems).
    """
    weights = settings.levels_of("sft")
    levels = range(1, len(weights) + 1)
    for index in range(count):
        rng = random.Random(_digest(f"{seed}:{split}:{index}"))
        (level,) = rng.choices(levels, weights)
        problem = _problem(rng, level, settings)
        while bucket(problem) != SPLIT_BUCKETS[split]:
            problem = _problem(rng, level, settings)
        yield problem


def bucket(problem: Problem) -> int:
    """Which of the `NUM_BUCKETS` classes of content `problem` belongs to."""
    return int(problem.id, 16) % NUM_BUCKETS


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest())


# The order of the calls of `rng` below decides every problem: another order makes other data.


def _problem(rng: random.Random, level: int, settings: Synthetic) -> Problem:
    story = rng.choice(STORIES)
    chain = equation_chain(rng, num_steps=level, settings=settings)
    has_distractor = rng.random() < settings.distractor_rate
    return Problem.create(
        problem=_tell(rng, story, chain, settings.max_operand if has_distractor else 0),
        reference=str(chain[-1].value),
        solution="\n".join(map(str, chain)),
        subject=story["subject"],
        level=level,
        tags=(DISTRACTOR,) if has_distractor else (),
    )


@dataclasses.dataclass(frozen=True)
class Equation:
    """`left operation right`; a quotient is whole by construction."""

    left: int
    operation: str
    right: int

    @property
    def value(self) -> int:
        return OPERATIONS[self.operation](self.left, self.right)

    def __str__(self) -> str:
        return f"{self.left} {self.operation} {self.right} = {self.value}"


def equation_chain(
    rng: random.Random, *, num_steps: int, settings: Synthetic
) -> tuple[Equation, ...]:
    """Equations each of which continues from the value of the one before.

    Every value on the way is at least 1, the last one at least 0. Each operation that is possible
    at a step is equally likely there, then each operand that it admits.
    """
    chain: list[Equation] = []
    value = rng.randint(2, settings.max_operand)
    factors = range(2, settings.max_factor + 1)
    for step in range(num_steps):
        smallest = 0 if step == num_steps - 1 else 1
        most_added = min(settings.max_operand, settings.max_value - value)
        most_taken = min(settings.max_operand, value - smallest)
        operands: dict[str, Sequence[int]] = {
            "+": range(1, most_added + 1),
            "-": range(1, most_taken + 1),
            "*": [factor for factor in factors if value * factor <= settings.max_value],
            "/": [factor for factor in factors if value % factor == 0],
        }
        operation = rng.choice(sorted(name for name in operands if operands[name]))
        chain.append(Equation(value, operation, rng.choice(operands[operation])))
        value = chain[-1].value
    return tuple(chain)


def _tell(
    rng: random.Random, story: Mapping[str, Any], chain: Sequence[Equation], max_distractor: int
) -> str:
    """`chain` in the words of `story`, with a distractor up to `max_distractor`, 0 for none."""
    (name, she, her), (friend, _, _) = rng.sample(PEOPLE, 2)
    words = {"name": name, "she": she, "She": she.capitalize(), "her": her, "friend": friend}
    words["things"] = rng.choice(story["things"])
    first, moves = chain[0], chain[1:]
    if rng.random() < 0.5:
        start = rng.choice(story["starts"][first.operation])
        sentences = [start.format(a=first.left, b=first.right, **words)]
    else:
        sentences, moves = [rng.choice(story["openings"]).format(n=first.left, **words)], chain
    for equation in moves:
        move = rng.choice(story["moves"][equation.operation])
        sentences.append(move.format(n=equation.right, **words))
    if max_distractor:
        fact = rng.choice(story["distractors"])
        number = rng.randint(2, max_distractor)
        place = rng.randint(1, len(sentences))
        sentences.insert(place, fact.format(n=number, **words))
    return " ".join([*sentences, rng.choice(story["questions"]).format(**words)])


def shorten_solutions(problems: Iterable[Problem], *, share: float, seed: int) -> Iterator[Problem]:
    """Take the worked solution away from about `share` of the problems, leaving the bare answer.

    Which ones depends on `seed` and each problem's text only; a larger share only adds to them.
    """
    for problem in problems:
        position = _digest(f"{seed}:shorten:{problem.id}") / 2**256
        yield dataclasses.replace(problem, solution="") if position < share else problem


def written_equations(text: str) -> tuple[str, ...]:
    """The equations written in `text`, in order and evenly spaced, right or wrong.

    For a generated solution this is its equation sequence: operations with operands and values.
    """
    return tuple(
        f"{left} {operation} {right} = {value}"
        for left, operation, right, value in _WRITTEN.findall(text)
    )


def tag_unseen_equations(
    problems: Iterable[Problem], *, training: Iterable[Problem]
) -> Iterator[Problem]:
    """Tag with `UNSEEN_EQUATIONS` whatever has an equation sequence that no `training` problem has.

    `training` must still have its worked solutions: call this before `shorten_solutions`.
    """
    seen = {written_equations(problem.solution) for problem in training}
    for problem in problems:
        unseen = written_equations(problem.solution) not in seen
        tags = (*problem.tags, UNSEEN_EQUATIONS) if unseen else problem.tags
        yield dataclasses.replace(problem, tags=tags)
