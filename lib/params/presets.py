"""Presets: overlays on `tiny-cpu`, resolved into a complete params.yaml that keeps its comments."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq

from lib.errors import UserError
from lib.params.load import parse_params, read_yaml
from lib.params.schema import Params

PRESETS = Path(__file__).parent.parent / "presets"
BASE = "tiny-cpu"


def preset_names() -> list[str]:
    """All presets, the default first."""
    names = sorted(path.stem for path in PRESETS.glob("*.yaml"))
    return [BASE, *(name for name in names if name != BASE)]


def compose_preset(preset: str) -> str:
    """The text of a complete params.yaml for a preset's name or a path to an overlay.

    Raises:
        UserError: no such preset; a key that the base lacks; values that do not fit together.
    """
    path = _find(preset)
    complete = _round_trip().load((PRESETS / f"{BASE}.yaml").read_text(encoding="utf-8"))
    if path != PRESETS / f"{BASE}.yaml":
        _overlay(complete, read_yaml(path), origin=str(path), parents=())
    text = _dump(complete)
    parse_params(YAML(typ="safe").load(text), origin=str(path))
    return text


def preset_params(preset: str) -> Params:
    """The params of a preset's name or a path to an overlay.

    Raises:
        UserError: as `compose_preset`.
    """
    return parse_params(YAML(typ="safe").load(compose_preset(preset)), origin=preset)


def _find(preset: str) -> Path:
    if preset in preset_names():
        return PRESETS / f"{preset}.yaml"
    path = Path(preset)
    if path.suffix in {".yaml", ".yml"} and path.is_file():
        return path
    raise UserError(
        f"no preset `{preset}`; expected the path of a YAML file or one of "
        f"{', '.join(preset_names())}"
    )


def _overlay(
    below: CommentedMap, above: Mapping[str, Any], *, origin: str, parents: tuple[str, ...]
) -> None:
    for key, value in above.items():
        dotted = (*parents, str(key))
        if key not in below:
            raise UserError(f"{origin}: {'.'.join(dotted)}: unknown key, {BASE} has no such")
        if isinstance(below[key], dict) and isinstance(value, dict):
            _overlay(below[key], value, origin=origin, parents=dotted)
        elif isinstance(value, list):
            below[key] = CommentedSeq(value)
        else:
            below[key] = value


def _round_trip() -> YAML:
    """The writer that DVC uses for `-S`, so that its changes are one-line diffs."""
    yaml = YAML()
    yaml.default_flow_style = False
    return yaml


def _dump(content: CommentedMap) -> str:
    stream = io.StringIO()
    _round_trip().dump(content, stream)
    return stream.getvalue()
