from collections.abc import Sequence
from typing import Any

import pytest

from lib.artifacts.problems import Problem
from lib.problems.selection import TokenCounter
from lib.problems.store import Drops, ProblemTable, write_table
from lib.prompts import prompt_format


@pytest.fixture
def table_of(tmp_path):
    """Write problems as a table; a bare text's reference is its length."""
    count = iter(range(1000))

    def build(problems, *, source=0):
        rows = [
            problem
            if isinstance(problem, Problem)
            else Problem.create(problem=problem, reference=str(len(problem)))
            for problem in problems
        ]
        drops = Drops(num_read=len(rows))
        return write_table(tmp_path / f"{next(count)}.arrow", rows, drops, source=source)

    return build


def texts(table: ProblemTable) -> list[str]:
    return list(table.column("problem"))


def words(batch: Sequence[str]) -> list[int]:
    """Count words instead of tokens."""
    return [len(text.split()) for text in batch]


def counter(name: str = "xml", *, count: Any = words, eos_token: str = "<eos>") -> TokenCounter:
    own_format = prompt_format(name)
    return TokenCounter(
        count=count,
        prompt_format=own_format,
        template=own_format.chat_template,
        system="",
        bos_token="",
        eos_token=eos_token,
    )


def path_source(name: str, **columns: str) -> dict[str, object]:
    """Return params' source of the rows in data/raw/`name`.jsonl."""
    file = f"data/raw/{name}.jsonl"
    return {"path": file, "adapter": "table", "columns": columns, "limit": "all"}


def whole(*names: str) -> list[dict[str, object]]:
    """Return params' `sources` of all rows in files."""
    return [{"weight": "all", "source": path_source(name)} for name in names]
