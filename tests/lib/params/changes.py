"""Presets with other values."""

import copy
import functools
from typing import Any

from ruamel.yaml import YAML

from lib.params import Params, compose_preset, parse_params
from lib.params.load import DPO, read_yaml

Changes = dict[str, Any]
"""Values by dotted key; a number is a place in a list."""


def preset_content(changes: Changes, preset: str = "tiny-cpu") -> dict[str, Any]:
    """Return the content of a preset with other values."""
    content = copy.deepcopy(_composed(preset))
    if changes.get("dpo.init"):
        content["dpo"] = read_yaml(DPO)["dpo"] | content["dpo"]
    for key, value in changes.items():
        *above, last = (int(name) if name.isdigit() else name for name in key.split("."))
        section: Any = content
        for name in above:
            section = section[name]
        section[last] = value
    return content


@functools.cache
def _composed(preset: str) -> dict[str, Any]:
    content: dict[str, Any] = YAML(typ="safe").load(compose_preset(preset))
    return content


def accepted(changes: Changes, preset: str = "tiny-cpu") -> Params:
    return parse_params(preset_content(changes, preset), origin="params.yaml")
