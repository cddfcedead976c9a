"""Checkpoint against checkpoint on the same problems."""

import dataclasses
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from lib.artifacts.completions import GREEDY, SAMPLED, UNGRADED, GradedCompletion
from lib.report.inputs import Run
from lib.report.text import p_value, points
from lib.stats import Difference, minimum_detectable_difference, paired_difference

MEASURES = {GREEDY: "answer_accuracy", SAMPLED: "pass_at_1"}
"""The measure of each mode that checkpoints are judged by: the mean grade of a problem."""

ALPHA = 0.05


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """One measure of one benchmark, before and after one phase of training."""

    before: str
    after: str
    benchmark: str
    mode: str
    change: Difference

    @property
    def detectable(self) -> float:
        """The smallest true difference that these problems show four times in five.

        nan where no problem changed: then nothing is known of the spread.
        """
        se, n = self.change.difference.se, self.change.difference.n
        if n < 2 or not se > 0:
            return math.nan
        return minimum_detectable_difference(sd=se * math.sqrt(n), n=n)


def compare_checkpoints(run: Run) -> list[Comparison]:
    """Every checkpoint against what it started from, on every benchmark, in both modes."""
    return [
        comparison
        for after, before in run.origins.items()
        for comparison in compare_pair(run.completions, before=before, after=after)
    ]


def compare_pair(
    completions: Mapping[str, Sequence[GradedCompletion]], *, before: str, after: str
) -> Iterator[Comparison]:
    """The comparisons of one pair, in the order of the completions.

    On the problems that both answered: each model leaves out those that are too long for it
    (`TOO_LONG=skip`).
    """
    earlier, later = problem_grades(completions[before]), problem_grades(completions[after])
    for (benchmark, mode), grades in earlier.items():
        others = later.get((benchmark, mode), {})
        if shared := [problem for problem in grades if problem in others]:
            old, new = ({key: fmean(of[key]) for key in shared} for of in (grades, others))
            yield Comparison(
                before=before,
                after=after,
                benchmark=benchmark,
                mode=mode,
                change=paired_difference(before=old, after=new),
            )


def problem_grades(
    rows: Iterable[GradedCompletion],
) -> dict[tuple[str, str], dict[str, list[bool]]]:
    """(benchmark, mode) → problem → the grade of each completion that has one."""
    grades: dict[tuple[str, str], dict[str, list[bool]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row.decided_by != UNGRADED:
            grades[row.benchmark, row.mode][row.problem_id].append(row.answer_ok)
    return grades


def alarms(comparisons: Sequence[Comparison]) -> Iterator[str]:
    """A loud sentence wherever `after` is worse than `before` by more than chance explains.

    The error rate of 5 % is shared out over all comparisons (Bonferroni).
    """
    for comparison in comparisons:
        if comparison.change.is_worse(ALPHA / len(comparisons)):
            yield (
                f"{comparison.after.upper()} IS WORSE THAN {comparison.before.upper()} BEYOND "
                f"NOISE: {describe(comparison)}"
            )


def describe(comparison: Comparison) -> str:
    """One comparison as a sentence with its interval."""
    place, change = f"on {comparison.benchmark}", comparison.change
    if change.difference.value == change.difference.se == 0:
        return f"no grade changed {place} ({comparison.mode})."
    what = {GREEDY: "greedy answer accuracy", SAMPLED: "sampled pass@1"}[comparison.mode]
    verdict = "" if change.p_value < ALPHA else "; no difference beyond noise"
    p = p_value(change.p_value)
    return (
        f"{what} {place} {points(change.difference.value)} points "
        f"(95 % interval {points(change.interval.low)} to {points(change.interval.high)}, "
        f"p {p if p.startswith('<') else f'= {p}'}, n = {change.difference.n}){verdict}."
    )


def comparison_metrics(comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """The comparisons as numbers: `<before>_to_<after>` → benchmark → mode_measure → number.

    What is not finite is left out.
    """
    tree: dict[str, Any] = {}
    for of in comparisons:
        change = of.change
        numbers = {
            "difference": change.difference.value,
            "difference_se": change.difference.se,
            "low": change.interval.low,
            "high": change.interval.high,
            "p_value": change.p_value,
            "n": change.difference.n,
        }
        benchmarks = tree.setdefault(f"{of.before}_to_{of.after}", {})
        benchmarks.setdefault(of.benchmark, {})[f"{of.mode}_{MEASURES[of.mode]}"] = {
            name: value for name, value in numbers.items() if math.isfinite(value)
        }
    return tree
