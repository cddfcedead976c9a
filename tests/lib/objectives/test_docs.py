"""docs/objectives.md names every choice there is."""

import re
from typing import get_args

from examples.cs336 import CourseLossType
from lib.objectives import LOSSES
from lib.objectives.advantages import Baseline
from lib.objectives.sampler import Correction
from lib.params.training import ADVANTAGES, Grpo
from tests.conftest import ROOT


def test_every_choice_that_params_take_has_a_row():
    text = (ROOT / "docs/objectives.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^\| `(?:\w+: )?(\w+)`", text, re.MULTILINE))
    corrections = get_args(Grpo.model_fields["sampler_correction"].annotation)
    for choices, taken in (
        (get_args(Baseline), ADVANTAGES),
        (LOSSES, LOSSES),
        (get_args(Correction), corrections),
    ):
        assert set(choices) == set(taken)
        assert set(choices) <= named
    course = (ROOT / "examples/cs336/README.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in course for name in get_args(CourseLossType))
