"""The built-in generator of multi-step word problems with worked solutions.

::

    Greta has 5 marbles and finds 7 more. Greta finds 3 more marbles. A month later Greta has 2
    times as many marbles. How many marbles does Greta have now?

    5 + 7 = 12
    12 + 3 = 15
    15 * 2 = 30

A hash of seed, split and index seeds each problem's random numbers: a problem depends neither on
other problems nor on their number. No two splits share a problem (or, by `split_by`, a
sequence of equations): each split owns one bucket of the content hash, and a problem is drawn again
until its text (or its equations) falls into its split's bucket.
"""

import dataclasses
import hashlib
import operator
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal

from ruamel.yaml import YAML

from lib.artifacts.problems import UNSEEN_EQUATIONS, Problem, content_id
from lib.core.errors import UserError
from lib.params.data import Synthetic

# The names enter each problem's seed: renaming a split changes its problems.
SPLIT_BUCKETS: dict[str, int] = {
    "sft": 0,
    "grpo": 1,
    "validation": 2,
    "test": 3,
    "test_harder": 4,
}
NUM_BUCKETS = 8
"""More than there are splits, so that a new split leaves the problems of the others unchanged."""
MOST_DRAWS = 10_000
"""Draws of one problem; `NUM_BUCKETS` are enough on average, unless few different ones exist."""

DISTRACTOR = "distractor"
"""Tag of problems with a fact that the answer does not need."""

OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.floordiv,  # exact: `equation_chain` picks only divisors
}

WORDING_FILES = {"short": ("stories.yaml",), "wide": ("stories.yaml", "stories_wide.yaml")}
"""Files of sentences by `wording`."""


@cache
def wording(name: str) -> dict[str, list[Any]]:
    """Read the sentences of a wording (`prepare.synthetic.wording`: "short" or "wide").

    Sentences have fields in braces: "{name} has {a} {things} and finds {b} more." The lists of all
    files of the wording are joined by key:

        people   [name, subject pronoun, possessive] of each, such as ["Elif", "she", "her"]
        stories  a mapping for each setting: its things, and sentences by operation
        whens    times and places that open a sentence, for `wide` only
    """
    joined: dict[str, list[Any]] = defaultdict(list)
    for file in WORDING_FILES[name]:
        text = Path(__file__).with_name(file).read_text(encoding="utf-8")
        for key, entries in YAML(typ="safe").load(text).items():
            joined[key] += entries
    return joined


@dataclasses.dataclass(frozen=True)
class GeneratedSets:
    """Disjoint sets: `sft` with solutions to learn, `grpo`, and the benchmarks.

    Attributes:
        benchmarks: `held_out`, with the levels of SFT, and `harder`.
    """

    sft: list[Problem]
    grpo: list[Problem]
    benchmarks: dict[str, list[Problem]]

    def named(self, name: str) -> list[Problem]:
        return {"sft": self.sft, "grpo": self.grpo, **self.benchmarks}[name]


@lru_cache(maxsize=1)
def synthetic_sets(settings: Synthetic, *, seed: int) -> GeneratedSets:
    """Generate all sets; no problem occurs twice, in one set or in two.

    Benchmark problems with an equation sequence in neither training set are tagged with
    `UNSEEN_EQUATIONS`: they cannot be solved from memory. The last result is cached: `prepare`
    calls this again for every source that names one of the sets.
    """
    sft_levels = settings.levels_of("sft")
    # Split → (number of problems, weights of levels 1, 2, …). The benchmark `held_out`, split
    # "test", has SFT's levels; GRPO may train on other ones.
    splits = {
        "sft": (settings.num_sft, sft_levels),
        "grpo": (settings.num_grpo, settings.levels_of("grpo")),
        "test": (settings.num_held_out, sft_levels),
        # Only problems of `harder_level`: weight 0 for all levels below it, then 1.
        "test_harder": (settings.num_harder, (0.0,) * (settings.harder_level - 1) + (1.0,)),
    }
    # Each split is generated with its own weights in place of `level_weights`.
    sft, grpo, held_out, harder = (
        _distinct(split, count, settings.model_copy(update={"level_weights": weights}), seed=seed)
        for split, (count, weights) in splits.items()
    )
    # `sft` has complete solutions: the training equations are read from them.
    training = [*sft, *grpo]
    return GeneratedSets(
        # SFT gets its problems with some of the solutions emptied.
        sft=list(shorten_solutions(sft, share=settings.bare_answer_rate, seed=seed)),
        grpo=grpo,
        benchmarks={
            "held_out": list(tag_unseen_equations(held_out, training=training)),
            "harder": list(tag_unseen_equations(harder, training=training)),
        },
    )


def _distinct(split: str, count: int, settings: Synthetic, *, seed: int) -> list[Problem]:
    """Return the first `count` different problems of a split.

    The generator repeats a few problems, which are left out here.

    Raises:
        UserError: the settings are too narrow for so many different problems.
    """
    # Id, a hash of the text → problem.
    different: dict[str, Problem] = {}
    # Twice the number and 50 more contain enough different ones, unless the settings are narrow.
    for problem in generate_problems(
        split=split, seed=seed, count=2 * count + 50, settings=settings
    ):
        if len(different) == count:
            break
        different.setdefault(problem.id, problem)
    if len(different) < count:
        raise UserError(
            f"prepare.synthetic: {count} problems for `{split}`, but only {len(different)} "
            "different ones were drawn; raise max_operand or max_value, or set fewer"
        )
    return list(different.values())


def generate_problems(
    *, split: str, seed: int, count: int, settings: Synthetic
) -> Iterator[Problem]:
    """Yield the first `count` problems of `split`; a problem's `level` is its number of steps.

    The worked solution is one equation per line, the reference the value of the last one.
    Within a split a text can occur twice (rarely, and mostly for one-step problems).

    Args:
        split: "sft", "grpo", "test" or another key of `SPLIT_BUCKETS`; part of each problem's seed.
        settings: its `level_weights` are the weights of levels 1, 2, ….

    Raises:
        UserError: the settings are too narrow: no problem is of the split's bucket.
    """
    # `level_weights` may be a list for each training set; SFT's then holds for every split here.
    weights = settings.levels_of("sft")
    levels = range(1, len(weights) + 1)
    for index in range(count):
        # One random generator per problem, so that no draw depends on another problem.
        rng = random.Random(_digest(f"{seed}:{split}:{index}"))
        (level,) = rng.choices(levels, weights)
        # Drawn again until the hash falls into the split's own bucket, so that no other split can
        # have the problem. On average this takes NUM_BUCKETS draws.
        for _ in range(MOST_DRAWS):
            problem = _problem(rng, level, settings)
            if bucket(problem, by=settings.split_by) == SPLIT_BUCKETS[split]:
                break
        else:
            raise UserError(
                f"prepare.synthetic: no problem of level {level} for `{split}`; raise max_operand "
                "or max_value, or set split_by to text"
            )
        yield problem


def bucket(problem: Problem, *, by: Literal["text", "equations"]) -> int:
    """Return the bucket, from 0 to `NUM_BUCKETS` - 1, of a problem's text or equations."""
    content = int(_text_id(problem), 16) if by == "text" else _digest(problem.solution)
    return content % NUM_BUCKETS


def _text_id(problem: Problem) -> str:
    """Return the hash of the lower-case text, on which the generator's choices have always been."""
    return content_id(problem.problem.lower())


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest())


# The order of `rng` calls below decides every problem: another order makes other data.


def _problem(rng: random.Random, level: int, settings: Synthetic) -> Problem:
    """Draw a problem of `level` steps: a story, a chain of equations, and the text that tells it.

    The problem may be in any split's bucket.
    """
    words = wording(settings.wording)
    story = rng.choice(words["stories"])
    chain = equation_chain(rng, num_steps=level, settings=settings)
    # Drawn even at a rate of 0, so that the rate does not change the later draws.
    has_distractor = rng.random() < settings.distractor_rate
    max_distractor = settings.max_operand if has_distractor else 0
    return Problem.create(
        problem=_story_text(rng, words, story, chain, max_distractor),
        reference=str(chain[-1].value),
        # One line per equation: "5 + 7 = 12".
        solution="\n".join(map(str, chain)),
        subject=story["subject"],
        level=level,
        tags=(DISTRACTOR,) if has_distractor else (),
    )


@dataclasses.dataclass(frozen=True)
class Equation:
    """One equation, `left operation right`; a quotient is whole by construction."""

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
    """Draw a chain of equations, each starting from the value of the one before.

    12 + 3 = 15, 15 - 5 = 10, 10 / 2 = 5

    Every intermediate value is at least 1, the last at least 0, and none is above
    `settings.max_value`. At each step all possible operations are equally likely, then all operands
    that the chosen operation admits.
    """
    chain: list[Equation] = []
    value = rng.randint(2, settings.max_operand)
    factors = range(2, settings.max_factor + 1)
    for step in range(num_steps):
        # Only the last value may be 0: a later step could subtract nothing from it.
        smallest = 0 if step == num_steps - 1 else 1
        most_added = min(settings.max_operand, settings.max_value - value)
        most_taken = min(settings.max_operand, value - smallest)
        # For each operation, the operands that keep the value in bounds; if there are none, the
        # operation cannot be drawn.
        operands: dict[str, Sequence[int]] = {
            "+": range(1, most_added + 1),
            "-": range(1, most_taken + 1),
            "*": [factor for factor in factors if value * factor <= settings.max_value],
            "/": [factor for factor in factors if value % factor == 0],
        }
        # Sorted, so that the draw does not depend on the order of the mapping.
        operation = rng.choice(sorted(name for name in operands if operands[name]))
        chain.append(Equation(value, operation, rng.choice(operands[operation])))
        value = chain[-1].value
    return tuple(chain)


def _story_text(
    rng: random.Random,
    wording: Mapping[str, Sequence[Any]],
    story: Mapping[str, Any],
    chain: Sequence[Equation],
    max_distractor: int,
) -> str:
    """Tell `chain` in the words of `story`: a sentence per equation, then the question.

    Args:
        wording: "people", each [name, subject pronoun, possessive], and "whens", times and places
            that open a sentence.
        story: "things", plural by singular, and sentences with fields in braces, such as
            "{name} finds {more}.": "starts" and "moves" by operation, "openings", "distractors" and
            "questions".
        max_distractor: largest number of a distractor, a fact that the answer does not need; 0
            for no distractor.
    """
    (name, she, her), (friend, _, _) = rng.sample(wording["people"], 2)
    # Values of the fields in braces.
    words = {"name": name, "she": she, "her": her, "friend": friend}
    thing, words["things"] = rng.choice(list(story["things"].items()))
    first = chain[0]
    if rng.random() < 0.5:
        # One sentence for the whole first equation: "Greta has 5 marbles and finds 7 more."
        start = rng.choice(story["starts"][first.operation])
        sentences = [start.format(a=first.left, b=first.right, **words)]
        remaining = chain[1:]
    else:
        # A sentence for its first number only, "Greta has 5 marbles."; the loop below tells its
        # operation.
        sentences = [rng.choice(story["openings"]).format(n=first.left, **words)]
        remaining = chain
    for equation in remaining:
        move = rng.choice(story["moves"][equation.operation])
        if "{when}" in move:
            words["when"] = rng.choice(wording["whens"])
        # The left number is the value so far, which the text does not repeat.
        n = equation.right
        noun = thing if n == 1 else words["things"]
        sentences.append(move.format(n=n, some=f"{n} {noun}", more=f"{n} more {noun}", **words))
    if max_distractor:
        fact = rng.choice(story["distractors"])
        number = rng.randint(2, max_distractor)
        # From 1: the first sentence introduces the person, so the distractor comes after it.
        place = rng.randint(1, len(sentences))
        sentences.insert(place, fact.format(n=number, **words))
    return " ".join([*sentences, rng.choice(story["questions"]).format(**words)])


def shorten_solutions(problems: Iterable[Problem], *, share: float, seed: int) -> Iterator[Problem]:
    """Empty about `share` of the worked solutions, so that SFT learns only the bare answer there.

    The choice depends only on `seed` and each problem's text: a larger share empties the same
    solutions and some more.
    """
    for problem in problems:
        # The 256-bit hash as a number in [0, 1), uniform over problems.
        position = _digest(f"{seed}:shorten:{_text_id(problem)}") / 2**256
        yield dataclasses.replace(problem, solution="") if position < share else problem


def tag_unseen_equations(
    problems: Iterable[Problem], *, training: Iterable[Problem]
) -> Iterator[Problem]:
    """Yield the problems, tagged `UNSEEN_EQUATIONS` if no training problem has the same equations.

    The equations are the sequence in the worked solution, so `training` must still have its
    solutions: call this before `shorten_solutions`.
    """
    seen = {problem.solution for problem in training}
    for problem in problems:
        unseen = problem.solution not in seen
        tags = (*problem.tags, UNSEEN_EQUATIONS) if unseen else problem.tags
        yield dataclasses.replace(problem, tags=tags)
