"""Random answers, well-formed and not: none may fail, be slow or need much memory.

python -m tests.bench.verifier.fuzz --seed 0 --count 5000
"""

import collections
import random
import resource
import sys
import time

import click

from lib.verifier import compare, counters, extract_answer, reference_problem
from tests.bench.verifier.attack import TEMPLATES

LEAVES, SHAPES, PIECES = (TEMPLATES[f"fuzz: {name}"] for name in ("leaves", "shapes", "pieces"))


def well_formed(draw: random.Random, depth: int) -> str:
    """Draw an expression of this depth."""
    if depth == 0:
        return draw.choice(LEAVES)
    first = well_formed(draw, depth - 1)
    return draw.choice(SHAPES) % (first, well_formed(draw, depth - draw.randint(1, depth)))


def malformed(draw: random.Random) -> str:
    """Draw pieces in any order."""
    length = draw.choice([1, 2, 3, 5, 8, 13, 30, 100, 1000])
    return draw.choice(["", " "]).join(draw.choice(PIECES) for _ in range(length))


def random_answer(draw: random.Random) -> str:
    """Draw an answer of either sort."""
    return well_formed(draw, draw.randint(1, 6)) if draw.random() < 0.6 else malformed(draw)


@click.command(help=__doc__)
@click.option("--seed", default=0, show_default=True)
@click.option("--count", default=5000, show_default=True)
def main(seed: int, count: int) -> None:
    """Grade `count` random pairs; print the slowest and the deciding rules."""
    draw = random.Random(seed)
    compare(reference="1", answer=r"\int_0^1 2x dx")
    steps: collections.Counter[str] = collections.Counter()
    slowest: list[tuple[float, str, str]] = []
    for _ in range(count):
        reference, answer = well_formed(draw, draw.randint(0, 4)), random_answer(draw)
        began = time.perf_counter()
        steps[compare(reference=reference, answer=answer).decided_by] += 1
        extract_answer(answer)
        reference_problem(answer)
        slowest = sorted([*slowest, (time.perf_counter() - began, reference, answer)])[-3:]
    for seconds, reference, answer in reversed(slowest):
        click.echo(f"{seconds:.3f} s  {reference[:80]!r}  {answer[:120]!r}")
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    click.echo(f"{dict(steps.most_common())}\n{counters()}  {memory} MB  {sys.platform}")


if __name__ == "__main__":
    main()
