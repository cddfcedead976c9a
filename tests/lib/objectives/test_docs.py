"""docs/objectives.md names every choice there is."""

from pathlib import Path
from typing import get_args

import pytest

from lib.course import CourseLossType
from lib.objectives.advantages import Baseline
from lib.objectives.losses import LossType
from lib.params.training import Grpo

DOCS = Path(__file__).parents[3] / "docs" / "objectives.md"


@pytest.mark.parametrize(
    ("section", "choices"),
    [
        ("## Advantages", get_args(Baseline)),
        ("## Losses", get_args(LossType)),
        ("Names from elsewhere", get_args(CourseLossType)),
    ],
)
def test_each_table_has_a_row_for_every_choice(section: str, choices: tuple[str, ...]) -> None:
    text = DOCS.read_text()
    table = text[text.index(section) :].split("\n\n")
    rows = next(block for block in table if block.startswith("|")).splitlines()[2:]
    assert sorted(row.split("`")[1] for row in rows) == sorted(choices)


@pytest.mark.parametrize(
    ("section", "key"), [("## Advantages", "advantage"), ("## Losses", "loss")]
)
def test_what_it_says_that_a_run_uses_is_what_params_take(section: str, key: str) -> None:
    text = DOCS.read_text()
    table = text[text.index(section) :].split("\n\n")
    rows = next(block for block in table if block.startswith("|")).splitlines()[2:]
    used = {row.split("`")[1] for row in rows if "library only" not in row}
    assert used == set(get_args(Grpo.model_fields[key].annotation))


def test_every_test_file_that_it_names_exists() -> None:
    names = {word.strip("`,") for word in DOCS.read_text().split() if word.startswith("`test_")}
    assert len(names) > 5
    assert all((Path(__file__).parent / name).is_file() for name in names)
