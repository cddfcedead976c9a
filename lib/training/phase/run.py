"""Run one training phase from start to outputs, the same for SFT, GRPO and DPO."""

import dataclasses
import functools
import math
import re
import shutil
from collections import Counter
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
from lib.artifacts.completions import GradedCompletion
from lib.artifacts.models import SELECTED, read_selections
from lib.core.errors import UserError
from lib.core.process import alone
from lib.engines import compat
from lib.engines.base import check_engine
from lib.engines.policy import copy_adapter, save_policy
from lib.engines.runtime import released_memory
from lib.params.training import Optimisation
from lib.training.phase.checkpoints import (
    COUNTS,
    Checkpoints,
    SaveOnSignal,
    SealCheckpoints,
    checkpoint_step,
    run_fingerprint,
)
from lib.training.phase.launch import check_world_size, is_main_process, num_processes
from lib.training.phase.ranks import (
    check_ranks_agree,
    check_sharding,
    describe_ranks,
    gather_weights,
)
from lib.training.phase.rollout_log import rollout_rows
from lib.training.phase.tracking import (
    Announcer,
    ProgressLines,
    Tracker,
    curve_points,
)
from lib.training.phase.validation import Validator, validation_columns, validation_points
from lib.training.phase.warning_signs import WarningSigns

Counts = Mapping[str, Mapping[str, int]]

NO_METRIC = re.compile(
    r"_std$(?<!zero_std)|/(std|min|max)$|/(min|max)_|terminated|_(min|max)$|sampling/.*_(ratio|diff)"
)
"""Columns of the curve left out of metrics. Examples of each alternative, in order:

    reward_std, but not frac_reward_zero_std
    rewards/answer/std, sampling/importance_sampling_ratio/max
    completions/min_length
    completions/mean_terminated_length
    clip_ratio/low_min
    sampling/sampling_logp_difference/mean: there is a warning for it
"""


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
    counts: Callable[[], Counts] = dict,
    validator: Validator | None = None,
    adapter: Path | None = None,
    scratch: Path = SCRATCH,
) -> None:
    """Train a phase and write its outputs; a skipped phase passes its checkpoint on.

    An interrupted phase resumes from its last checkpoint if params, inputs, code and packages are
    unchanged. It ends with the same files as a run without interruption.

    Args:
        build: returns the trainer, given the trainer's output folder.
        stage: the stage's name, such as `grpo`.
        section: the stage's own section of params.
        init: the checkpoint to start from.
        settings: all params that the phase depends on.
        inputs: the stage's input files and folders, by name; provenance hashes them.
        counts: called after training; its numbers by name go into provenance, added up over
            interruptions.
        validator: measures the policy every `section.eval_steps`.
        adapter: an adapter trained on the weights of `init`, passed on by a skipped phase.
        scratch: parent of the folder with the stage's lock, log and checkpoints.

    Raises:
        UserError: another process runs this stage, this one was interrupted, or the launcher
            did not start as many processes as its options ask for.
    """
    # `accelerate launch --num_processes 2 --cpu` starts one process and exits with 0 (1.15).
    check_world_size()

    def describe(
        state: TrainerState,
        facts: Mapping[str, Any],
        rollouts: Sequence[Mapping[str, Any]] = (),
        validated: Sequence[GradedCompletion] = (),
        best: Mapping[str, float] | None = None,
    ) -> None:
        """Write the files beside the checkpoint.

        Args:
            state: has the log; a skipped phase's has no points.
            facts: further entries of the provenance.
            rollouts: rows of the rollout log.
            validated: completions of the last validation.
            best: the selected validation point, if params select the best one.
        """
        if outputs.rollouts:
            write_jsonl(outputs.rollouts, rollouts)
        if outputs.validation_completions:
            write_jsonl(outputs.validation_completions, map(dataclasses.asdict, validated))
        points = curve_points(state)
        if validator:
            columns = validation_columns(list(validator.sets))
            write_curve(outputs.validation_curve, validation_points(state), columns=columns)
        write_curve(outputs.curve, points)
        # The last value of each column, not the last point: a second update on the same rollouts
        # logs no rewards.
        last = {name: value for point in points for name, value in point.items()}
        # Metrics are only means; spreads are only in the curve.
        means = {name: last[name] for name in last if not NO_METRIC.search(name)}
        selected = {"selected": best} if best else {}
        write_metrics(outputs.metrics, {"step": 0, **means, **selected})
        # The checkpoint's card reports this phase's selection and those of the phases before.
        selections = read_selections(init) | ({stage: best} if best else {})
        if selections:
            write_json(outputs.model / SELECTED, selections)
        write_provenance(outputs.provenance, settings=settings, inputs=inputs, **facts)

    if section.skipped:
        if is_main_process():
            passed = adapter or init
            click.echo(f"skipped: {section.skipped}; {passed} is passed on as {outputs.model}")
            if adapter:
                copy_adapter(adapter, base=init, checkpoint=outputs.model)
            else:
                # DVC caches by content, so that the copy takes no space there.
                shutil.copytree(init, outputs.model, dirs_exist_ok=True)
            # An adapter was trained, though not by this run: its provenance has `skipped: false`.
            describe(TrainerState(), {"skipped": adapter is None, **counts()})
        return

    # A stage without validation still writes an empty validation curve, since DVC expects all outs.
    # `watching` is the validator if it measures in this run, `selecting` if it also selects the
    # checkpoint to hand on.
    watching = validator if section.eval_steps else None
    selecting = watching if section.select == "best" else None
    if watching:
        # Checked before a model is loaded, and not hours later at the first point.
        check_engine(watching.settings.engine, watching.init, base=watching.base)

    folder = scratch / stage
    say = Announcer(stage, folder / "training.log")
    before: Counts = {}

    def all_counts() -> Counts:
        return add_counts(before, counts())

    # Only one run of a stage at a time. Rank 0 holds the lock for all ranks of a run.
    lock = alone(folder / "lock", what=stage) if is_main_process() else nullcontext()
    with lock:
        checkpoints = Checkpoints(folder / run_fingerprint(stage, settings=settings, inputs=inputs))
        keep = section.keep_checkpoints
        try:
            say.start()
            if others := checkpoints.others():
                names = ", ".join(map(str, others))
                say(f"{stage} does not use checkpoints of other params, inputs or code: {names}")
            newest = None
            if is_main_process():
                newest = checkpoints.newest(lambda line: say(f"{stage} {line}"))
                # Only rank 0 changes the folder, since it holds the lock.
                checkpoints.clear_writing()

            # Made before a model is loaded, since a tracker's package may be missing.
            tracker = Tracker(f"{stage}-{checkpoints.folder.name}", settings)
            # Every rank builds a trainer and loads the weights.
            trainer = build(checkpoints.writing)
            check_sharding(trainer)
            if num_processes() > 1:
                say(f"{stage} runs on {describe_ranks(trainer)}")
            compat.order_by_epoch(trainer)
            if has_slow_bfloat16(trainer):
                say(
                    f"{stage} WARNING this CPU has no bfloat16 instructions: a step takes at least "
                    "nine times as long as in float32; set model.mixed_precision: fp32 and "
                    "model.dtype: float32"
                )

            def save(checkpoint: Path) -> None:
                # Called on every rank: gathering sharded weights is collective.
                weights = gather_weights(trainer)
                if trainer.is_world_process_zero():
                    tokenizer = trainer.processing_class
                    with replacing(checkpoint) as unfinished:
                        save_policy(trainer.model, tokenizer, unfinished, weights=weights)

            def keep_best(step: int) -> None:
                save(checkpoints.best(step))
                if trainer.is_world_process_zero():
                    checkpoints.drop_worse()

            # All lines go through `say`, and generation reports its progress on the bar.
            for callback in trainer.callback_handler.callbacks:
                if isinstance(callback, ProgressLines | WarningSigns):
                    callback.say = say
                if isinstance(callback, ProgressLines):
                    if engine := getattr(trainer, "engine", None):
                        engine.heartbeat = functools.partial(callback.within, "rollouts")
                    if watching:
                        watching.heartbeat = functools.partial(callback.within, "validation")
            if watching:
                watching.watch(
                    trainer,
                    stage=stage,
                    steps=section.eval_steps,
                    say=say,
                    keep=keep_best if selecting else None,
                )
            tracker.watch(trainer)
            # A checkpoint holds neither the rollouts nor the means since the last logged step. A
            # signal's checkpoint is therefore saved at a step after which both start anew.
            # `updates` is the number of steps on the same rollouts; 1 in SFT and DPO.
            updates = getattr(section, "num_iterations", 1) * getattr(
                section, "updates_per_rollout", 1
            )
            on_signal = SaveOnSignal(math.lcm(updates, section.logging_steps))
            trainer.add_callback(on_signal)
            trainer.add_callback(SealCheckpoints(checkpoints, keep=keep, counts=all_counts))

            # Rank 0 decides: on several machines, ranks may see different checkpoints, and ranks
            # at different steps would wait for each other for ever.
            (name,) = broadcast_object_list([newest.name if newest else ""])
            checkpoint = checkpoints.folder / name if name else None
            if checkpoint:
                compat.load_onto_numbered_cpu()
                before = read_json(checkpoint / COUNTS)
                compat.resume_token_count(trainer, read_json(checkpoint / "trainer_state.json"))
                say(f"{stage} resumes from step {checkpoint_step(checkpoint)} ({checkpoint})")
            with on_signal.watch(), closing(watching) if watching else nullcontext():
                trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
            if on_signal.ended:
                # Rank 0's hint, since a shared folder may show its checkpoint to other ranks late.
                (hint,) = broadcast_object_list([resume_hint(checkpoints, stage)])
                raise UserError(f"{stage} was interrupted; {hint}")

            check_ranks_agree(trainer)
            if not selecting:
                save(outputs.model)
            if trainer.is_world_process_zero():
                best = selecting.best_point(trainer.state) if selecting else None
                if best:
                    with replacing(outputs.model) as unfinished:
                        shutil.copytree(checkpoints.best(int(best["step"])), unfinished)
                # Provenance records them, and the report reads them there.
                warnings = [
                    sign
                    for callback in trainer.callback_handler.callbacks
                    if isinstance(callback, WarningSigns)
                    for sign in callback.signs
                ]
                describe(
                    trainer.state,
                    {"skipped": False, **all_counts(), "warnings": warnings},
                    rollout_rows(trainer),
                    watching.rows if watching else (),
                    best,
                )
                checkpoints.finish(keep=keep, base=inputs.get("base"))
        except KeyboardInterrupt:
            raise UserError(f"{stage} was interrupted; {resume_hint(checkpoints, stage)}") from None


def has_slow_bfloat16(trainer: Trainer) -> bool:
    """Return True if the policy is trained in bfloat16 on a CPU that emulates it.

    The condition is oneDNN's. Without AVX-512, a product of 1,200 × 576 with 576 × 49,152 took 3 to
    4 times as long as in float32, and its backward pass 42 to 52 times.
    """
    half = trainer.args.bf16 or next(trainer.model.parameters()).dtype == torch.bfloat16
    onednn = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if not half or not onednn or trainer.args.device.type != "cpu":
        return False
    return not torch.ops.mkldnn._is_mkldnn_bf16_supported()


def add_counts(before: Counts, after: Counts) -> dict[str, dict[str, int]]:
    """Add counts by name: {"a": {"x": 1}} + {"a": {"x": 2, "y": 5}} -> {"a": {"x": 3, "y": 5}}."""
    added = {name: Counter(counts) for name, counts in after.items()}
    for name, counts in before.items():
        added.setdefault(name, Counter()).update(counts)
    return {name: dict(counts) for name, counts in added.items()}


def resume_hint(checkpoints: Checkpoints, stage: str) -> str:
    """Describe, for a message, from which step the same command would resume."""
    named = checkpoints.by_step()
    if named:
        return f"the same command resumes from step {checkpoint_step(named[-1])}"
    return f"the same command starts again ({stage}.save_steps sets how often it is saved)"
