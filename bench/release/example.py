"""The example of docs/compare.md: the default against half of its GRPO steps.

`make release` runs both, as its commands would, and stores their grades.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from dvc.api import DVCFileSystem

from lib.report.compare import graded_rows, params_table, summarize
from lib.report.comparisons import Comparison, problem_grades
from lib.stats import paired_difference

RECORD = Path("bench/release/example.json")
EXPERIMENT = "release-example"
STEPS = "grpo.max_steps"
SIDES = ("HEAD", "workspace")
CURVES = "file:///home/you/reckon/data/scratch/compare/index.html"

Grades = dict[str, dict[str, str]]
"""Set and mode → side → number of right completions by problem, one digit each."""


def grades_of(experiment: str) -> Grades:
    """Read the grades of the last run and of an experiment; both have the same problems."""
    grades: Grades = {}
    for name, side in zip(SIDES, (DVCFileSystem(), DVCFileSystem(rev=experiment)), strict=True):
        rows = graded_rows(side, Path("data/graded/grpo.jsonl"))
        for (benchmark, mode), by_problem in problem_grades(rows).items():
            digits = "".join(str(sum(by_problem[problem])) for problem in sorted(by_problem))
            grades.setdefault(f"{benchmark} {mode}", {})[name] = digits
    return grades


def rate(digits: str, *, mode: str) -> dict[str, float]:
    """Return the share of right completions by problem."""
    return {
        str(place): int(digit) / (1 if mode == "greedy" else 8)
        for place, digit in enumerate(digits)
    }


def comparisons(grades: Grades) -> Iterator[Comparison]:
    for key, sides in grades.items():
        benchmark, mode = key.split()
        old, new = (rate(sides[name], mode=mode) for name in SIDES)
        yield Comparison(
            before="HEAD",
            after="workspace",
            benchmark=benchmark,
            mode=mode,
            change=paired_difference(before=old, after=new),
        )


def printed(steps: Mapping[str, int], grades: Grades) -> str:
    """Render the end of `make repro && make compare`, without the pointers to more."""
    old, new = ({STEPS: steps[side]} for side in SIDES)
    against = summarize(
        list(comparisons(grades)),
        params=params_table(old, new, base="HEAD", everything=False),
        base="HEAD",
        headline="held_out",
        how="paired",
        notes=[],
        curves=CURVES,
        everything=False,
    )
    lines = "\n".join(against.lines(markdown=False)).replace(against.more, "...")
    return re.sub(r"\x1b\[\d*m", "", lines)


def with_example(page: str, *, steps: Mapping[str, int], grades: Grades) -> str:
    """Replace the new number of steps and the output of `make compare`, up to the next command."""
    before, command, rest = page.partition("make repro && make compare\n")
    before = re.sub(r"\d+(?=/' params\.yaml && $)", str(steps["workspace"]), before)
    return f"{before}{command}...\n{printed(steps, grades)}\n{rest[rest.index('$ ') :]}"
