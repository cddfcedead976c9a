"""The benchmarks that `prepare` wrote, as evaluation and export read them."""

from collections.abc import Sequence
from pathlib import Path

from lib.errors import UserError
from lib.problems.schema import Problem, read_problems


def read_benchmarks(folder: Path, names: Sequence[str]) -> dict[str, list[Problem]]:
    """The benchmarks called `names` from the folder `benchmarks` that `write_sets` filled.

    Raises:
        UserError: no such benchmark; lists those that there are.
    """
    there = sorted(path.stem for path in folder.glob("*.jsonl"))
    missing = [name for name in names if name not in there]
    if missing:
        raise UserError(
            f"evaluate.benchmarks: no `{missing[0]}` in {folder}; there are {', '.join(there)}"
        )
    return {name: list(read_problems(folder / f"{name}.jsonl")) for name in names}
