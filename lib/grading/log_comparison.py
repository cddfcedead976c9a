"""Compare the logs of two models, paired by problem.

Several completions of a problem are averaged first, so that the problem is the unit of sampling.
Differences, their intervals and p-values are those of `lib.stats.paired_difference`.
"""

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import NormalDist
from typing import Any

from lib.core.errors import UserError
from lib.grading.logs import LoggedAnswer
from lib.report.text import MISSING, Table, p_value, percent, points
from lib.stats import Difference, Estimate, holm, mean_estimate, paired_difference
from lib.stats.estimates import Z
from reckon_verifier import extract_answer, is_equivalent

Scores = dict[str, dict[str, list[float]]]
"""Benchmark -> problem -> scores of its completions."""


@dataclasses.dataclass(frozen=True)
class LogComparison:
    """Two models on the problems of a benchmark that both have.

    Attributes:
        before, after: rates over these problems.
        only_before, only_after: number of problems that only one log has a score of.
        p_holm: p-value, adjusted for all comparisons that are printed.
    """

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
        if low <= -1 or high >= 1:
            return 1.0
        # The two tests are equivalent to the interval of 90 %.
        error = (high - low) / 2 * NormalDist().inv_cdf(0.95) / Z
        return abs(low + high) / 2 + error

    @property
    def verdict(self) -> str:
        """What the comparison shows, in words."""
        if self.p_holm >= 0.05:
            return f"no difference beyond ±{100 * self.equivalent_within:.1f}"
        return "better" if self.change.difference.value > 0 else "worse"


def regrade(
    answers: Iterable[LoggedAnswer], references: Mapping[str, Mapping[str, str]]
) -> tuple[list[LoggedAnswer], list[LoggedAnswer]]:
    """Judge each completion by the verifier; also return those that the tool scored otherwise.

    Args:
        references: id or problem's text -> `reference` and `problem`, which count before those of
            a log.
    """
    judged, disagreements = [], []
    for logged in answers:
        known = references.get(logged.id) or references.get(logged.problem, {})
        answer = logged._replace(
            reference=known.get("reference") or logged.reference,
            problem=known.get("problem") or logged.problem,
        )
        score = None
        if answer.reference and answer.completion:
            extracted = extract_answer(answer.completion)
            score = float(
                is_equivalent(
                    reference=answer.reference, answer=extracted, problem=answer.problem or None
                )
            )
            # A reward between 0 and 1 is no verdict.
            if answer.score in (0, 1) and answer.score != score:
                disagreements.append(answer)
        judged.append(answer._replace(score=score))
    return judged, disagreements


def _scores(answers: Sequence[LoggedAnswer], by: str) -> Scores:
    scores: Scores = {}
    for answer in answers:
        problems = scores.setdefault(answer.benchmark, {})
        text = " ".join(answer.problem.split())
        key = {"id": answer.id, "text": text, "order": str(len(problems))}[by]
        if not key:
            raise UserError(f"a row without {by}; pair by something else: --by id, text or order")
        # A row without a score stays, so that the order counts it.
        problems.setdefault(key, []).extend([] if answer.score is None else [answer.score])
    return scores


def pairing(before: Sequence[LoggedAnswer], after: Sequence[LoggedAnswer]) -> str:
    """Return "id" if equal ids are of equal problems in both logs, else "text"."""
    sides = [
        {(each.benchmark, each.id): " ".join(each.problem.split()) for each in log}
        for log in (before, after)
    ]
    shared = sides[0].keys() & sides[1].keys()
    has_ids = shared and all(name for side in sides for _, name in side)
    return "id" if has_ids and all(sides[0][key] == sides[1][key] for key in shared) else "text"


def compare_logs(
    before: Sequence[LoggedAnswer], after: Sequence[LoggedAnswer], by: str
) -> list[LogComparison]:
    """Compare two logs on each benchmark, and on all of several together.

    Raises:
        UserError: no problem is in both, or a score is none of 0 to 1.
    """
    # A log of one benchmark may name it otherwise than the other tool.
    sides = _scores(before, by), _scores(after, by)
    if all(len(side) == 1 for side in sides) and sides[0].keys() != sides[1].keys():
        name = max(sides[0].keys() | sides[1].keys())
        before_side, after_side = (next(iter(side.values())) for side in sides)
        sides = {name: before_side}, {name: after_side}
    names = [name for name in sides[0] if name in sides[1]]
    parts = {
        name: tuple({key: sum(x) / len(x) for key, x in side[name].items() if x} for side in sides)
        for name in names
    }
    if len(parts) > 1:
        parts["all"] = tuple(
            {f"{name}\0{key}": x for name in names for key, x in parts[name][n].items()}
            for n in (0, 1)
        )
    comparisons = []
    for name, (old, new) in parts.items():
        shared = [key for key in old if key in new]
        old_shared, new_shared = ({key: side[key] for key in shared} for side in (old, new))
        values = [*old_shared.values(), *new_shared.values()]
        if values and not 0 <= min(values) <= max(values) <= 1:
            raise UserError(
                f"{name}: scores beyond 0 and 1 are no rates; judge the answers: --grade"
            )
        if shared:
            comparisons.append(
                LogComparison(
                    name or "answers",
                    mean_estimate([*old_shared.values()]),
                    mean_estimate([*new_shared.values()]),
                    paired_difference(before=old_shared, after=new_shared),
                    len(old) - len(shared),
                    len(new) - len(shared),
                )
            )
    if not comparisons:
        raise UserError(
            f"no problem has a score in both logs, paired by {by}: --by id, text or order; --grade "
            "judges the answers"
        )
    return comparisons


def adjusted(comparisons: Sequence[LogComparison]) -> list[LogComparison]:
    """Return the comparisons with their p-values adjusted by Holm's method."""
    p_values = holm([each.change.p_value for each in comparisons])
    return [
        dataclasses.replace(each, p_holm=p) for each, p in zip(comparisons, p_values, strict=True)
    ]


def comparison_table(title: str, comparisons: Sequence[LogComparison]) -> Table:
    """Return a row for each comparison; rates and differences in percentage points."""
    rows = []
    for each in comparisons:
        change = each.change
        detectable = change.detectable
        rows.append(
            (
                each.benchmark,
                str(each.before.n),
                f"{each.only_before} / {each.only_after}",
                percent(each.before.value, each.before.se, each.before.n),
                percent(each.after.value, each.after.se, each.after.n),
                points(change.difference.value),
                f"[{points(change.interval.low)}, {points(change.interval.high)}]",
                p_value(each.p_holm).removeprefix("= "),
                MISSING if math.isnan(detectable) else f"{100 * detectable:.1f}",
                each.verdict,
            )
        )
    header = ("", "problems", "unpaired", "before", "after", "change", "95 %", "p (Holm)")
    return Table(title, (*header, "detectable", "verdict"), tuple(rows))


def as_json(comparison: LogComparison) -> dict[str, Any]:
    """Return the numbers of a comparison; an unknown one is None, since JSON has no NaN."""
    numbers = dataclasses.asdict(comparison) | {
        "detectable": comparison.change.detectable,
        "equivalent_within": comparison.equivalent_within,
        "verdict": comparison.verdict,
    }
    return dict(json.loads(json.dumps(numbers), parse_constant=lambda _: None))
