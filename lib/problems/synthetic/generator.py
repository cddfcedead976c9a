"""Multi-step word problems with worked solutions, each a function of (seed, split, index) alone.

An item's random numbers come from a hash of seed, split and index, so that neither the number of
items nor the other items matter. Splits cannot share a problem: each owns one bucket of the content
hash, and an item is drawn anew until its text falls into the bucket of its split.
"""

import dataclasses
import hashlib
import random
from collections.abc import Iterable, Iterator, Sequence

from lib.problems.schema import Problem
from lib.problems.synthetic.equations import Bounds, Equation, draw_chain, written_equations
from lib.problems.synthetic.stories import NAMES, STORIES, Story

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class GeneratorSettings:
    """What the problems of one split are like.

    Attributes:
        level_weights: relative frequency of 1, 2, 3, … steps; 0 leaves a level out.
        distractor_share: fraction of problems with a number that has no part in the answer.
        bounds: how large numbers may get.
    """

    level_weights: tuple[float, ...]
    distractor_share: float
    bounds: Bounds

    def __post_init__(self) -> None:
        if min(self.level_weights, default=-1.0) < 0 or sum(self.level_weights) <= 0:
            raise ValueError(f"level_weights: need at least one above 0, got {self.level_weights}")
        if not 0 <= self.distractor_share <= 1:
            raise ValueError(f"distractor_share: not in [0, 1]: {self.distractor_share}")


def generate(
    *, split: str, seed: int, count: int, settings: GeneratorSettings
) -> Iterator[Problem]:
    """The first `count` problems of `split`; `level` is the number of steps.

    The worked solution is one equation per line, the reference the value of the last one.
    Within a split the same text can come up twice (rarely, and only for one-step problems).

    Raises:
        ValueError: `split` is none of `SPLIT_BUCKETS`.
    """
    if split not in SPLIT_BUCKETS:
        raise ValueError(f"split: no `{split}`; there are {', '.join(SPLIT_BUCKETS)}")
    for index in range(count):
        yield _item(split=split, seed=seed, index=index, settings=settings)


def _item(*, split: str, seed: int, index: int, settings: GeneratorSettings) -> Problem:
    draws = random.Random(_digest(f"{seed}:{split}:{index}"))
    levels = range(1, len(settings.level_weights) + 1)
    (level,) = draws.choices(levels, settings.level_weights)
    while True:
        problem = _draw_problem(draws, level=level, settings=settings)
        if bucket(problem) == SPLIT_BUCKETS[split]:
            return problem


def bucket(problem: Problem) -> int:
    """Which of the `NUM_BUCKETS` classes of content `problem` belongs to."""
    return int(problem.id, 16) % NUM_BUCKETS


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest())


def _draw_problem(draws: random.Random, *, level: int, settings: GeneratorSettings) -> Problem:
    story = draws.choice(STORIES)
    chain = draw_chain(draws, num_steps=level, bounds=settings.bounds)
    distracted = draws.random() < settings.distractor_share
    return Problem.create(
        problem=_tell(draws, story, chain, settings.bounds if distracted else None),
        reference=str(chain[-1].value),
        solution="\n".join(map(str, chain)),
        subject=story.subject,
        level=level,
        tags=(DISTRACTOR,) if distracted else (),
    )


def _tell(
    draws: random.Random, story: Story, chain: Sequence[Equation], distractor: Bounds | None
) -> str:
    """`chain` in the words of `story`, with a distractor within these bounds if there are any."""
    (name, she, her), (friend, _, _) = draws.sample(NAMES, 2)
    people = {"name": name, "she": she, "She": she.capitalize(), "her": her, "friend": friend}
    words = {**people, "things": draws.choice(story.things)}
    sentences = _opening(draws, story, chain[0], words)
    for equation in chain[1:]:
        move = draws.choice(story.moves[equation.operation])
        sentences.append(move.format(n=equation.right, **words))
    if distractor is not None:
        fact = draws.choice(story.distractors)
        number = draws.randint(2, distractor.max_operand)
        place = draws.randint(1, len(sentences))
        sentences.insert(place, fact.format(n=number, **words))
    question = draws.choice(story.questions).format(**words)
    return " ".join([*sentences, question])


def _opening(
    draws: random.Random, story: Story, first: Equation, words: dict[str, str]
) -> list[str]:
    """The first equation, told at once or as a number and what happens to it."""
    if draws.random() < 0.5:
        start = draws.choice(story.starts[first.operation])
        return [start.format(a=first.left, b=first.right, **words)]
    opening = draws.choice(story.openings).format(n=first.left, **words)
    return [opening, draws.choice(story.moves[first.operation]).format(n=first.right, **words)]


def shorten_solutions(problems: Iterable[Problem], *, share: float, seed: int) -> Iterator[Problem]:
    """Take the worked solution away from about `share` of the problems, leaving the bare answer.

    Which ones depends on `seed` and each problem's text alone; a larger share only adds to them.
    """
    for problem in problems:
        drawn = _digest(f"{seed}:shorten:{problem.id}") / 2**256
        yield dataclasses.replace(problem, solution="") if drawn < share else problem


def equation_sequence(problem: Problem) -> tuple[str, ...]:
    """The equations of the worked solution: operations with operands and values, in order."""
    return written_equations(problem.solution)


def tag_unseen_equations(
    problems: Iterable[Problem], *, training: Iterable[Problem]
) -> Iterator[Problem]:
    """Tag with `UNSEEN_EQUATIONS` whatever has an equation sequence that no `training` problem has.

    `training` must still have its worked solutions: call this before `shorten_solutions`.
    """
    seen = {equation_sequence(problem) for problem in training}
    for problem in problems:
        unseen = equation_sequence(problem) not in seen
        tags = (*problem.tags, UNSEEN_EQUATIONS) if unseen else problem.tags
        yield dataclasses.replace(problem, tags=tags)
