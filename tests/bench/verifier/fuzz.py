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

LEAVES = ["1", "2", "9", "99", "10", "0", "0.1", "x", "n", "y", r"\pi", "e", "i", r"\infty"]
SHAPES = [
    *(r"\frac{%s}{%s}", "(%s)^{%s}", "%s+%s", "%s-%s", "(%s)(%s)", r"\sqrt[%s]{%s}", "%s,%s"),
    *(r"\binom{%s}{%s}", "(%s)!+%s", r"\sum_{k=1}^{%s} (%s+k)", r"\max(%s,%s)", "(%s,%s)"),
    *(r"\log_{%s} (%s)", r"\sin(%s)+\cos(%s)", r"\{%s,%s\}", "[%s,%s)", "%s<%s", "%s=%s"),
    *(r"|%s|\cdot %s", r"%s\pm %s", r"\int_{0}^{%s} %s dx", r"\prod_{k=1}^{%s} k^{%s}"),
    *(r"\lfloor %s\rfloor %s", "e^{%s}+%s", r"\Gamma(%s)+%s", r"%s\%% + %s", r"\tan(%s)^{%s}"),
    *(r"%s \cup %s", r"\begin{pmatrix}%s\\%s\end{pmatrix}", r"\lim_{x\to 0}\frac{%s}{%s}"),
    *(r"\sum_{n=1}^{\infty} \frac{%s}{%s}", r"%s \text{ cm} + %s", r"%s:%s", "%s_{%s}"),
]
PIECES = [
    *"\\{}()[],;:=<>+-*/^_!%'$~&|xie√½²−４①\n\t\0",
    *("1", "23", "0.5", "1e5", "1,000", "dx", "**", "<=", "and", "or", "is", "the answer"),
    *(r"\frac", r"\sqrt", r"\{", r"\}", r"\le", r"\in", r"\cup", r"\pm", r"\cdot", r"\pi", r"\sin"),
    *(r"\infty", r"\log_2", r"\max", r"\sum_{k=1}^{n}", r"\int_0^1", r"\lim_{x\to0}", r"\\"),
    *(r"\begin{pmatrix}", r"\end{pmatrix}", r"\text{cm}", r"\mathbb{R}", r"\left", r"\right"),
    *(r"\boxed{", r"\choose", r"\angle", r"\overline", r"\vec", r"^\circ", r"\operatorname{f}("),
    *("__import__('os')", "eval(", "lambda:"),
]


def well_formed(draw: random.Random, depth: int) -> str:
    """An expression of this depth."""
    if depth == 0:
        return draw.choice(LEAVES)
    first = well_formed(draw, depth - 1)
    return draw.choice(SHAPES) % (first, well_formed(draw, depth - draw.randint(1, depth)))


def malformed(draw: random.Random) -> str:
    """Pieces in any order."""
    length = draw.choice([1, 2, 3, 5, 8, 13, 30, 100, 1000])
    return draw.choice(["", " "]).join(draw.choice(PIECES) for _ in range(length))


def drawn(draw: random.Random) -> str:
    """An answer of either sort."""
    return well_formed(draw, draw.randint(1, 6)) if draw.random() < 0.6 else malformed(draw)


@click.command(help=__doc__)
@click.option("--seed", default=0, show_default=True)
@click.option("--count", default=5000, show_default=True)
def main(seed: int, count: int) -> None:
    """Grade `count` random pairs and print the slowest and what decided."""
    draw = random.Random(seed)
    compare(reference="1", answer=r"\int_0^1 2x dx")
    steps: collections.Counter[str] = collections.Counter()
    slowest: list[tuple[float, str, str]] = []
    for _ in range(count):
        reference, answer = well_formed(draw, draw.randint(0, 4)), drawn(draw)
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
