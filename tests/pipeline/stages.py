"""Run stages in this process, on files below the working directory."""

import importlib
from pathlib import Path
from typing import Any

import pytest

MAINS = {
    name: importlib.import_module(f"stages.{name}").main
    for name in ("prepare", "sft", "grpo", "evaluate", "grade", "export", "report")
}


def run(stage: str, *options: str) -> None:
    # Any file will do as the manifest, which DVC reads and not the stage.
    MAINS[stage]([*options, f"--code={__file__}"], standalone_mode=False)


def evaluate(checkpoint: str) -> None:
    run("evaluate", *_paths("evaluate", checkpoint), f"--checkpoint=data/models/{checkpoint}")


def grade(checkpoint: str) -> None:
    rates = f"--rates=data/graded/{checkpoint}.json"
    graded = f"--graded=data/graded/{checkpoint}.jsonl"
    metrics = f"--metrics={metrics_of(checkpoint)}"
    run("grade", *_paths("grade", checkpoint), graded, rates, metrics)


def export(checkpoint: str) -> None:
    measured = f"--measured={metrics_of(checkpoint)}"
    run("export", f"--checkpoint=data/models/{checkpoint}", measured)


def trainers_of_stages(patch: pytest.MonkeyPatch, *callbacks: Any) -> dict[str, Any]:
    """Return a dict that stages fill with their trainers, by phase; add callbacks to each."""
    built: dict[str, Any] = {}
    for phase in ("sft", "grpo"):
        module = importlib.import_module(f"lib.training.{phase}")
        set_up = getattr(module, f"{phase}_setup")

        def recorded(*args: Any, phase: str = phase, set_up: Any = set_up, **named: Any) -> Any:
            setup = set_up(*args, **named)
            for callback in callbacks:
                setup.trainer.add_callback(callback)
            built[phase] = setup.trainer
            return setup

        patch.setattr(module, f"{phase}_setup", recorded)
    return built


def metrics_of(checkpoint: str) -> Path:
    return Path(f"reports/metrics/evaluate/{checkpoint}.json")


def _paths(stage: str, checkpoint: str) -> tuple[str, str]:
    return (
        f"--completions=data/completions/{checkpoint}.jsonl",
        f"--provenance=reports/provenance/{stage}/{checkpoint}.json",
    )
