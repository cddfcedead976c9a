"""Keeping problems of a band of difficulty, and ordering them from easy to hard.

Pass rates are measured by `make difficulty`: k completions of a checkpoint for each problem. They
are kept under data/raw, keyed by the problems' content hash, so that the DAG has no circle: what a
checkpoint can do decides its own data only through a file that somebody chose to write.
"""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from lib.artifacts import write_jsonl
from lib.errors import UserError
from lib.problems.drops import Drops
from lib.problems.schema import Problem
from lib.problems.store import ProblemTable, where

UNRATED = "no_pass_rate"
OUTSIDE = "pass_rate_outside_band"


@dataclasses.dataclass(frozen=True)
class PassRate:
    """How often a checkpoint solves a problem: `num_correct` of `num_completions`."""

    num_correct: int
    num_completions: int

    @property
    def value(self) -> float:
        return self.num_correct / self.num_completions


def write_pass_rates(path: Path, rates: Mapping[str, PassRate]) -> None:
    """Write one JSON object a line, by content hash."""
    write_jsonl(path, [{"id": key, **dataclasses.asdict(rates[key])} for key in sorted(rates)])


def read_pass_rates(path: Path) -> dict[str, PassRate]:
    """Read what `write_pass_rates` wrote.

    Raises:
        UserError: the file is missing or a line is no pass rate.
    """
    if not path.is_file():
        raise UserError(
            f"prepare.grpo.difficulty.file: {path} is missing; `make difficulty` writes it"
        )
    rates = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            row = json.loads(line)
            rate = PassRate(int(row["num_correct"]), int(row["num_completions"]))
            if not 0 <= rate.num_correct <= rate.num_completions or not rate.num_completions:
                raise ValueError(f"{rate.num_correct} of {rate.num_completions}")
            rates[str(row["id"])] = rate
        except (ValueError, TypeError, KeyError) as error:
            raise UserError(
                f"{path}:{number}: not a pass rate ({error}); `make difficulty` writes this file"
            ) from error
    return rates


def keep_band(
    table: ProblemTable,
    rates: Mapping[str, PassRate],
    *,
    lowest: float,
    highest: float,
    drops: Drops,
) -> ProblemTable:
    """Keep problems whose pass rate is within [lowest, highest]; one without a rate goes too."""

    def kept(problem: Problem) -> bool:
        rate = rates.get(problem.id)
        if rate is not None and lowest <= rate.value <= highest:
            return True
        reason, detail = (UNRATED, "not in the file") if rate is None else (OUTSIDE, _words(rate))
        drops.add(reason, row=problem.id, detail=detail, text=problem.problem)
        return False

    return where(table, kept)


def easy_to_hard(table: ProblemTable, rates: Mapping[str, PassRate]) -> ProblemTable:
    """Order by falling pass rate; problems alike, or without a rate, stay in the order they had."""
    values = [_rank(rates.get(problem_id)) for problem_id in table.column("id")]
    return table.select(sorted(range(len(values)), key=lambda index: -values[index]))


def _rank(rate: PassRate | None) -> float:
    return rate.value if rate else -1.0


def _words(rate: PassRate) -> str:
    return f"{rate.num_correct} of {rate.num_completions} right"


def count_passes(verdicts: Iterable[tuple[str, bool]]) -> dict[str, PassRate]:
    """Pass rates from (problem id, right or wrong) of each completion."""
    tally: dict[str, tuple[int, int]] = {}
    for key, right in verdicts:
        correct, total = tally.get(key, (0, 0))
        tally[key] = (correct + right, total + 1)
    return {key: PassRate(*counts) for key, counts in tally.items()}
