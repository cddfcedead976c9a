import pytest

from lib.problems.schema import Problem
from lib.problems.store import write_table


@pytest.fixture
def table_of(tmp_path):
    """Problems as a table; texts alone get their length as reference."""
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
