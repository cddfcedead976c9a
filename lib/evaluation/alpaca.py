"""Outputs for AlpacaEval's judge (github.com/tatsu-lab/alpaca_eval): nothing is graded here."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lib.artifacts import write_json
from lib.evaluation.measure import GREEDY


def alpaca_outputs(
    rows: Iterable[Mapping[str, Any]], *, benchmark: str, generator: str
) -> list[dict[str, str]]:
    """One object per instruction, as `alpaca_eval --model_outputs` reads them.

    The greedy completion of each, the first sampled one where there is none.
    """
    chosen: dict[str, Mapping[str, Any]] = {}
    for row in rows:
        if row["benchmark"] == benchmark and (
            row["problem_id"] not in chosen or row["mode"] == GREEDY
        ):
            chosen[row["problem_id"]] = row
    return [
        {
            "dataset": row["subject"],
            "instruction": row["problem"],
            "output": row["completion"],
            "generator": generator,
        }
        for row in chosen.values()
    ]


def write_outputs(path: Path, outputs: list[dict[str, str]]) -> None:
    """Write one JSON array."""
    write_json(path, outputs)
