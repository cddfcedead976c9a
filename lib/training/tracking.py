"""What a training run shows and leaves behind: a progress bar, a line per logged step, a curve."""

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tqdm import tqdm
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

CLOCKS = ("step_time", "runtime", "per_second", "epoch")
"""Logged values that differ between equal runs, or say what `step` says; kept out of curves."""


class Announcer:
    """Says a line on the console, above a bar, and appends it to the stage's training.log.

    Only the first rank says anything.

    Args:
        stage: first word of each line.
        log: file to follow with `tail -f`; its folder is made.
    """

    def __init__(self, stage: str, log: Path) -> None:
        self.stage = stage
        self.log = log
        self.first_rank = os.environ.get("RANK", "0") == "0"

    def start(self) -> None:
        """Say where the log is; a line with the time parts it from the run before."""
        if self.first_rank:
            self.log.parent.mkdir(parents=True, exist_ok=True)
            self._append(f"--- {time.strftime('%Y-%m-%d %H:%M:%S')} process {os.getpid()}")
        self(f"{self.stage} log={self.log}")

    def __call__(self, line: str) -> None:
        """Say and append one line."""
        if self.first_rank:
            tqdm.write(line)
            self._append(line)

    def _append(self, line: str) -> None:
        with self.log.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


class ProgressLines(TrainerCallback):
    """One greppable line per logged step, below a bar where the output is a terminal.

    Args:
        stage: first word of each line.
        shown: columns on the line, in order; all of them are in the curve.
    """

    def __init__(self, stage: str, shown: tuple[str, ...]) -> None:
        self.stage = stage
        self.shown = shown
        self.bar: tqdm[Any] | None = None
        self.say: Callable[[str], None] = tqdm.write
        """Where lines go; `run_phase` puts the stage's `Announcer` here."""

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Open the bar."""
        if state.is_world_process_zero:
            self.bar = tqdm(
                total=state.max_steps,
                initial=state.global_step,
                desc=self.stage,
                unit="step",
                disable=None,
            )

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Move the bar."""
        if self.bar is not None:
            self.bar.update(state.global_step - self.bar.n)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        """Print the line."""
        values = [f"{name}={logs[name]:.4g}" for name in self.shown if logs and name in logs]
        if self.bar is not None and logs and "loss" in logs:
            step = f"step={state.global_step}/{state.max_steps}"
            self.say(" ".join([self.stage, step, *values]))

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Close the bar."""
        if self.bar is not None:
            self.bar.close()


def curve_points(state: TrainerState) -> list[dict[str, float]]:
    """What was logged, a point per step, without clocks."""
    points: list[dict[str, float]] = []
    for entry in state.log_history:
        kept = {
            name: value
            for name, value in entry.items()
            if not any(clock in name for clock in CLOCKS) and isinstance(value, int | float)
        }
        if "loss" in kept:
            points.append(kept)
    return points
