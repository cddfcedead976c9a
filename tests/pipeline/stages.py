"""Stages in this process, below the working directory."""

import importlib
from pathlib import Path

MAINS = {
    name: importlib.import_module(f"stages.{name}").main
    for name in ("prepare", "sft", "grpo", "evaluate", "grade", "export", "report")
}


def run(stage: str, *options: str) -> None:
    MAINS[stage]([*options], standalone_mode=False)


def evaluate(checkpoint: str) -> None:
    run("evaluate", *_paths("evaluate", checkpoint), f"--checkpoint=data/models/{checkpoint}")


def grade(checkpoint: str) -> None:
    rates = f"--rates=data/graded/{checkpoint}.json"
    graded = f"--graded=data/graded/{checkpoint}.jsonl"
    metrics = f"--metrics={metrics_of(checkpoint)}"
    run("grade", "checkpoint", *_paths("grade", checkpoint), graded, rates, metrics)


def export(checkpoint: str) -> None:
    measured = f"--measured={metrics_of(checkpoint)}"
    run("export", f"--checkpoint=data/models/{checkpoint}", measured)


def metrics_of(checkpoint: str) -> Path:
    return Path(f"reports/metrics/evaluate/{checkpoint}.json")


def _paths(stage: str, checkpoint: str) -> tuple[str, str]:
    return (
        f"--completions=data/completions/{checkpoint}.jsonl",
        f"--provenance=reports/provenance/{stage}/{checkpoint}.json",
    )
