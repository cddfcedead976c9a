"""The command of the GRPO stage on an untrained checkpoint, all of its files in one folder."""

import json
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from lib.params import compose_preset
from lib.problems.generated import GeneratedSets
from tests.lib.training.runs import curve, write_inputs

WRITTEN = ("model", "metrics", "curve", "validation-curve", "rollouts", "provenance")


def grpo_stage(
    folder: Path, *, base: Path, sets: GeneratedSets, **changes: dict[str, Any]
) -> list[str]:
    """Return the arguments after `python`, or after a launcher.

    Args:
        folder: gets the stage's inputs; the stage writes `model`, `metrics`, … into it.
        changes: of the smoke preset, by section.
    """
    content = YAML(typ="safe").load(compose_preset("smoke"))
    # An untrained policy earns nothing with answers; its lengths vary.
    content["rollout"] |= {"temperature": 2.0, "max_new_tokens": 48}
    content["reward"]["extra"] = ["cosine_length"]
    content["reward"]["weights"].append(1.0)
    for section, values in changes.items():
        content[section] |= values
    (folder / "params.yaml").write_text(json.dumps(content), encoding="utf-8")
    write_inputs(folder, base, sets)
    places = {
        "params": "params.yaml",
        "code": "params.yaml",
        "base": "base",
        "init": "base",
        "problems": "grpo.jsonl",
        "validation": "validation",
        **{written: written for written in WRITTEN},
    }
    options = [f"--{option}={folder / place}" for option, place in places.items()]
    return ["-m", "stages.grpo", *options]


def learned(folder: Path) -> bool:
    """Return True if the stage took three steps, one of them along a gradient."""
    points = curve(folder / "curve")
    return len(points) == 3 and any(float(point["grad_norm"]) > 0 for point in points)
