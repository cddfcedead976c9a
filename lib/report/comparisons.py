"""Checkpoint against checkpoint on the same problems."""

import dataclasses
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from lib.artifacts.completions import UNGRADED, GradedCompletion
from lib.report.inputs import Run
from lib.report.text import p_value, points
from lib.stats import (
    Difference,
    Estimate,
    Interval,
    minimum_detectable_difference,
    paired_difference,
)

MEASURES = {"greedy": "answer_accuracy", "sampled": "pass_at_1"}
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
    def measure(self) -> str:
        return MEASURES[self.mode]

    @property
    def detectable(self) -> float:
        """The smallest true difference that these problems show four times in five.

        nan where no problem changed: then nothing is known of the spread.
        """
        estimate = self.change.difference
        if estimate.n < 2 or not estimate.se > 0:
            return math.nan
        spread = estimate.se * math.sqrt(estimate.n)
        return minimum_detectable_difference(sd=spread, n=estimate.n)


def compare_checkpoints(run: Run) -> list[Comparison]:
    """Every checkpoint against what it started from, on every benchmark, in both modes."""
    return [
        comparison
        for before, after in steps_of_training(run.checkpoints, run.starts)
        for comparison in compare_pair(
            run.completions, before=before, after=after, shared=not run.trained
        )
    ]


def steps_of_training(
    checkpoints: Sequence[str], starts: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """(before, after) of each trained checkpoint.

    Args:
        checkpoints: in the order of training, the untrained one first.
        starts: by checkpoint, the one it was trained from; where that was not evaluated, or is
            unknown, the checkpoint before it in the order.
    """
    for previous, after in pairwise(checkpoints):
        start = starts.get(after, previous)
        yield (start if start in checkpoints else previous), after


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
            both = [key for key in scores if key in others]
            scores, others = ({key: of[key] for key in both} for of in (scores, others))
        if others:
            change = paired_difference(before=scores, after=others)
            comparisons.append(
                Comparison(
                    before=before, after=after, benchmark=benchmark, mode=mode, change=change
                )
            )
    return comparisons


def regressions(
    comparisons: Sequence[Comparison], *, untrained: str | None = None
) -> list[Comparison]:
    """Where `after` is worse than `before` by more than chance explains.

    What starts from the `untrained` checkpoint is not judged: teaching a format may cost answers.
    The error rate of 5 % is shared out over all comparisons that are judged (Bonferroni).
    """
    judged = [comparison for comparison in comparisons if comparison.before != untrained]
    alpha = ALPHA / max(1, len(judged))
    return [comparison for comparison in judged if comparison.change.is_worse(alpha)]


def alarms(comparisons: Sequence[Comparison], *, untrained: str | None = None) -> Iterator[str]:
    """One loud sentence for each of the `regressions`."""
    for comparison in regressions(comparisons, untrained=untrained):
        yield (
            f"{comparison.after.upper()} IS WORSE THAN {comparison.before.upper()} BEYOND NOISE: "
            f"{describe(comparison)}"
        )


def describe(comparison: Comparison) -> str:
    """One comparison as a sentence with its interval."""
    change, interval = comparison.change, comparison.change.interval
    if change.difference.value == change.difference.se == 0:
        return f"no grade changed on {comparison.benchmark} ({comparison.mode})."
    what = {"greedy": "greedy answer accuracy", "sampled": "sampled pass@1"}[comparison.mode]
    verdict = "" if change.p_value < ALPHA else "; no difference beyond noise"
    p = p_value(change.p_value)
    return (
        f"{what} on {comparison.benchmark} {points(change.difference.value)} points "
        f"(95 % interval {points(interval.low)} to {points(interval.high)}, "
        f"p {p if p.startswith('<') else f'= {p}'}, n = {change.difference.n}){verdict}."
    )


def comparison_metrics(comparisons: Sequence[Comparison]) -> dict[str, object]:
    """The comparisons as numbers: `<before>_to_<after>` → benchmark → mode_measure → number."""
    tree: dict[str, dict[str, dict[str, dict[str, float]]]] = {}
    for comparison in comparisons:
        pair = tree.setdefault(f"{comparison.before}_to_{comparison.after}", {})
        name = f"{comparison.mode}_{comparison.measure}"
        pair.setdefault(comparison.benchmark, {})[name] = _numbers(comparison.change)
    return dict(tree)


def read_comparisons(
    metrics: Mapping[str, Mapping[str, Mapping[str, Mapping[str, float]]]],
    checkpoints: Sequence[str],
    starts: Mapping[str, str],
) -> list[Comparison]:
    """The comparisons that `comparison_metrics` wrote; see `steps_of_training`."""
    return [
        Comparison(
            before=before,
            after=after,
            benchmark=benchmark,
            mode=mode,
            change=_difference(measures[f"{mode}_{measure}"]),
        )
        for before, after in steps_of_training(checkpoints, starts)
        for benchmark, measures in metrics.get(f"{before}_to_{after}", {}).items()
        for mode, measure in MEASURES.items()
        if f"{mode}_{measure}" in measures
    ]


def _numbers(change: Difference) -> dict[str, float]:
    numbers = {
        "difference": change.difference.value,
        "difference_se": change.difference.se,
        "high": change.interval.high,
        "low": change.interval.low,
        "n": change.difference.n,
        "p_value": change.p_value,
    }
    return {name: value for name, value in numbers.items() if math.isfinite(value)}


def _difference(numbers: Mapping[str, float]) -> Difference:
    """What `_numbers` wrote; what it left out was not finite. Both means are in other files."""
    return Difference(
        difference=Estimate(
            numbers["difference"], numbers.get("difference_se", math.nan), int(numbers["n"])
        ),
        interval=Interval(numbers.get("low", -math.inf), numbers.get("high", math.inf)),
        p_value=numbers["p_value"],
    )


def problem_scores(rows: Iterable[GradedCompletion]) -> dict[tuple[str, str], dict[str, float]]:
    """(benchmark, mode) → problem → mean grade over its completions, where they have one."""
    grades: dict[tuple[str, str], dict[str, list[bool]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row.decided_by == UNGRADED:
            continue
        grades[row.benchmark, row.mode][row.problem_id].append(row.answer_ok)
    return {
        setting: {problem: sum(of) / len(of) for problem, of in problems.items()}
        for setting, problems in grades.items()
    }
