"""docs/objectives.md names every choice there is."""

from pathlib import Path
from typing import get_args

import pytest

from lib.course import CourseLossType
from lib.objectives.advantages import Baseline
from lib.objectives.losses import LossType
from lib.objectives.sampler import Correction
from lib.params.training import ADVANTAGES, LOSSES, Grpo

DOCS = Path(__file__).parents[3] / "docs" / "objectives.md"


def rows_after(text: str) -> list[str]:
    """The table's rows that follow a piece of text, up to the next heading row or its end."""
    lines = DOCS.read_text().partition(text)[2].splitlines()[1:]
    start = next(number for number, line in enumerate(lines) if line.startswith("| "))
    rows = []
    for line in lines[start:]:
        if not line.startswith("| ") or line.startswith("| **"):
            break
        rows.append(line)
    return rows


@pytest.mark.parametrize(
    ("section", "choices", "taken"),
    [
        ("| **`grpo.advantage`**", get_args(Baseline), ADVANTAGES),
        ("| **`grpo.loss`**", get_args(LossType), LOSSES),
        (
            "| **what was sampled**",
            get_args(Correction),
            get_args(Grpo.model_fields["sampler_correction"].annotation),
        ),
    ],
)
def test_the_table_has_a_row_for_every_choice_that_params_take(
    section: str, choices: tuple[str, ...], taken: tuple[str, ...]
) -> None:
    named = {row.split("`")[1].split(": ")[-1] for row in rows_after(section)}
    assert set(choices) == set(taken)
    assert set(choices) <= named
    assert named - set(choices) <= {*Grpo.model_fields, "rollout.top_p"}


def test_the_course_s_names_are_told() -> None:
    assert {f"`{name}`" for name in get_args(CourseLossType)} <= set(DOCS.read_text().split())
