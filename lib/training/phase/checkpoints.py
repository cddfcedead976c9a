"""Checkpoints to resume from: whole or not at all, and never those of another configuration.

    data/scratch/<stage>/<fingerprint>/checkpoint-<step>   to go on from; removed on success
    data/scratch/<stage>/<fingerprint>/writing/            where the trainer writes the next one
    data/scratch/<stage>/checkpoints/checkpoint-<step>     whole, the last `keep_checkpoints`

A checkpoint gets its manifest, a hash for each of its files, last, and then its name. They live
outside the stage's outs, which DVC deletes before a run.
"""

import dataclasses
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from torch.distributed.tensor import DTensor
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from lib.artifacts import fingerprint, hash_path, read_json, stage_code, write_json
from lib.core.errors import UserError
from lib.prompts.saved import FORMAT_FILE, SAVED

MANIFEST = "manifest.json"
COUNTS = "counts.json"
"""What provenance will hold, as known at a checkpoint."""

KEPT = "checkpoints"
LEAST = 2
"""Checkpoints held while training: should the newest be damaged, there is the one before."""


def run_fingerprint(stage: str, *, settings: Mapping[str, Any], inputs: Mapping[str, Path]) -> str:
    """16 hex digits of all that decides a run: params, inputs, code, packages, number of ranks."""
    decisive = {
        "stage": stage,
        "settings": settings,
        "code": stage_code(stage, settings),
        "ranks": os.environ.get("WORLD_SIZE", "1"),
    }
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
        """Where the trainer writes; nothing is resumed from there."""
        return self.folder / "writing"

    def by_step(self) -> list[Path]:
        """All that have their name, oldest first."""
        return sorted(self.folder.glob("checkpoint-*"), key=step_of)

    def newest(self, say: Callable[[str], None]) -> Path | None:
        """The last checkpoint whose files are what they were when it was written.

        Args:
            say: told what is wrong with each one that is passed over.
        """
        if any(self.writing.glob("checkpoint-*")):
            say("a checkpoint was only half written; it is not used")
        for checkpoint in reversed(self.by_step()):
            damage = find_damage(checkpoint)
            if not damage:
                return checkpoint
            say(f"{checkpoint} is damaged ({damage}); the one before is used, if there is one")
        return None

    def seal(self, step: int, counts: Mapping[str, Any]) -> None:
        """Add `counts` and a manifest to what the trainer wrote, and give it its name."""
        written = self.writing / f"checkpoint-{step}"
        drop_reference(written)
        write_json(written / COUNTS, counts)
        write_json(written / MANIFEST, _hashes(written))
        named = self.folder / written.name
        shutil.rmtree(named, ignore_errors=True)
        written.rename(named)

    def drop_all_but(self, number: int) -> None:
        """Remove the older ones."""
        for checkpoint in self.by_step()[:-number]:
            shutil.rmtree(checkpoint)

    def clear_writing(self) -> None:
        """Remove what an interrupted run was writing."""
        shutil.rmtree(self.writing, ignore_errors=True)

    def finish(self, *, keep: int, base: Path | None = None) -> None:
        """After a whole run: keep the last `keep`, from which training can also go on.

        Args:
            base: its prompt format and system prompt go along, without which nothing says how to
                ask a model that does not lie beside it.
        """
        kept = self.folder.parent / KEPT
        shutil.rmtree(kept, ignore_errors=True)
        for checkpoint in self.by_step()[-keep:] if keep else []:
            (checkpoint / MANIFEST).unlink()  # of the run's own; files are added here
            for name in (FORMAT_FILE, SAVED):
                if base and (base / name).is_file():
                    shutil.copy(base / name, checkpoint)
            kept.mkdir(exist_ok=True)
            checkpoint.rename(kept / checkpoint.name)
        shutil.rmtree(self.folder, ignore_errors=True)

    def others(self) -> list[Path]:
        """Folders of other configurations that never came to their end."""
        return sorted(
            path
            for path in self.folder.parent.glob("*/")
            if path.name not in (KEPT, self.folder.name) and any(path.glob("checkpoint-*"))
        )


def drop_reference(checkpoint: Path) -> None:
    """Remove the frozen adapter that TRL keeps as reference policy and the trainer saves along.

    It is made anew from the starting checkpoint, and were it there, transformers 5.17 would load it
    alone and go on with an untrained policy (`Trainer._load_from_checkpoint`: folders of adapters,
    else the adapter at the top).
    """
    for config in checkpoint.glob("*/adapter_config.json"):
        shutil.rmtree(config.parent)


class SealCheckpoints(TrainerCallback):
    """Seal each checkpoint that the trainer wrote, and drop the old ones.

    Args:
        keep: how many are wanted after the run.
        counts: of the run so far.
    """

    def __init__(
        self, checkpoints: Checkpoints, *, keep: int, counts: Callable[[], Mapping[str, Any]]
    ) -> None:
        self.checkpoints = checkpoints
        self.keep = max(LEAST, keep)
        self.counts = counts

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Log before saving: means over logged steps are no part of a checkpoint.

        Raises:
            UserError: the weights, of a checkpoint or of the end, are no numbers.
        """
        if control.should_save:
            control.should_log = True
        if control.should_save or state.global_step >= state.max_steps:
            self._check_finite(kwargs["model"], state.global_step)

    def on_save(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Every rank has written its part before the manifest is made."""
        ranks = PartialState()
        ranks.wait_for_everyone()
        if state.is_world_process_zero:
            self.checkpoints.seal(state.global_step, self.counts())
            self.checkpoints.drop_all_but(self.keep)
        ranks.wait_for_everyone()

    def _check_finite(self, model: torch.nn.Module, step: int) -> None:
        """Refuse weights that are no numbers; on every rank, each of which may hold a part."""
        parts = [
            weight.to_local() if isinstance(weight, DTensor) else weight
            for weight in model.parameters()
        ]
        finite = all(bool(part.isfinite().all()) for part in parts)
        if not all(gather_object([finite])):
            stage = self.checkpoints.folder.parent.name
            raise UserError(
                f"step {step}: the weights are no numbers (NaN or infinite), so that no checkpoint "
                f"is kept of them; lower {stage}.learning_rate or {stage}.max_grad_norm, or set "
                "model.dtype=float32"
            )


def step_of(checkpoint: Path) -> int:
    """The step in a checkpoint's name."""
    return int(checkpoint.name.rpartition("-")[2])


def find_damage(checkpoint: Path) -> str:
    """What differs from the manifest, in words; '' where nothing does."""
    try:
        expected = read_json(checkpoint / MANIFEST)
    except (OSError, UserError):
        return "no manifest"
    # In one of the two only, or with another hash in each.
    differing = {name for name, _ in expected.items() ^ _hashes(checkpoint).items()} - {MANIFEST}
    return f"{min(differing)} is not what was written" if differing else ""


def _hashes(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(file.relative_to(folder)): hash_path(file) for file in files}
