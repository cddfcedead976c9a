"""Keeping problems of a band of difficulty, and ordering them from easy to hard.

Pass rates are measured by `make difficulty`: k completions of a checkpoint for each problem. They
are kept under data/raw, keyed by the problems' content hash, so that the DAG has no circle: what a
checkpoint can do decides its own data only through a file that somebody chose to write.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lib.artifacts import read_records, write_jsonl
from lib.artifacts.problems import Problem
from lib.core.errors import UserError
from lib.params.data import Difficulty
from lib.problems.store import ProblemTable


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

    def parse(row: Any) -> tuple[str, PassRate]:
        rate = PassRate(int(row["num_correct"]), int(row["num_completions"]))
        if not 0 <= rate.num_correct <= rate.num_completions or not rate.num_completions:
            raise ValueError(f"{rate.num_correct} of {rate.num_completions}")
        return str(row["id"]), rate

    remedy = "`make difficulty` writes this file"
    return dict(read_records(path, parse, what="a pass rate", remedy=remedy))


def keep_band(table: ProblemTable, rates: Mapping[str, PassRate], band: Difficulty) -> ProblemTable:
    """Keep problems whose pass rate is in the band, ends included; one without a rate goes too."""

    def outside(_: int, problem: Problem) -> tuple[str, str] | None:
        rate = rates.get(problem.id)
        if rate is None:
            return "no_pass_rate", "not in the file"
        if band.lowest <= rate.value <= band.highest:
            return None
        return "pass_rate_outside_band", f"{rate.num_correct} of {rate.num_completions} right"

    return table.keep(outside)


def easy_to_hard(table: ProblemTable, rates: Mapping[str, PassRate]) -> ProblemTable:
    """Order by falling pass rate; problems alike, or without a rate, stay in the order they had."""
    ranks = [-rates[key].value if key in rates else 1.0 for key in table.column("id")]
    return table.select(sorted(range(len(ranks)), key=ranks.__getitem__))
