"""The examples and names of docs/evaluate.md are valid."""

import re

from ruamel.yaml import YAML

from lib.evaluation.models import apply_settings
from lib.params.load import parse_section
from lib.params.model import Evaluate
from tests.conftest import ROOT

PAGE = (ROOT / "docs/evaluate.md").read_text("utf-8")


def test_the_section_and_the_settings_shown_are_valid(smoke):
    shown = YAML(typ="safe").load(re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[0])["evaluate"]
    section = {**smoke.evaluate.model_dump(mode="json"), **shown}
    assert parse_section(Evaluate, section, origin="docs").overrides
    (text,) = re.findall(r'--set "([^"]+)"', PAGE)
    apply_settings(section, text, benchmarks=["held_out", "gsm8k", "aime24"])
