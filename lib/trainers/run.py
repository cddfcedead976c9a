"""Run one training phase from start to outputs; the same road for SFT and GRPO."""

import dataclasses
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
from transformers import Trainer

from lib.artifacts import write_curve, write_metrics, write_provenance
from lib.engines.policy import pass_on, save_policy
from lib.trainers.tracking import curve_points


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outputs:
    """Where a phase's results go: a checkpoint, and the files that describe it."""

    model: Path
    metrics: Path
    curve: Path
    provenance: Path


def run_phase(
    build: Callable[[Path], Trainer],
    *,
    init: Path,
    skipped: str,
    outputs: Outputs,
    settings: Mapping[str, Any],
    inputs: Mapping[str, Path],
    facts: Callable[[], Mapping[str, Any]] = dict,
) -> None:
    """Train, or pass the incoming checkpoint on where the phase is skipped.

    Args:
        build: makes the trainer, given a folder for what it writes on its own.
        init: the checkpoint that the phase starts from.
        skipped: the reason in words; '' to train.
        facts: asked after training for what else provenance should hold.
    """
    if skipped:
        click.echo(f"skipped: {skipped}; {init} is passed on as {outputs.model}")
        pass_on(init, outputs.model)
        points: list[dict[str, float]] = []
    else:
        with tempfile.TemporaryDirectory() as scratch:
            points = _train(build(Path(scratch)), outputs.model)
    write_curve(outputs.curve, points)
    write_metrics(outputs.metrics, _last_point(points))
    write_provenance(
        outputs.provenance, settings=settings, inputs=inputs, skipped=bool(skipped), **facts()
    )


def _train(trainer: Trainer, checkpoint: Path) -> list[dict[str, float]]:
    trainer.train()
    if trainer.is_world_process_zero():
        save_policy(trainer.model, trainer.processing_class, checkpoint)
    return curve_points(trainer.state)


def _last_point(points: list[dict[str, float]]) -> dict[str, float]:
    """Where the curve ended; 0 steps where the phase was skipped."""
    return {"step": 0, **(points[-1] if points else {})}
