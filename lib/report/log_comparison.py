"""Compare two models on the problems that both answered, benchmark by benchmark."""

import dataclasses
import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import NormalDist, fmean
from typing import Any

from lib.core.errors import UserError
from lib.report.text import MISSING, Table, p_value, percent, points
from lib.stats import Difference, Estimate, holm, mean_estimate, paired_difference
from lib.stats.estimates import Z

Scores = Mapping[str, Mapping[str, float]]
"""Benchmark -> problem -> mean score of its completions."""

_READING = re.compile(r" \([^()]*\)$| (greedy|sampled)$")
"""Filter or mode at the end of a benchmark's name: the same problems, read or sampled otherwise."""


@dataclasses.dataclass(frozen=True)
class LogComparison:
    """Two models on the problems of a benchmark that both have.

    Attributes:
        logs: names of the two logs.
        before, after: rates over these problems.
        only_before, only_after: number of problems that only one log has a score of.
        p_holm: p-value, adjusted for all comparisons that are printed.
    """

    logs: str
    benchmark: str
    before: Estimate
    after: Estimate
    change: Difference
    only_before: int
    only_after: int
    p_holm: float = 1.0

    @property
    def equivalent_within(self) -> float:
        """The smallest m for which two one-sided tests at 5 % show no difference beyond ±m."""
        low, high = self.change.interval.low, self.change.interval.high
        # The two tests are equivalent to the interval of 90 %.
        error = (high - low) / 2 * NormalDist().inv_cdf(0.95) / Z
        # An interval that was cut at ±1 does not tell its width.
        return 1.0 if low <= -1 or high >= 1 else abs(low + high) / 2 + error

    @property
    def verdict(self) -> str:
        if self.p_holm >= 0.05:
            return f"no difference beyond ±{100 * self.equivalent_within:.1f}"
        return "better" if self.change.difference.value > 0 else "worse"

    def as_json(self) -> dict[str, Any]:
        """Return the numbers; an unknown one is None, since JSON has no NaN."""
        numbers = dataclasses.asdict(self) | {
            "detectable": self.change.detectable,
            "equivalent_within": self.equivalent_within,
            "verdict": self.verdict,
        }
        return dict(json.loads(json.dumps(numbers), parse_constant=lambda _: None))


def compare_scores(before: Scores, after: Scores, logs: str = "") -> Iterator[LogComparison]:
    """Compare two logs on each benchmark, and on all of several together.

    Raises:
        UserError: no problem is in both.
    """
    if len(before) == len(after) == 1:
        # A log of one benchmark may name it otherwise than the other tool.
        name = max(*before, *after)
        before, after = ({name: each} for side in (before, after) for each in side.values())
    names = [name for name in before if before[name].keys() & after.get(name, {}).keys()]
    parts = {name: (before[name], after[name]) for name in names}
    if not parts:
        raise UserError(
            f"{logs}: no problem has a score in both; pair by something else: --by id, text or "
            "order; or judge the answers: --grade"
        )
    if len({_READING.sub("", name) for name in parts}) > 1:
        parts["all"] = _over_all(before, names), _over_all(after, names)
    for name, (old, new) in parts.items():
        shared = [key for key in old if key in new]
        old_shared, new_shared = ({key: side[key] for key in shared} for side in (old, new))
        yield LogComparison(
            logs,
            name or "answers",
            mean_estimate([*old_shared.values()]),
            mean_estimate([*new_shared.values()]),
            paired_difference(before=old_shared, after=new_shared),
            len(old) - len(shared),
            len(new) - len(shared),
        )


def _over_all(scores: Mapping[str, Mapping[str, float]], names: Sequence[str]) -> dict[str, float]:
    """Return a score for each problem of all benchmarks; the mean over its filters and modes."""
    readings = defaultdict(list)
    for name in names:
        for key, score in scores[name].items():
            readings[f"{_READING.sub('', name)}\0{key}"].append(score)
    return {key: fmean(each) for key, each in readings.items()}


def adjusted(comparisons: Sequence[LogComparison]) -> list[LogComparison]:
    """Return the comparisons with their p-values adjusted by Holm's method."""
    p_values = holm([each.change.p_value for each in comparisons])
    return [
        dataclasses.replace(each, p_holm=p) for each, p in zip(comparisons, p_values, strict=True)
    ]


def comparison_table(title: str, comparisons: Iterable[LogComparison]) -> Table:
    """Return a row for each comparison; rates and differences in percentage points."""
    rows = []
    for each in comparisons:
        change, detectable = each.change, each.change.detectable
        sides = (percent(side.value, side.se, side.n) for side in (each.before, each.after))
        rows.append(
            (
                each.benchmark,
                str(each.before.n),
                f"{each.only_before} / {each.only_after}",
                *sides,
                points(change.difference.value),
                f"[{points(change.interval.low)}, {points(change.interval.high)}]",
                p_value(each.p_holm).removeprefix("= "),
                MISSING if math.isnan(detectable) else f"{100 * detectable:.1f}",
                each.verdict,
            )
        )
    header = ("", "problems", "unpaired", "before", "after", "change", "95 %", "p (Holm)")
    return Table(title, (*header, "detectable", "verdict"), tuple(rows))
