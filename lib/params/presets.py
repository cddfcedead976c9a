"""Presets: overlays on `tiny-cpu` or on one another, resolved into a complete params.yaml.

It keeps the comments of `tiny-cpu`.
"""

import functools
import io
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap

from lib.core.errors import UserError
from lib.params.data import write_out
from lib.params.load import DPO, PRESETS, parse_params, read_yaml, round_trip
from lib.params.model import Checkpoint
from lib.params.schema import Params
from lib.params.training import AdamW

MODELS = PRESETS / "models"
"""Overlays that replace a preset's own model."""

BASE = "tiny-cpu"
"""The preset with all keys; the others are overlays on it, directly or not."""

QUICK_ROWS, QUICK_STEPS, QUICK_PROMPTS = 16, 5, 8
"""Problems per benchmark, optimiser steps of SFT and of GRPO, and problems per step of GRPO with
the transformers engine, after `shorten_run`."""


def preset_names() -> list[str]:
    """List all presets, the default first."""
    names = sorted(path.stem for path in PRESETS.glob("*.yaml"))
    return [BASE, *(name for name in names if name != BASE)]


def model_names() -> list[str]:
    """List the models that can replace a preset's own."""
    return sorted(path.stem for path in MODELS.glob("*.yaml"))


def compose_preset(preset: str, **options: Any) -> str:
    """Return the text of a complete params.yaml, with comments; arguments of `_composed`."""
    complete = _composed(preset, round_trip(), **options)
    stream = io.StringIO()
    round_trip().dump(complete, stream)
    text = stream.getvalue()
    parse_params(YAML(typ="safe").load(text), origin=preset)
    return text


def _composed(
    preset: str,
    yaml: YAML,
    *,
    model: str = "",
    dpo: str = "",
    quick: bool = False,
    changes: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the content of a complete params.yaml.

    An overlay is a YAML file with the changed keys of the preset below it.

    Args:
        preset: a preset's name, or the path of an overlay.
        yaml: reads the base; with `round_trip`, keys keep their order and comments.
        model: replacement for the preset's own, one of `model_names`; '' keeps it.
        dpo: the checkpoint to start DPO from, `sft` or `grpo`; '' adds no DPO.
        quick: shorten the run to few steps and problems (`shorten_run`).
        changes: further values by section, over all others.

    Raises:
        UserError: no such preset, a key unknown to the base, or contradictory values.
    """
    path = _preset_file(preset)
    complete: dict[str, Any] = yaml.load((PRESETS / f"{BASE}.yaml").read_text(encoding="utf-8"))
    # Imported here, since it takes 0.4 s. It merges mappings key by key, in place; a list replaces
    # the whole list below. `parse_params` refuses unknown keys.
    from dvc.utils.collections import merge_dicts

    for overlay in _overlays(path):
        if isinstance(complete, CommentedMap):
            _place_optimizer_keys(complete, overlay)
        merge_dicts(complete, overlay)
    if dpo:
        evaluated = {*complete["evaluate"]["checkpoints"], dpo, "dpo"}
        checkpoints = [name for name in get_args(Checkpoint) if name in evaluated]
        added = {"dpo": {"init": [dpo]}, "evaluate": {"checkpoints": checkpoints}}
        merge_dicts(complete, added)
    if complete["dpo"]["init"]:
        # With the comments of the overlay that adds the phase.
        phase = yaml.load(DPO.read_text(encoding="utf-8"))["dpo"]
        complete["dpo"] = merge_dicts(phase, complete["dpo"])
    if model:
        if model not in model_names():
            raise UserError(f"no model `{model}`; expected one of {', '.join(model_names())}")
        merge_dicts(complete, read_yaml(MODELS / f"{model}.yaml"))
    write_out(complete)
    if quick:
        parse_params(complete, origin=str(path))
        shorten_run(complete)
    merge_dicts(complete, changes or {})
    write_out(complete)
    return complete


def _place_optimizer_keys(complete: CommentedMap, overlay: Mapping[str, Any]) -> None:
    """Put a phase's own optimiser settings below its learning rate.

    At the end of the section they would come after the comment on the next section.
    """
    for name in ("sft", "grpo"):
        phase, own = complete[name], overlay.get(name)
        for key in AdamW.model_fields:
            if isinstance(own, Mapping) and key in own and key not in phase:
                phase.insert([*phase].index("learning_rate") + 1, key, own[key])


def preset_params(preset: str, **options: Any) -> Params:
    """Return the params of a preset, given by its name or as the path of an overlay.

    Args:
        options: `model`, `dpo`, `quick` and `changes` of `_composed`.

    Raises:
        UserError: no such preset, a key unknown to the base, or contradictory values.
    """
    return parse_params(_composed(preset, YAML(typ="safe"), **options), origin=preset)


# Composing all presets takes seconds.
@functools.cache
def _preset_values(preset: str) -> Mapping[str, Any]:
    return preset_params(preset).flat()


def nearest_preset(
    values: Mapping[str, Any], *, shown: Callable[[Any], Any] = lambda value: value
) -> tuple[str, dict[str, Any], list[str]]:
    """Find the preset with the fewest values different from `values`.

    Args:
        values: by dotted key; a key that the preset lacks is no difference.
        shown: converts a preset's value to the form of `values` before the comparison, for example
            to text; by default it stays as it is.

    Returns:
        The preset's name, its values by dotted key after `shown`, and the keys that differ.
    """
    candidates = []
    for name in preset_names():
        preset = {key: shown(value) for key, value in _preset_values(name).items()}
        changed = [key for key in values if key in preset and preset[key] != values[key]]
        candidates.append((name, preset, changed))
    # The fewest changed keys. Ties go to the first name, so that equal runs give equal reports.
    return min(candidates, key=lambda candidate: (len(candidate[2]), candidate[0]))


def shorten_run(content: dict[str, Any]) -> None:
    """Cut `content` in place to few steps and problems, on the same model and micro-batches.

    GRPO gets five steps. SFT has no number of steps, only epochs and examples: it gets the examples
    of five steps, of which packing makes fewer. DPO gets pairs from few problems, and one epoch.

    Args:
        content: a complete params.yaml.
    """
    prepare, sft, grpo = content["prepare"], content["sft"], content["grpo"]
    synthetic = prepare["synthetic"]
    for entry in prepare["benchmarks"]:
        if generated := entry["source"].get("generator"):
            size = f"num_{generated}"
            synthetic[size] = min(QUICK_ROWS, synthetic[size])
        else:
            limit = entry["source"]["limit"]
            entry["source"]["limit"] = QUICK_ROWS if limit == "all" else min(QUICK_ROWS, limit)
    prepare["sft"]["num_train_examples"] = QUICK_STEPS * sft["batch_size"]
    if grpo["max_steps"] and content["rollout"]["engine"] == "transformers":
        # Sampling is most of a step there. Whole micro-batches are left.
        rows = grpo["micro_batch_size"] * grpo["updates_per_rollout"]
        whole = math.lcm(rows, grpo["group_size"]) // grpo["group_size"]
        fewer = whole * math.ceil(QUICK_PROMPTS / whole)
        grpo["prompts_per_step"] = min(grpo["prompts_per_step"], fewer)
    prepare["grpo"]["num_train_examples"] = max(QUICK_ROWS, grpo["prompts_per_step"])
    sft["num_epochs"] = min(1, sft["num_epochs"])
    grpo["max_steps"] = min(QUICK_STEPS, grpo["max_steps"])
    # Nothing is saved between the steps on one generation. After the last step, the trainer saves
    # anyway.
    steps = grpo["num_iterations"] * grpo["updates_per_rollout"]
    validates = content["dpo"]["init"] and content["dpo"]["eval_steps"]
    save_steps = {"sft": QUICK_STEPS, "grpo": math.lcm(QUICK_STEPS, steps)}
    for name, length in (("sft", sft["num_epochs"]), ("grpo", grpo["max_steps"])):
        # A skipped phase keeps its other values: changed ones would be reported as without effect.
        if length:
            section = content[name]
            section["logging_steps"] = 1
            # 0 stays: the whole run never validates, or saves, and may not be able to.
            section["save_steps"] = section["save_steps"] and save_steps[name]
            section["eval_steps"] = section["eval_steps"] and QUICK_STEPS
            validates = validates or section["eval_steps"]
    if validates:
        content["validation"]["num_problems"] = 8
    if content["dpo"]["init"]:
        content["dpo"]["num_epochs"] = min(1, content["dpo"]["num_epochs"])
        content["dpo"]["pairs"]["num_problems"] = QUICK_ROWS
    for decoding in (content["evaluate"], *content["evaluate"]["overrides"]):
        decoding["num_samples"] = min(2, decoding["num_samples"])
    content["export"]["num_verified"] = 8


def _preset_file(preset: str) -> Path:
    """Return the file of a preset, given by its name or as the path of an overlay.

    Raises:
        UserError: neither a preset's name nor an existing YAML file.
    """
    if preset in preset_names():
        return PRESETS / f"{preset}.yaml"
    path = Path(preset)
    if path.suffix in {".yaml", ".yml"} and path.is_file():
        return path
    raise UserError(
        f"no preset `{preset}`; expected the path of a YAML file or one of "
        f"{', '.join(preset_names())}"
    )


def _overlays(path: Path) -> list[dict[str, Any]]:
    """Return the contents of the overlays to apply on `BASE`; the last is that of `path`.

    For example, s4-gsm8k-lora-llama.yaml has a line `preset: s4-gsm8k-lora`: it comes second, after
    s4-gsm8k-lora.yaml.

    Raises:
        UserError: an overlay names no preset as the one below it.
    """
    if path == PRESETS / f"{BASE}.yaml":
        return []
    content = read_yaml(path)
    # `preset` names the preset below, and `facts` are `preset_facts`: the keys that are no params.
    below = content.pop("preset", BASE)
    content.pop("facts", None)
    if below not in preset_names():
        raise UserError(
            f"{path}: preset: expected one of {', '.join(preset_names())}, got {below!r}"
        )
    return [*_overlays(_preset_file(below)), content]


@functools.cache
def preset_facts() -> dict[str, dict[str, Any]]:
    """Return preset → its `facts`, which are no params, with its model's name as `name`.

    {"model": config.json as far as a size depends on it, "states": phase → what the source says of
    its own run, "published": times of runs near it}
    """
    facts = {}
    for path in sorted(PRESETS.glob("*.yaml")):
        models = [each.get("model", {}) for each in reversed(_overlays(path))]
        name = next((each["name"] for each in models if "name" in each), "")
        facts[path.stem] = {"name": name, **read_yaml(path).get("facts", {})}
    return facts


def model_shapes() -> dict[str, dict[str, Any]]:
    """Return model → config.json as far as a size depends on it, of the presets' models."""
    return {each["name"]: each["model"] for each in preset_facts().values() if "model" in each}


def facts_of(params: Params) -> dict[str, Any]:
    """Return the facts of the preset with this model; of several, of the nearest; {} of none."""
    values = params.flat()

    def differences(preset: str) -> int:
        other = _preset_values(preset)
        return sum(other[key] != value for key, value in values.items() if key in other)

    same = [name for name, facts in preset_facts().items() if facts["name"] == params.model.name]
    nearest = min(same, key=differences) if len(same) > 1 else next(iter(same), "")
    return preset_facts().get(nearest, {})
