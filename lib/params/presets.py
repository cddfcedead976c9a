"""Presets: overlays on `tiny-cpu`, resolved into a complete params.yaml that keeps its comments."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq

from lib.core.errors import UserError
from lib.params.load import parse_params, read_yaml
from lib.params.schema import Params

PRESETS = Path(__file__).parent.parent / "presets"
BASE = "tiny-cpu"

QUICK_ROWS, QUICK_STEPS = 32, 5


def preset_names() -> list[str]:
    """All presets, the default first."""
    names = sorted(path.stem for path in PRESETS.glob("*.yaml"))
    return [BASE, *(name for name in names if name != BASE)]


def compose_preset(preset: str, *, quick: bool = False) -> str:
    """The text of a complete params.yaml for a preset's name or a path to an overlay.

    Args:
        preset: a name or a path.
        quick: make it the first ten minutes on a rented card (`shorten`).

    Raises:
        UserError: no such preset; a key that the base lacks; values that do not fit together.
    """
    path = _find(preset)
    complete = round_trip().load((PRESETS / f"{BASE}.yaml").read_text(encoding="utf-8"))
    if path != PRESETS / f"{BASE}.yaml":
        _overlay(complete, read_yaml(path), origin=str(path), parents=())
    if quick:
        shorten(complete)
    stream = io.StringIO()
    round_trip().dump(complete, stream)
    text = stream.getvalue()
    parse_params(YAML(typ="safe").load(text), origin=str(path))
    return text


def preset_params(preset: str) -> Params:
    """The params of a preset's name or a path to an overlay.

    Raises:
        UserError: as `compose_preset`.
    """
    return parse_params(YAML(typ="safe").load(compose_preset(preset)), origin=preset)


def shorten(content: dict[str, Any]) -> None:
    """The same model, lengths, engines and batches, with five steps a phase and few problems.

    SFT has no other measure of its length than epochs and examples: it gets those of five steps.
    """
    prepare, sft, grpo = content["prepare"], content["sft"], content["grpo"]
    for entry in prepare["benchmarks"]:
        entry["source"] |= {"limit": QUICK_ROWS} if "limit" in entry["source"] else {}
    prepare["sft"]["num_train_examples"] = QUICK_STEPS * sft["batch_size"]
    prepare["grpo"]["num_train_examples"] = max(QUICK_ROWS, grpo["prompts_per_step"])
    content["validation"]["num_problems"] = 8
    sft["num_epochs"] = min(1, sft["num_epochs"])
    content["dpo"]["num_epochs"] = min(1, content["dpo"]["num_epochs"])
    content["dpo"]["pairs"]["num_problems"] = QUICK_ROWS
    grpo["max_steps"] = min(QUICK_STEPS, grpo["max_steps"])
    for phase in (sft, grpo):
        phase |= {"logging_steps": 1, "save_steps": QUICK_STEPS, "eval_steps": QUICK_STEPS}
    content["evaluate"]["num_samples"] = min(2, content["evaluate"]["num_samples"])
    content["export"]["num_verified"] = 8


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


def round_trip() -> YAML:
    """The writer that DVC uses for `-S`, so that its changes are one-line diffs."""
    yaml = YAML()
    yaml.default_flow_style = False
    return yaml
