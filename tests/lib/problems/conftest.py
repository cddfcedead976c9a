from collections.abc import Sequence

import pytest

from lib.artifacts.problems import Problem
from lib.params import preset_params
from lib.params.data import Prepare
from lib.problems.lengths import Rendering
from lib.problems.store import ProblemTable, write_table
from lib.prompts import prompt_format


@pytest.fixture
def table_of(tmp_path):
    """Problems as a table; of a text, the length is the reference."""
    count = iter(range(1000))

    def build(problems, *, source=0):
        rows = [
            problem
            if isinstance(problem, Problem)
            else Problem.create(problem=problem, reference=str(len(problem)))
            for problem in problems
        ]
        return write_table(tmp_path / f"{next(count)}.arrow", rows, source=source)

    return build


def texts(table: ProblemTable) -> list[str]:
    return list(table.column("problem"))


def words(batch: Sequence[str]) -> list[int]:
    """Counts words in place of tokens."""
    return [len(text.split()) for text in batch]


def rendering(name: str = "xml", eos_token: str = "<eos>") -> Rendering:
    return Rendering(
        prompt_format=prompt_format(name), system="", bos_token="", eos_token=eos_token
    )


def section(
    sft: dict[str, object] | None = None, grpo: dict[str, object] | None = None, **changes: object
) -> Prepare:
    """The smoke preset's `prepare` with these changes, nested sections by name."""
    prepare = preset_params("smoke").prepare
    changes |= {"sft": prepare.sft.model_copy(update=sft or {})}
    changes |= {"grpo": prepare.grpo.model_copy(update=grpo or {})}
    lengths = changes.pop("lengths", {})
    changes["lengths"] = prepare.lengths.model_copy(update=lengths)
    return prepare.model_copy(update=changes)
