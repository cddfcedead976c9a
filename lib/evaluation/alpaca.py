"""Outputs for AlpacaEval's judge (github.com/tatsu-lab/alpaca_eval): nothing is graded here."""

from collections.abc import Iterable
from pathlib import Path

from lib.artifacts import write_json
from lib.artifacts.completions import GREEDY, GradedCompletion


def write_outputs(
    path: Path, rows: Iterable[GradedCompletion], *, benchmark: str, generator: str
) -> None:
    """One object per instruction, as `alpaca_eval --model_outputs` reads them.

    The greedy completion of each, the first sampled one where there is none.
    """
    outputs: dict[str, GradedCompletion] = {}
    for row in rows:
        if row.benchmark == benchmark and (row.problem_id not in outputs or row.mode == GREEDY):
            outputs[row.problem_id] = row
    write_json(
        path,
        [
            {
                "dataset": row.subject,
                "instruction": row.problem,
                "output": row.completion,
                "generator": generator,
            }
            for row in outputs.values()
        ],
    )
