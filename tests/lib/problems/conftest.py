from collections.abc import Sequence
from typing import Any

import pytest

from lib.artifacts.problems import Problem
from lib.params import preset_params
from lib.params.data import Prepare
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
        count=count, prompt_format=own_format, system="", bos_token="", eos_token=eos_token
    )


def section(
    sft: dict[str, object] | None = None, grpo: dict[str, object] | None = None, **changes: object
) -> Prepare:
    """Return the smoke preset's `prepare` with changes, nested sections by name."""
    prepare = preset_params("smoke").prepare
    changes |= {"sft": prepare.sft.model_copy(update=sft or {})}
    changes |= {"grpo": prepare.grpo.model_copy(update=grpo or {})}
    lengths = changes.pop("lengths", {})
    changes["lengths"] = prepare.lengths.model_copy(update=lengths)
    return prepare.model_copy(update=changes)
