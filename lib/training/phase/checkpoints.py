"""Checkpoints to resume from: complete or absent, and only of the same configuration.

    data/scratch/<stage>/<fingerprint>/checkpoint-<step>   to resume from; removed on success
    data/scratch/<stage>/<fingerprint>/best-<step>         weights that `select: best` may hand on
    data/scratch/<stage>/<fingerprint>/writing/            the trainer's output folder
    data/scratch/<stage>/checkpoints/checkpoint-<step>     of finished runs: `keep_checkpoints`

The last file of a checkpoint is its manifest, a hash for each file; then the checkpoint is renamed.
The folders lie outside the stage's outs, which DVC deletes before a run.
"""

import contextlib
import dataclasses
import os
import shutil
import signal
import threading
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from torch.distributed.tensor import DTensor
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from lib.artifacts import fingerprint, hash_path, read_json, write_json
from lib.artifacts.code import stage_code
from lib.core.errors import UserError
from lib.prompts.saved import FORMAT_FILE, SYSTEM_FILE
from lib.training.phase.console import say

MANIFEST = "manifest.json"

FINISHED = "checkpoints"
MIN_CHECKPOINTS = 2
"""Checkpoints kept while training: if the newest is damaged, a run resumes from the other one."""


def run_fingerprint(stage: str, *, settings: Mapping[str, Any], inputs: Mapping[str, Path]) -> str:
    """Hash all that decides a run's result: params, files, code, packages, ranks and sharding.

    Args:
        settings: the params that the stage depends on.
        inputs: the stage's input files and folders by name; their contents are hashed.
    """
    decisive: dict[str, Any] = {
        "stage": stage,
        "settings": settings,
        "code": stage_code(stage, settings),
        # Another number of ranks rounds differently.
        "ranks": os.environ.get("WORLD_SIZE", "1"),
    }
    # accelerate's variable for FSDP, whose checkpoints only a sharded model can load.
    if os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true":
        decisive["sharded"] = True
    return fingerprint(decisive, inputs=inputs)


@dataclasses.dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of one configuration of a stage.

    Attributes:
        folder: named after the fingerprint.
    """

    folder: Path

    @property
    def writing(self) -> Path:
        """The trainer's output folder; no run resumes from it."""
        return self.folder / "writing"

    def by_step(self) -> list[Path]:
        return sorted(self.folder.glob("checkpoint-*"), key=checkpoint_step)

    @property
    def stage(self) -> str:
        return self.folder.parent.name

    def open(self) -> Path | None:
        """Remove what an interrupted run left, and return the checkpoint to resume from, if any.

        Call it on rank 0 only, which holds the stage's lock.
        """
        if others := self.others():
            names = ", ".join(map(str, others))
            say(f"{self.stage} does not use checkpoints of other params, inputs or code: {names}")
        newest = self.newest()
        shutil.rmtree(self.writing, ignore_errors=True)
        self.drop_bests_after(checkpoint_step(newest) if newest else -1)
        return newest

    def newest(self) -> Path | None:
        """Return the last checkpoint whose files match its manifest; None if there is none."""
        if any(self.writing.glob("checkpoint-*")):
            say(f"{self.stage} ignores a half-written checkpoint")
        for checkpoint in reversed(self.by_step()):
            damage = find_damage(checkpoint)
            if not damage:
                return checkpoint
            say(f"{self.stage} {checkpoint} is damaged ({damage}); the one before is used, if any")
        return None

    def seal(self, step: int) -> None:
        """Add the manifest to the trainer's checkpoint, and move it out of `writing`."""
        written = self.writing / f"checkpoint-{step}"
        drop_reference_adapter(written)
        write_json(written / MANIFEST, _hashes(written))
        # The rename is atomic, and cannot replace a damaged checkpoint of the same step.
        named = self.folder / written.name
        shutil.rmtree(named, ignore_errors=True)
        written.rename(named)

    def drop_all_but(self, number: int) -> None:
        for checkpoint in self.by_step()[:-number]:
            shutil.rmtree(checkpoint)

    def best(self, step: int) -> Path:
        """Return the folder for the weights of `step`, if it is the best step so far."""
        return self.folder / f"best-{step}"

    def drop_old_bests(self) -> None:
        """Remove each `best-<step>` that no resumed run can select any more.

        Each is better than those before it: of those up to the oldest checkpoint the last stays.
        Of best-1, best-3 and best-5 with checkpoint-4 and checkpoint-8, best-1 goes.
        """
        bests = sorted(self.folder.glob("best-*"), key=checkpoint_step)
        # Without a checkpoint a later run starts at step 0: only the last folder stays.
        oldest_first = self.by_step() or bests[-1:]
        for best, better in pairwise(bests):
            if checkpoint_step(better) <= checkpoint_step(oldest_first[0]):
                shutil.rmtree(best)

    def drop_bests_after(self, step: int) -> None:
        """Remove each `best-<step>` of steps that a run resumed at `step` takes again.

        On a GPU these may come out otherwise: `drop_old_bests` would compare them with old ones.
        """
        for best in self.folder.glob("best-*"):
            if checkpoint_step(best) > step:
                shutil.rmtree(best)

    def finish(self, *, keep: int, base: Path | None = None) -> None:
        """Keep the last `keep` checkpoints of a complete run, to resume from; remove the rest.

        Args:
            base: has the prompt format and system prompt, which a checkpoint needs anywhere else.
        """
        finished = self.folder.parent / FINISHED
        shutil.rmtree(finished, ignore_errors=True)
        # For 0, [-0:] would take all.
        for checkpoint in self.by_step()[-keep:] if keep else []:
            # It would not match after the copies below.
            (checkpoint / MANIFEST).unlink()
            for name in (FORMAT_FILE, SYSTEM_FILE):
                if base and (base / name).is_file():
                    shutil.copy(base / name, checkpoint)
            finished.mkdir(exist_ok=True)
            checkpoint.rename(finished / checkpoint.name)
        shutil.rmtree(self.folder, ignore_errors=True)

    def others(self) -> list[Path]:
        """List folders with checkpoints of other configurations, left by interrupted runs."""
        return sorted(
            path
            for path in self.folder.parent.glob("*/")
            if path.name not in (FINISHED, self.folder.name) and any(path.glob("checkpoint-*"))
        )


def drop_reference_adapter(checkpoint: Path) -> None:
    """Remove TRL's frozen adapter, the reference policy, from a checkpoint.

    A resumed trainer makes it anew. Beside its folder transformers 5.17 would not load the trained
    adapter at the top of the checkpoint (`Trainer._load_from_checkpoint`).
    """
    for config in checkpoint.glob("*/adapter_config.json"):
        shutil.rmtree(config.parent)


class SavedState(TrainerCallback, ExportableState):
    """A callback with a state that checkpoints keep, in `trainer_state.json`."""

    def values(self) -> dict[str, Any]:
        raise NotImplementedError

    def restore(self, values: Mapping[str, Any]) -> None:
        """Take a checkpoint's state when a run resumes; of a new run, its own."""
        raise NotImplementedError

    def state(self) -> dict[str, Any]:
        """Return the checkpoint's entry for this callback (`ExportableState`)."""
        return {"args": {}, "attributes": self.values()}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # A run that trains a checkpoint further may have no entry there.
        entry = state.stateful_callbacks.setdefault(type(self).__name__, self.state())
        self.restore(entry["attributes"])


class SealCheckpoints(TrainerCallback):
    """Seals checkpoints as the trainer writes them, and drops the old ones.

    Args:
        keep: number of checkpoints to keep after the run.
    """

    def __init__(self, checkpoints: Checkpoints, *, keep: int) -> None:
        self.checkpoints = checkpoints
        self.keep = max(MIN_CHECKPOINTS, keep)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Log at each step that saves a checkpoint, and check the weights there and at the end.

        Raises:
            UserError: weights are NaN or infinite.
        """
        if control.should_save:
            # A checkpoint does not hold the sums since the last logged step.
            control.should_log = True
        if control.should_save or state.global_step >= state.max_steps:
            self._check_finite(kwargs["model"], state.global_step)

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        # Each rank writes files of its own of a sharded checkpoint.
        ranks = PartialState()
        ranks.wait_for_everyone()
        if state.is_world_process_zero:
            self.checkpoints.seal(state.global_step)
            self.checkpoints.drop_all_but(self.keep)
        # No rank trains on before the checkpoint is in its place.
        ranks.wait_for_everyone()

    def _check_finite(self, model: torch.nn.Module, step: int) -> None:
        """Refuse weights with NaN or infinite values, checked on every rank for its own part."""
        parts = [
            # Of a sharded parameter only this rank's part.
            weight.to_local() if isinstance(weight, DTensor) else weight
            for weight in model.parameters()
        ]
        finite = all(bool(part.isfinite().all()) for part in parts)
        # All ranks raise.
        if not all(gather_object([finite])):
            stage = self.checkpoints.stage
            raise UserError(
                f"step {step}: the weights are NaN or infinite, so they are not saved; "
                f"lower {stage}.learning_rate or {stage}.max_grad_norm, or set "
                "model.dtype=float32"
            )


class SaveOnSignal(TrainerCallback):
    """Saves a checkpoint after any rank has received a signal.

    After SIGTERM (clusters send it before a preemption) training also ends. After SIGUSR1 (before
    the end of a time limit) training continues.

    Attributes:
        ended: True after SIGTERM, on all ranks.

    Args:
        every: saves only at multiples of this step. A run that is resumed from such a step equals
            an uninterrupted one.
    """

    def __init__(self, every: int) -> None:
        self.every = every
        self.signals: set[int] = set()
        self.ended = False

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Record SIGTERM and SIGUSR1 in `signals` during the block.

        In another thread than the main one nothing is recorded: Python allows no handler there.
        """
        earlier: dict[signal.Signals, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGUSR1):
                earlier[number] = signal.signal(number, lambda number, _: self.signals.add(number))
        try:
            yield
        finally:
            for number, handler in earlier.items():
                signal.signal(number, handler)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Save if any rank has received a signal; after SIGTERM also end training."""
        if state.global_step % self.every == 0 and state.global_step < state.max_steps:
            # All ranks must decide the same, or they would wait for each other for ever.
            signals = set().union(*gather_object([self.signals]))
            self.signals = set()
            if signals:
                control.should_save = True
                self.ended = signal.SIGTERM in signals
                control.should_training_stop = self.ended


def checkpoint_step(checkpoint: Path) -> int:
    """Return the step in a checkpoint's name."""
    # transformers' names: checkpoint-<step>; ours: best-<step>
    return int(checkpoint.name.rpartition("-")[2])


def find_damage(checkpoint: Path) -> str:
    """Return a text such as "model.safetensors is not as saved"; '' for an undamaged checkpoint.

    Files may be missing, new or changed; the text names the first of them by name.
    """
    try:
        expected = read_json(checkpoint / MANIFEST)
    except UserError:
        expected = None
    if not isinstance(expected, dict):
        return "no readable manifest"
    actual = _hashes(checkpoint)
    differing = [
        name for name in expected.keys() | actual.keys() if expected.get(name) != actual.get(name)
    ]
    return f"{min(differing)} is not as saved" if differing else ""


def _hashes(folder: Path) -> dict[str, str]:
    """Return the hash of each file below a folder but the manifest, by its relative path."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST]
    return {str(file.relative_to(folder)): hash_path(file) for file in files}
