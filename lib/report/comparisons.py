"""Paired comparisons of checkpoints on the same problems, and alarms for significant drops."""

import dataclasses
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from lib.artifacts.completions import GREEDY, SAMPLED, UNGRADED, GradedCompletion, num_attempts
from lib.core.errors import UserError
from lib.report.inputs import Run
from lib.report.text import p_value, points
from lib.stats import Difference, paired_difference

MEASURES = {GREEDY: "answer_accuracy", SAMPLED: "pass_at_1"}
"""Mode → headline measure; both are means over problems of a problem's mean grade."""

ALPHA = 0.05


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """The change of one benchmark's headline measure by one phase of training.

    Attributes:
        before: name of the parent checkpoint (or of a revision).
        after: name of the trained checkpoint (or the workspace).
        mode: "greedy" or "sampled"; it decides the measure (`MEASURES`).
        change: `after` minus `before`, in [-1, 1].
    """

    before: str
    after: str
    benchmark: str
    mode: str
    change: Difference


def compare_checkpoints(run: Run) -> list[Comparison]:
    """Compare every checkpoint with its parent, on every benchmark, in both modes."""
    return [
        comparison
        for after, before in run.origins.items()
        for comparison in compare_pair(run.completions, before=before, after=after)
    ]


def compare_pair(
    completions: Mapping[str, Sequence[GradedCompletion]], *, before: str, after: str
) -> Iterator[Comparison]:
    """Yield the comparison of two checkpoints for each benchmark and mode that both have.

    Only problems that both answered count.

    Args:
        completions: by checkpoint.
        before: the earlier checkpoint, a key of `completions`.
        after: the later one.

    Raises:
        UserError: a problem has different references in the two, or within a checkpoint, problems
            have different numbers of completions.
    """
    _check_references(completions, before=before, after=after)
    # (benchmark, mode) → problem id → [right or wrong, one per completion].
    earlier, later = problem_grades(completions[before]), problem_grades(completions[after])
    for name, grades in ((before, earlier), (after, later)):
        for (benchmark, mode), problems in grades.items():
            num_attempts(problems, what=f"{name}: {benchmark}, {mode}")
    for (benchmark, mode), old_problems in earlier.items():
        new_problems = later.get((benchmark, mode), {})
        # In the order of the file: floating-point sums depend on the order of their terms.
        shared = [problem for problem in old_problems if problem in new_problems]
        if shared:
            # One number per problem, since samples of a problem are not independent
            # (arXiv:2411.00640).
            change = paired_difference(
                before={problem: fmean(old_problems[problem]) for problem in shared},
                after={problem: fmean(new_problems[problem]) for problem in shared},
            )
            yield Comparison(
                before=before, after=after, benchmark=benchmark, mode=mode, change=change
            )


def _check_references(
    completions: Mapping[str, Sequence[GradedCompletion]], *, before: str, after: str
) -> None:
    known = {(row.benchmark, row.problem_id): row.reference for row in completions[before]}
    for row in completions[after]:
        reference = known.get((row.benchmark, row.problem_id), row.reference)
        if reference != row.reference:
            raise UserError(
                f"{row.benchmark}: problem {row.problem_id} has the reference `{reference}` "
                f"in {before} and `{row.reference}` in {after}; grade both by the same "
                "references (`dvc repro`)"
            )


def problem_grades(
    rows: Iterable[GradedCompletion],
) -> dict[tuple[str, str], dict[str, list[bool]]]:
    """Group grades as (benchmark, mode) → problem id → [right or wrong, one per completion]."""
    grades: dict[tuple[str, str], dict[str, list[bool]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row.decided_by != UNGRADED:
            grades[row.benchmark, row.mode][row.problem_id].append(row.answer_ok)
    return grades


def alarms(comparisons: Sequence[Comparison]) -> Iterator[str]:
    """Yield a sentence for each comparison whose later checkpoint is significantly worse.

    The level of 5 % is divided by the number of comparisons (Bonferroni), so that all together
    raise a false alarm in at most 5 % of runs.
    """
    for comparison in comparisons:
        # The chance of a false alarm is even lower, since greedy and sampled comparisons of one
        # phase are correlated.
        if comparison.change.is_worse(ALPHA / len(comparisons)):
            yield (
                f"{comparison.after.upper()} IS WORSE THAN {comparison.before.upper()} BEYOND "
                f"NOISE: {describe(comparison, among=len(comparisons))}"
            )


def verdict(comparison: Comparison, *, among: int) -> str:
    """Return "better", "worse" or "not settled", with the threshold: "worse (p < 0.0083)".

    Args:
        among: number of comparisons that share the level of 5 % (Bonferroni).
    """
    threshold = ALPHA / among
    if comparison.change.p_value >= threshold:
        return f"not settled (p ≥ {threshold:.2g})"
    is_better = comparison.change.difference.value > 0
    return f"{'better' if is_better else 'worse'} (p < {threshold:.2g})"


def describe(comparison: Comparison, *, among: int) -> str:
    """Format one comparison as a sentence with its interval and its `verdict`.

    "greedy answer accuracy on held_out +9.0 points (95 % interval +4.1 to +13.8, p = 0.0004,
    n = 200): better (p < 0.0083)."
    """
    change = comparison.change
    measure = {GREEDY: "greedy answer accuracy", SAMPLED: "sampled pass@1"}[comparison.mode]
    return (
        f"{measure} on {comparison.benchmark} {points(change.difference.value)} points "
        f"(95 % interval {points(change.interval.low)} to {points(change.interval.high)}, "
        f"p {p_value(change.p_value)}, n = {change.difference.n}): "
        f"{verdict(comparison, among=among)}."
    )


def comparison_metrics(comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """Return the comparisons' numbers as nested dicts for the metrics file.

    ::

        {"sft_to_grpo": {"held_out": {"greedy_answer_accuracy": {
            "difference", "difference_se", "p_value", "n", "low", "high"}}}}

    Differences are in [-1, 1]; `low` and `high` are the 95 % interval. NaN is left out.
    """
    tree: dict[str, Any] = {}
    for comparison in comparisons:
        change = comparison.change
        numbers = {
            "difference": change.difference.value,
            "difference_se": change.difference.se,
            "p_value": change.p_value,
            "n": change.difference.n,
            "low": change.interval.low,
            "high": change.interval.high,
        }
        benchmarks = tree.setdefault(f"{comparison.before}_to_{comparison.after}", {})
        measure = f"{comparison.mode}_{MEASURES[comparison.mode]}"
        benchmarks.setdefault(comparison.benchmark, {})[measure] = {
            # JSON has no NaN; the standard error of a single problem is NaN.
            name: value
            for name, value in numbers.items()
            if not math.isnan(value)
        }
    return tree
