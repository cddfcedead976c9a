"""Checkpoint against checkpoint on the same problems."""

import dataclasses
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
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
            both = scores.keys() & others.keys()
            scores, others = (
                {key: of[key] for key in of if key in both} for of in (scores, others)
            )
        if others:
            change = paired_difference(before=scores, after=others)
            comparisons.append(
                Comparison(
                    before=before, after=after, benchmark=benchmark, mode=mode, change=change
                )
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


def alarms(
    comparisons: Sequence[Comparison], *, untrained: str | None = None, headline: str | None = None
) -> Iterator[str]:
    """A loud sentence wherever `after` is worse than `before` by more than chance explains.

    What starts from the `untrained` checkpoint is not judged: teaching a format may cost answers.
    Nor, with `headline`, are other sets: a fall there is a finding. The error rate of 5 % is shared
    out over all comparisons that are judged (Bonferroni).
    """
    judged = [
        of for of in comparisons if of.before != untrained and headline in (None, of.benchmark)
    ]
    for comparison in judged:
        if comparison.change.is_worse(ALPHA / len(judged)):
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
