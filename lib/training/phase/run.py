"""Run one training phase from start to outputs, the same for SFT, GRPO and DPO."""

import dataclasses
import functools
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import click
import torch
from accelerate.utils import broadcast_object_list
from transformers import Trainer, TrainerState

from lib.artifacts import (
    SCRATCH,
    read_json,
    replacing,
    write_curve,
    write_json,
    write_jsonl,
    write_metrics,
    write_provenance,
)
from lib.core.errors import UserError
from lib.core.process import alone
from lib.engines.base import check_engine
from lib.models import compat
from lib.models.files import SELECTED, read_selections
from lib.models.runtime import cpu_has_bfloat16, released_memory
from lib.models.save import copy_adapter
from lib.params.training import Optimisation
from lib.training.phase.checkpoints import (
    Checkpoints,
    SaveOnSignal,
    SealCheckpoints,
    checkpoint_step,
    run_fingerprint,
)
from lib.training.phase.console import ProgressLines, say, training_log
from lib.training.phase.launch import Launch, check_world_size, is_main_process, num_processes
from lib.training.phase.ranks import check_ranks_agree, check_sharding
from lib.training.phase.rollout_log import RolloutLog, rollout_rows
from lib.training.phase.setup import save
from lib.training.phase.tracking import curve_points, track, trackers
from lib.training.phase.validation import Validator, validation_points
from lib.training.phase.warning_signs import GAP, all_signs

CURVE_ONLY = ("reward_std", "/std", "_terminated_length", f"{GAP}/mean", "_sampling_ratio/mean")
"""Ends of columns that are left out of metrics."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outputs:
    """The paths of a phase's results: a checkpoint, and the files that describe it."""

    model: Path
    metrics: Path
    curve: Path
    provenance: Path
    validation_curve: Path
    validation_completions: Path | None = None
    rollouts: Path | None = None


@released_memory()
def run_phase(
    build: Callable[[Path], Trainer],
    *,
    stage: str,
    section: Optimisation,
    init: Path,
    outputs: Outputs,
    settings: Mapping[str, Any],
    inputs: Mapping[str, Path],
    validator: Validator | None = None,
    adapter: Path | None = None,
    scratch: Path = SCRATCH,
) -> None:
    """Train a phase and write its outputs; a skipped phase passes its checkpoint on.

    An interrupted phase resumes from its last checkpoint (`run_fingerprint`), and ends with the
    same files as a run without interruption.

    Args:
        build: returns the trainer, given the trainer's output folder.
        settings, inputs: all params and files that the phase depends on.
        validator: with `section.eval_steps` of 0 it only names the columns of an empty curve.
        adapter: trained elsewhere; a skipped phase passes it on in place of `init`.

    Raises:
        UserError: another process runs this stage, or this one was interrupted.
    """
    check_world_size()
    origin: dict[str, Any] = {"settings": settings, "inputs": inputs}
    if section.skipped:
        if is_main_process():
            click.echo(f"skipped: {section.skipped}; {adapter or init} becomes {outputs.model}")
            pass_on(init, adapter, outputs.model)
            write_results(outputs, TrainerState(), validator)
            write_provenance(outputs.provenance, **origin, skipped=adapter is None)
        return
    active = validator if section.eval_steps else None
    # Raise for a missing package now, and not after a model is loaded.
    trackers()
    if active:
        check_engine(active.settings.engine, active.init, base=active.base)
    # A file lock allows only one run of a stage at a time. Rank 0 holds it for all ranks.
    lock = alone(scratch / stage / "lock", what=stage) if is_main_process() else nullcontext()
    name = run_fingerprint(stage, **origin)
    with lock, training_log(stage, scratch / stage / "training.log"):
        checkpoints = Checkpoints(scratch / stage / name)
        try:
            newest = checkpoints.open() if is_main_process() else None
            trainer = build(checkpoints.writing)
            prepare(trainer, stage, section)
            connect(trainer, active, rollouts=outputs.rollouts)
            track(trainer, f"{stage}-{name}", settings)
            train(trainer, checkpoints, newest, active, stage=stage, section=section)
            best = active.best_point(trainer.state) if active and section.select == "best" else None
            hand_on(trainer, checkpoints, outputs, validator, stage=stage, init=init, best=best)
            if trainer.is_world_process_zero():
                signs = all_signs(trainer)
                write_provenance(outputs.provenance, **origin, skipped=False, warnings=signs)
                checkpoints.finish(keep=section.keep_checkpoints, base=inputs.get("base"))
        except KeyboardInterrupt:
            raise UserError(f"{stage} was interrupted; {resume_hint(checkpoints, stage)}") from None


def pass_on(init: Path, adapter: Path | None, model: Path) -> None:
    """Copy the checkpoint of a skipped phase, or its adapter, to the phase's output."""
    # Without DVC the folder of an earlier run is still there: none of its files may stay.
    with replacing(model) as unfinished:
        if adapter:
            copy_adapter(adapter, base=init, checkpoint=unfinished)
        else:
            # DVC caches by content, so that the copy takes no space there.
            shutil.copytree(init, unfinished)


def prepare(trainer: Trainer, stage: str, section: Optimisation) -> None:
    """Check a trainer's ranks and data, and warn of a slow machine."""
    check_sharding(trainer)
    if (ranks := num_processes()) > 1:
        say(f"{stage} runs on {Launch(ranks, shards=trainer.is_fsdp_enabled)}")
        rows = trainer.train_dataset
        if rows is not None and len(rows) < section.micro_batch_size:
            raise UserError(
                f"{stage}.micro_batch_size={section.micro_batch_size}: there are only "
                f"{len(rows)} rows, and {ranks} ranks leave out an incomplete micro-batch; "
                "lower it, or train with one process"
            )
    # Each epoch's order of the data depends only on seed and epoch, also after a resume.
    compat.order_by_epoch(trainer)
    if has_slow_bfloat16(trainer):
        say(
            f"{stage} WARNING this CPU has no bfloat16 instructions: a step takes at least nine "
            "times as long as in float32; set model.mixed_precision: fp32 and model.dtype: float32"
        )


def train(
    trainer: Trainer,
    checkpoints: Checkpoints,
    newest: Path | None,
    validator: Validator | None,
    *,
    stage: str,
    section: Optimisation,
) -> None:
    """Train from the newest checkpoint or from the start, with validation and checkpoints.

    Args:
        newest: rank 0's checkpoint to resume from; None on the other ranks.

    Raises:
        UserError: SIGTERM ended the training.
    """
    # Rank 0 decides: on several machines, ranks may see different checkpoints, and ranks at
    # different steps would wait for each other for ever.
    (name,) = broadcast_object_list([newest.name if newest else ""])
    checkpoint = checkpoints.folder / name if name else None
    if checkpoint:
        # Two faults: torch cannot load an optimiser's state onto the device `cpu:0`, and TRL starts
        # the count of tokens at 0.
        compat.load_onto_numbered_cpu()
        compat.resume_token_count(trainer, read_json(checkpoint / "trainer_state.json"))
        say(f"{stage} resumes from step {checkpoint_step(checkpoint)} ({checkpoint})")
    if validator:
        keep = functools.partial(save_best, trainer, checkpoints)
        keep_best = keep if section.select == "best" else None
        validator.watch(trainer, stage=stage, steps=section.eval_steps, keep=keep_best)
    # Saves a checkpoint after SIGTERM or SIGUSR1. It holds neither the rollouts nor the means since
    # the last logged step. It is therefore saved only at a multiple of the steps per roll-out and
    # per logged point, after which both start anew.
    on_signal = SaveOnSignal(math.lcm(section.steps_per_rollout, section.logging_steps))
    trainer.add_callback(on_signal)
    trainer.add_callback(SealCheckpoints(checkpoints, keep=section.keep_checkpoints))
    with on_signal.watch(), closing(validator) if validator else nullcontext():
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    if on_signal.ended:
        # Rank 0's hint, since a shared folder may show its checkpoint to other ranks late.
        (hint,) = broadcast_object_list([resume_hint(checkpoints, stage)])
        raise UserError(f"{stage} was interrupted; {hint}")
    check_ranks_agree(trainer)


def connect(trainer: Trainer, validator: Validator | None, *, rollouts: Path | None) -> None:
    """Let generation within a step report its progress, and the rollout log write its rows.

    The transformers engine calls its `heartbeat` with three numbers: ended completions, all
    completions, and tokens.

    Args:
        rollouts: file that gets logged completions as they happen.
    """
    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, RolloutLog):
            callback.path = rollouts
        if isinstance(callback, ProgressLines):
            # Only `PolicyGradientTrainer` has an engine.
            if engine := getattr(trainer, "engine", None):
                engine.heartbeat = functools.partial(callback.heartbeat, "rollouts")
            if validator:
                validator.heartbeat = functools.partial(callback.heartbeat, "validation")


def hand_on(
    trainer: Trainer,
    checkpoints: Checkpoints,
    outputs: Outputs,
    validator: Validator | None,
    *,
    stage: str,
    init: Path,
    best: Mapping[str, float] | None,
) -> None:
    """Write the phase's checkpoint and results.

    Args:
        best: the selected validation point; None if params select the last step.
    """
    if not best:
        # All ranks gather sharded weights; the first one writes.
        save(trainer, outputs.model)
    if not trainer.is_world_process_zero():
        return
    if best:
        # `save_best` wrote its weights during training.
        with replacing(outputs.model) as unfinished:
            shutil.copytree(checkpoints.best(int(best["step"])), unfinished)
    write_results(outputs, trainer.state, validator, rollouts=rollout_rows(trainer), best=best)
    # {stage: best point} of earlier phases and this one, for the checkpoint's card.
    if selections := read_selections(init) | ({stage: best} if best else {}):
        write_json(outputs.model / SELECTED, selections)


def save_best(trainer: Trainer, checkpoints: Checkpoints, step: int) -> None:
    """Keep the weights of `step`, the best so far, and drop those that were best before."""
    save(trainer, checkpoints.best(step))
    if trainer.is_world_process_zero():
        checkpoints.drop_old_bests()


def write_results(
    outputs: Outputs,
    state: TrainerState,
    validator: Validator | None,
    *,
    rollouts: Sequence[Mapping[str, Any]] = (),
    best: Mapping[str, float] | None = None,
) -> None:
    """Write the curves, metrics and rollouts of a phase.

    Args:
        state: has the log; a skipped phase's has no points.
        validator: None for a phase that has no validation curve.
        rollouts: rows of the rollout log.
        best: the selected validation point, if params select the best one.
    """
    if outputs.rollouts:
        write_jsonl(outputs.rollouts, rollouts)
    # Without a point these files have no rows, but are written: DVC expects all outs.
    if validator:
        write_curve(outputs.validation_curve, validation_points(state), columns=validator.columns)
        if outputs.validation_completions:
            rows = map(dataclasses.asdict, validator.rows)
            write_jsonl(outputs.validation_completions, rows)
    points = curve_points(state)
    write_curve(outputs.curve, points)
    # Later points overwrite earlier ones: the last value of each column. The last point may lack
    # some, since a second update on the same rollouts logs no rewards.
    last = {name: value for point in points for name, value in point.items()}
    means = {name: last[name] for name in last if not name.endswith(CURVE_ONLY)}
    # `means` has the run's last step under `step`. A skipped phase has no points: 0 stays.
    write_metrics(outputs.metrics, {"step": 0, **means, **({"selected": best} if best else {})})


def has_slow_bfloat16(trainer: Trainer) -> bool:
    """Return True if the policy is trained in bfloat16 on a CPU that emulates it."""
    half = trainer.args.bf16 or next(trainer.model.parameters()).dtype == torch.bfloat16
    on_cpu: bool = trainer.args.device.type == "cpu"
    # None is unknown: no warning.
    return half and on_cpu and cpu_has_bfloat16() is False


def resume_hint(checkpoints: Checkpoints, stage: str) -> str:
    """Describe, for a message, from which step the same command would resume."""
    named = checkpoints.by_step()
    if named:
        return f"the same command resumes from step {checkpoint_step(named[-1])}"
    return f"the same command starts again ({stage}.save_steps sets how often it is saved)"
