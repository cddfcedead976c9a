"""docs/objectives.md names every choice there is."""

import re
from typing import get_args

from examples.cs336 import CourseLossType
from lib.objectives import LOSSES, Baseline
from lib.objectives.sampler import Correction
from lib.params.training import Grpo
from tests.conftest import ROOT


def test_every_choice_that_params_take_has_a_row():
    text = (ROOT / "docs/objectives.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^\| `(?:\w+: )?(\w+)`", text, re.MULTILINE))
    corrections = get_args(Grpo.model_fields["sampler_correction"].annotation)
    assert set(get_args(Correction)) == set(corrections)
    assert {*get_args(Baseline), *LOSSES, *corrections} <= named
    course = (ROOT / "examples/cs336/README.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in course for name in get_args(CourseLossType))
