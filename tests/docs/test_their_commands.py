"""The commands and values of lib/presets/README.md hold on their section's preset.

`key: value` is in the preset; DVC takes `-S key=value`, params accept it and the plan can print it.
test_links.py checks the commands of every page.
"""

import re
import shlex

import pytest
from dvc.utils.hydra import apply_overrides
from ruamel.yaml import YAML

from lib.params import compose_preset, load_params, preset_params
from lib.planning.plan import plan_lines
from tests.conftest import ROOT

PAGE = (ROOT / "lib/presets/README.md").read_text(encoding="utf-8")
SECTIONS = {
    preset: section
    for section in PAGE.split("\n## ")[1:]
    for preset in re.findall(r"`([^`]+)`", section.splitlines()[0])
}
OURS = [
    (preset, span)
    for preset, section in SECTIONS.items()
    for row in re.findall(r"^\| .*", section, re.MULTILINE)
    for span in re.findall(r"`([^`]+)`", re.split(r" \| ", row)[1])
]


def spans(pattern: str) -> list[object]:
    return [
        pytest.param(preset, span, id=f"{preset.split('-')[0]}-{number}")
        for number, (preset, span) in enumerate(OURS)
        if re.match(pattern, span)
    ]


@pytest.mark.parametrize(("preset", "span"), spans(r"[a-z_]+(\.[a-z_]+)+: "))
def test_a_value_named_as_the_presets_is_in_it(preset, span):
    key, _, value = span.partition(": ")
    section, *names = key.split(".")
    content = preset_params(preset).model_dump(mode="json")[section]
    for name in names:
        content = content[name]
    assert content == YAML(typ="safe").load(value)


@pytest.mark.parametrize(("preset", "span"), spans("-S "))
def test_an_override_is_taken_and_can_be_planned(preset, span, tmp_path):
    file = tmp_path / "params.yaml"
    file.write_text(compose_preset(preset), encoding="utf-8")
    apply_overrides(str(file), [word for word in shlex.split(span) if word != "-S"])
    changed = load_params(file)
    assert changed != preset_params(preset)
    assert list(plan_lines(changed))
