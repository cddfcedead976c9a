"""Synthetic rows in the columns of the presets' sets (source_rows.yaml)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lib.artifacts import write_jsonl
from lib.artifacts.problems import Problem
from lib.params.load import read_yaml
from lib.problems.benchmarks import adapter_of

ROWS = read_yaml(Path(__file__).with_suffix(".yaml"))


def row_of(name: str, problem: Problem) -> dict[str, Any]:
    """Return a row of a known set or an adapter."""

    def filled(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: filled(each) for key, each in value.items()}
        if isinstance(value, list):
            return [filled(each) for each in value]
        for field in ("problem", "reference", "solution", "id") if isinstance(value, str) else ():
            value = value.replace(f"<{field}>", getattr(problem, field))
        return value

    return dict(filled(ROWS[name]))


def lay_out(content: dict[str, Any], root: Path, *, worked: Sequence[Problem]) -> None:
    """Write every source of `content` (a params.yaml), and point the params at its file.

    Args:
        root: the checkout, for data/raw.
        worked: problems of the training sets; each benchmark gets two sums of its own.
    """
    prepare = content["prepare"]
    for entry in (*prepare["sft"]["sources"], *prepare["grpo"]["sources"]):
        entry["source"] = _written(entry["source"], root, worked)
    truth = prepare["sft"]["truth_from"]
    truth[:] = [_written(source, root, worked) for source in truth]
    for number, entry in enumerate(prepare["benchmarks"]):
        sums = [_sum(2 * number + step) for step in (1, 2)]
        entry["source"] = _written(entry["source"], root, sums)


def _sum(number: int) -> Problem:
    total = 7 * number + 5
    return Problem.create(
        problem=f"Compute $7 \\cdot {number} + 5$.",
        reference=str(total),
        solution=f"7 times {number} and 5 is {total}.",
    )


def _written(source: dict[str, Any], root: Path, problems: Sequence[Problem]) -> dict[str, Any]:
    name = source.get("known") or source["adapter"]
    path = source.get("path") or f"data/raw/{name}-rows.jsonl"
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    write_jsonl(file, [row_of(name, problem) for problem in problems])
    adapter = adapter_of(name) if "known" in source else name
    return {"path": path, "adapter": adapter, "columns": {}, "limit": source["limit"]}
