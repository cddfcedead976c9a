"""Checkpoint against checkpoint on the same problems."""

import dataclasses
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Self

from lib.artifacts.completions import UNGRADED, GradedCompletion
from lib.report.inputs import Run
from lib.report.text import p_value, points
from lib.stats import Difference, minimum_detectable_difference, paired_difference

MEASURES = {"greedy": "answer_accuracy", "sampled": "pass_at_1"}
"""The measure of each mode that checkpoints are judged by: the mean grade of a problem."""

ALPHA = 0.05


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """One measure of one benchmark, before and after one phase of training.

    Attributes:
        difference: `after` minus `before`, with its own standard error.
        low, high: its 95 % interval.
        p_value: two-sided, of the hypothesis that there is no difference.
        n: problems.
    """

    before: str
    after: str
    benchmark: str
    mode: str
    difference: float
    difference_se: float = math.nan
    low: float = -math.inf
    high: float = math.inf
    p_value: float
    n: int

    @classmethod
    def of(cls, change: Difference, **names: str) -> Self:
        """A change of the benchmark and mode that `names` gives."""
        return cls(
            **names,
            difference=change.difference.value,
            difference_se=change.difference.se,
            low=change.interval.low,
            high=change.interval.high,
            p_value=change.p_value,
            n=change.difference.n,
        )

    def shows(self, sign: int, alpha: float = ALPHA) -> bool:
        """Whether the difference has this sign by more than chance explains."""
        return self.difference * sign > 0 and self.p_value < alpha

    @property
    def detectable(self) -> float:
        """The smallest true difference that these problems show four times in five.

        nan where no problem changed: then nothing is known of the spread.
        """
        if self.n < 2 or not self.difference_se > 0:
            return math.nan
        return minimum_detectable_difference(sd=self.difference_se * math.sqrt(self.n), n=self.n)


def origins(checkpoints: Sequence[str], starts: Mapping[str, str]) -> dict[str, str]:
    """By trained checkpoint, what it is compared with.

    Args:
        checkpoints: in the order of training, the untrained one first.
        starts: by checkpoint, the one it was trained from; where that was not evaluated, or is
            unknown, the checkpoint before it in the order.
    """
    return {
        after: starts[after] if starts.get(after) in checkpoints else previous
        for previous, after in pairwise(checkpoints)
    }


def compare_checkpoints(run: Run) -> list[Comparison]:
    """Every checkpoint against what it started from, on every benchmark, in both modes."""
    return [
        comparison
        for after, before in origins(run.checkpoints, run.starts).items()
        for comparison in compare_pair(
            run.completions, before=before, after=after, shared=not run.trained
        )
    ]


def compare_pair(
    completions: Mapping[str, Sequence[GradedCompletion]],
    *,
    before: str,
    after: str,
    shared: bool = False,
) -> list[Comparison]:
    """The comparisons of one pair, in the order of the completions.

    Args:
        shared: compare the problems that both answered: each model leaves out those that are too
            long for it (`TOO_LONG=skip`).

    Raises:
        ValueError: the two were evaluated on different problems, and not by `shared` only.
    """
    earlier, later = problem_scores(completions[before]), problem_scores(completions[after])
    comparisons = []
    for (benchmark, mode), scores in earlier.items():
        others = later.get((benchmark, mode), {})
        if shared:
            both = [problem for problem in scores if problem in others]
            scores, others = ({key: of[key] for key in both} for of in (scores, others))
        if others:
            change = paired_difference(before=scores, after=others)
            comparisons.append(
                Comparison.of(change, before=before, after=after, benchmark=benchmark, mode=mode)
            )
    return comparisons


def problem_scores(rows: Iterable[GradedCompletion]) -> dict[tuple[str, str], dict[str, float]]:
    """(benchmark, mode) → problem → mean grade over its completions."""
    return {
        setting: {problem: sum(grades) / len(grades) for problem, grades in problems.items()}
        for setting, problems in problem_grades(rows).items()
    }


def problem_grades(
    rows: Iterable[GradedCompletion],
) -> dict[tuple[str, str], dict[str, list[bool]]]:
    """(benchmark, mode) → problem → the grade of each completion that has one."""
    grades: dict[tuple[str, str], dict[str, list[bool]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row.decided_by != UNGRADED:
            grades[row.benchmark, row.mode][row.problem_id].append(row.answer_ok)
    return grades


def alarms(comparisons: Sequence[Comparison], *, untrained: str | None = None) -> Iterator[str]:
    """A loud sentence wherever `after` is worse than `before` by more than chance explains.

    What starts from the `untrained` checkpoint is not judged: teaching a format may cost answers.
    The error rate of 5 % is shared out over all comparisons that are judged (Bonferroni).
    """
    judged = [comparison for comparison in comparisons if comparison.before != untrained]
    for comparison in judged:
        if comparison.shows(-1, ALPHA / len(judged)):
            yield (
                f"{comparison.after.upper()} IS WORSE THAN {comparison.before.upper()} BEYOND "
                f"NOISE: {describe(comparison)}"
            )


def describe(comparison: Comparison) -> str:
    """One comparison as a sentence with its interval."""
    place = f"on {comparison.benchmark}"
    if comparison.difference == comparison.difference_se == 0:
        return f"no grade changed {place} ({comparison.mode})."
    what = {"greedy": "greedy answer accuracy", "sampled": "sampled pass@1"}[comparison.mode]
    verdict = "" if comparison.p_value < ALPHA else "; no difference beyond noise"
    p = p_value(comparison.p_value)
    return (
        f"{what} {place} {points(comparison.difference)} points "
        f"(95 % interval {points(comparison.low)} to {points(comparison.high)}, "
        f"p {p if p.startswith('<') else f'= {p}'}, n = {comparison.n}){verdict}."
    )


NUMBERS = ("difference", "difference_se", "low", "high", "p_value", "n")


def comparison_metrics(comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """The comparisons as numbers: `<before>_to_<after>` → benchmark → mode_measure → number.

    What is not finite is left out.
    """
    tree: dict[str, Any] = {}
    for of in comparisons:
        benchmarks = tree.setdefault(f"{of.before}_to_{of.after}", {})
        numbers = {name: getattr(of, name) for name in NUMBERS}
        benchmarks.setdefault(of.benchmark, {})[f"{of.mode}_{MEASURES[of.mode]}"] = {
            name: value for name, value in numbers.items() if math.isfinite(value)
        }
    return tree


def read_comparisons(
    metrics: Mapping[str, Any], checkpoints: Sequence[str], starts: Mapping[str, str]
) -> list[Comparison]:
    """The comparisons that `comparison_metrics` wrote; see `origins`."""
    return [
        Comparison(
            before=before,
            after=after,
            benchmark=benchmark,
            mode=mode,
            **{name: measures[key][name] for name in NUMBERS if name in measures[key]},
        )
        for after, before in origins(checkpoints, starts).items()
        for benchmark, measures in metrics.get(f"{before}_to_{after}", {}).items()
        for mode, measure in MEASURES.items()
        if (key := f"{mode}_{measure}") in measures
    ]
