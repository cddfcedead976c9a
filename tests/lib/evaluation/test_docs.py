"""The examples and names of docs/evaluate.md are valid."""

import re

from ruamel.yaml import YAML

from lib.evaluation.models import apply_settings
from lib.params.load import parse_section
from lib.params.model import Evaluate
from tests.conftest import ROOT

PAGE = (ROOT / "docs/evaluate.md").read_text("utf-8")


def test_the_section_shown_is_valid(smoke):
    shown = YAML(typ="safe").load(re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[0])["evaluate"]
    section = {**smoke.evaluate.model_dump(mode="json"), **shown}
    evaluate = parse_section(Evaluate, section, origin="docs")
    assert evaluate.decoding_of("aime24").num_samples == 16


def test_the_settings_of_the_command_are_taken(smoke):
    (text,) = re.findall(r'--set "([^"]+)"', PAGE)
    section = smoke.evaluate.model_dump(mode="json")
    evaluate, _ = apply_settings(section, text, benchmarks=["held_out", "gsm8k"])
    assert (evaluate.temperature, evaluate.decoding_of("gsm8k").num_samples) == (0.6, 4)
