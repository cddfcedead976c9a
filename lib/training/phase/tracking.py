"""Report a training run: progress bar, a line per logged step, the curve, and trackers such as W&B.

These environment variables choose the trackers:

    REPORT_TO       transformers' names, by commas: trackio, wandb, tensorboard, mlflow, ...
    WANDB_MODE      offline, online (offline where there is no key): asks for W&B too

They are no params, because tracking changes no result.
"""

import contextlib
import copy
import dataclasses
import math
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas
from tqdm import tqdm
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.integrations import (
    get_available_reporting_integrations,
    get_reporting_integration_callbacks,
)

from lib.core.errors import UserError
from lib.core.progress import Heartbeat
from lib.params.schema import leaves
from lib.training.phase.launch import is_main_process
from lib.training.phase.rollout_log import rollout_rows

MODES = ("disabled", "offline", "online")

PROJECT = "reckon"

USUAL = {
    "WANDB_PROJECT": PROJECT,
    "MLFLOW_EXPERIMENT_NAME": PROJECT,
    # By default W&B wraps stdout and stderr of the process to upload them.
    "WANDB_CONSOLE": "off",
    "WANDB_SILENT": "true",
}
"""Values for the trackers' own environment variables; a variable that is set keeps its value."""

CLOCKS = ("step_time", "runtime", "per_second", "epoch")
"""Parts of column names kept out of curves: times, which differ between equal runs, and `epoch`,
which repeats `step`."""

SECONDS: defaultdict[str, float] = defaultdict(float)
"""Part of the current phase ("generation", "rewards", …) → seconds spent in it by this process."""


@contextlib.contextmanager
def timed(part: str) -> Iterator[None]:
    """Add the block's duration to `SECONDS[part]`."""
    start = time.monotonic()
    try:
        yield
    finally:
        SECONDS[part] += time.monotonic() - start


class Announcer:
    """Prints lines above a progress bar, and appends them to the stage's training.log.

    Only the first rank prints.

    Args:
        stage: first word of the first line, which names the log.
        log: file to follow with `tail -f`; its folder is made.
    """

    def __init__(self, stage: str, log: Path) -> None:
        self.log = log
        if is_main_process():
            log.parent.mkdir(parents=True, exist_ok=True)
            # Separates this run from earlier ones.
            self._append(f"--- {time.strftime('%Y-%m-%d %H:%M:%S')} process {os.getpid()}")
        self(f"{stage} log={log}")

    def __call__(self, line: str) -> None:
        """Print one line and append it to the log."""
        if is_main_process():
            tqdm.write(line)
            self._append(line)

    def _append(self, line: str) -> None:
        with self.log.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


LOSS_NOTE = (
    "a loss near 0 is normal: on policy, centred advantages cancel in its value and not in its "
    "gradient; look at reward, answer accuracy, entropy and grad_norm"
)
"""Printed once, before GRPO's first line."""


class ProgressLines(TrainerCallback):
    """Prints one greppable line per logged step, and a progress bar if stderr is a terminal.

    Such as `grpo step=4/30 reward=0.25 … s/step=3.1 tokens/s=850 left=01:20`.

    Args:
        stage: first word of each line.
        columns: columns of the curve to print, in order.
    """

    def __init__(self, stage: str, columns: tuple[str, ...]) -> None:
        self.stage = stage
        self.columns = columns
        self.bar: tqdm[Any] | None = None
        """Only on the first rank, the one that prints."""
        self.say: Callable[[str], None] = tqdm.write
        """Prints a line; `run_phase` sets the stage's `Announcer`."""
        self.beat = Heartbeat(stage, lambda line: self.say(line))
        self.num_batches = 0
        self.state = TrainerState()
        # At the start of this process's run, and at the last line with new tokens.
        self.start = self.previous = Mark(0, 0.0, 0.0)
        # Monotonic time in seconds at the end of the last step.
        self.stepped = 0.0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Open the bar, and start the clock."""
        SECONDS.clear()
        self.state = state
        # Counts of tokens so far; a new run has none, a resumed one those of earlier processes.
        tokens = [entry["num_tokens"] for entry in state.log_history if "num_tokens" in entry]
        self.start = Mark(state.global_step, max(tokens, default=0.0), time.monotonic())
        self.previous = self.start
        if state.is_world_process_zero:
            self.bar = tqdm(
                total=state.max_steps,
                initial=state.global_step,
                desc=self.stage,
                unit="step",
                # tqdm's None: a bar only if stderr is a terminal.
                disable=None,
            )
            self.beat.bar = self.bar
        self.beat.rest()

    def within(self, part: str, done: int, total: int, tokens: int = 0) -> None:
        """Report progress within the current step, and the time left in the run.

        Args:
            part: "rollouts", "training" or "validation".
            done, total: completions, or micro-batches of training.
            tokens: generated so far in this part.
        """
        if self.bar is None:
            return
        step, last = self.state.global_step, self.state.max_steps
        # Validation and the last micro-batch follow the count of their step; the other parts
        # belong to the next one.
        counted = part == "validation" or (part == "training" and done == total)
        self.beat.label = f"{self.stage} step={step if counted else step + 1}/{last}"
        if step > self.start.step:
            ended = Mark(step, 0.0, self.stepped)
            left = (last - step) * ended.seconds_per_step(self.start)
            # Less the time since that step's end.
            left = max(0.0, left - (time.monotonic() - self.stepped))
            self.beat.label += f" left={tqdm.format_interval(left)}"
        self.beat(part, done, total, tokens)

    def on_substep_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Count the micro-batches of a step."""
        self.num_batches += 1
        self.within("training", self.num_batches, args.gradient_accumulation_steps)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Advance the bar, and log the last step whatever `logging_steps` is."""
        if state.global_step >= state.max_steps:
            control.should_log = True
        self.num_batches, self.stepped = 0, time.monotonic()
        if self.bar is not None:
            self.bar.update(state.global_step - self.bar.n)
            if self.bar.disable and not control.should_log:
                # A step of one micro-batch prints nothing else until it is logged.
                batches = args.gradient_accumulation_steps
                self.within("training", batches, batches)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        """Print the point's line, with the pace and the time left."""
        if self.bar is None or not logs or "loss" not in logs:
            return
        if self.stage == "grpo" and self.previous is self.start:
            self.say(f"grpo {LOSS_NOTE}")
        tokens = logs.get("num_tokens", self.previous.tokens)
        now = Mark(state.global_step, tokens, time.monotonic())
        values = [f"{name}={logs[name]:.4g}" for name in self.columns if name in logs]
        # At the pace of the whole run, since the last steps may include validation or saving.
        left = (state.max_steps - now.step) * now.seconds_per_step(self.start)
        words = [self.stage, f"step={now.step}/{state.max_steps}", *values, now.pace(self.previous)]
        self.say(" ".join([*words, f"left={tqdm.format_interval(left)}"]))
        self.beat.rest()
        # A second update on the same rollouts adds no tokens: the next pace spans both updates.
        if tokens > self.previous.tokens:
            self.previous = now

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Close the bar, and print the duration, the mean pace and the share of each timed part."""
        if self.bar is None:
            return
        self.bar.close()
        now = Mark(state.global_step, self.previous.tokens, time.monotonic())
        if now.step > self.start.step:
            seconds = now.time - self.start.time
            parts = [f"{part}={spent / seconds:.0%}" for part, spent in SECONDS.items()]
            took = f"time={tqdm.format_interval(seconds)}"
            self.say(" ".join([self.stage, took, now.pace(self.start), *parts]))


@dataclasses.dataclass(frozen=True)
class Mark:
    """The step, token count and clock at one moment of training.

    Attributes:
        tokens: prompt and completion tokens so far; 0 if they are not counted.
        time: seconds of the monotonic clock.
    """

    step: int
    tokens: float
    time: float

    def seconds_per_step(self, earlier: "Mark") -> float:
        """Return the mean seconds per step since the mark `earlier`."""
        return (self.time - earlier.time) / max(1, self.step - earlier.step)

    def pace(self, earlier: "Mark") -> str:
        """Format the seconds per step and the tokens per second, if any, since `earlier`."""
        pace = f"s/step={self.seconds_per_step(earlier):.3g}"
        if self.tokens > earlier.tokens:
            speed = (self.tokens - earlier.tokens) / max(1e-9, self.time - earlier.time)
            pace += f" tokens/s={speed:.0f}"
        return pace


def curve_points(state: TrainerState) -> list[dict[str, float]]:
    """Return the training curve: each logged step's numbers by column, without times (`CLOCKS`).

    A step that the scaler of float16 skipped has no `grad_norm`.
    """
    points: list[dict[str, float]] = []
    for entry in state.log_history:
        kept = {
            name: value
            for name, value in entry.items()
            if not any(clock in name for clock in CLOCKS) and isinstance(value, int | float)
            # Neither JSON nor `dvc metrics` has an infinity.
            if name != "grad_norm" or math.isfinite(value)
        }
        if "loss" in kept:
            points.append(kept)
    return points


class Tracker(TrainerCallback):
    """Feeds the tracking callbacks of transformers, such as W&B's and TensorBoard's.

    They get the params as the config, and each point once, validation's included. W&B and Trackio
    also get histograms of the rewards and the logged completions.

    Args:
        name: name of the run; the time of its start is added. WANDB_NAME replaces both.
        settings: the params that the phase depends on.

    Raises:
        UserError: the environment asks for a tracker unknown to transformers or not installed; or
            WANDB_MODE is none of `MODES`.
    """

    def __init__(self, name: str, settings: Mapping[str, Any]) -> None:
        # Each process is a run of its own: a process that resumes repeats steps, and a run should
        # have no step twice.
        self.name = os.environ.get("WANDB_NAME") or f"{name}-{time.strftime('%m%d-%H%M%S')}"
        self.config = dict(leaves(settings))
        # Numbers of log entries and of rollout rows that are sent already.
        self.num_sent = self.num_rows = 0
        self.callbacks: dict[str, TrainerCallback] = {}
        mode, report_to = os.environ.get("WANDB_MODE", ""), os.environ.get("REPORT_TO", "")
        if mode not in ("", *MODES):
            raise UserError(f"WANDB_MODE={mode}: expected one of {', '.join(MODES)}")
        names = {each.strip() for each in report_to.split(",")} - {""}
        # Not imported here: a caller that opened a run has imported wandb.
        wandb = sys.modules.get("wandb")
        self.open_run = wandb.run if wandb else None
        if self.open_run or mode not in ("", "disabled"):
            names.add("wandb")
        if not names:
            return
        for variable, value in {**USUAL, "TENSORBOARD_LOGGING_DIR": f"runs/{self.name}"}.items():
            os.environ.setdefault(variable, value)
        installed = get_available_reporting_integrations()
        if missing := sorted(names - {*installed}):
            raise UserError(
                f"REPORT_TO={report_to}: {missing[0]} is not installed, or no integration of "
                f"transformers; installed: {', '.join(installed) or 'none'}"
            )
        # Made before a model is loaded, since each callback imports its package.
        made = [make() for make in get_reporting_integration_callbacks(sorted(names))]
        self.callbacks = dict(zip(sorted(names), made, strict=True))
        online = "wandb" in names and not self.open_run and mode in ("", "online")
        # Without a key W&B would ask for one or raise. It then runs offline, for `make wandb-sync`.
        if online and not sys.modules["wandb"].login(prompt=False):
            os.environ["WANDB_MODE"] = "offline"

    def watch(self, trainer: Trainer) -> None:
        """Track a trainer: receive its events, and read its rollouts and rollout log."""
        self.trainer: Any = trainer
        if self.callbacks:
            trainer.add_callback(self)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Open the trackers' runs."""
        # A resumed run's entries were sent by an earlier process, and so were its rollouts. A new
        # run may have one entry already, validation at step 0, which is still to be sent.
        self.num_sent = len(state.log_history) if state.global_step else 0
        self.num_rows = len(rollout_rows(self.trainer))
        # A caller that opened a run may have put a config into it.
        own = dict(self.open_run.config) if self.open_run else {}
        shown: Any = copy.copy(args)
        shown.run_name, shown.project = self.name, PROJECT
        # The trackers write this as the run's config, by dotted key as in params.yaml.
        shown.to_dict = lambda: {**self.config, **own}
        for callback in self.callbacks.values():
            callback.on_train_begin(shown, state, control, **kwargs)

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Send new log entries, each with its own step; W&B and Trackio also get the rollouts."""
        new, self.num_sent = state.log_history[self.num_sent :], len(state.log_history)
        # A validation point arrives with the next log, a step or more later. Trackers read the step
        # from the state, so each entry gets a state with its own step.
        at = copy.copy(state)
        for entry in new:
            at.global_step = int(entry["step"])
            logs = {name: value for name, value in entry.items() if name != "step"}
            for callback in self.callbacks.values():
                callback.on_log(args, at, control, **(kwargs | {"logs": logs}))
        if state.is_world_process_zero and new and "reward" in new[-1]:
            rows = rollout_rows(self.trainer, start=self.num_rows)
            self.num_rows += len(rows)
            for name in self.callbacks.keys() & {"wandb", "trackio"}:
                # Both packages have the classes `Histogram` and `Table`.
                tracker: Any = sys.modules[name]
                media = self._media(tracker, rows)
                tracker.log({**media, "train/global_step": state.global_step})

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Close the runs, as far as transformers closes them."""
        for callback in self.callbacks.values():
            callback.on_train_end(args, state, control, **kwargs)

    def _media(self, tracker: Any, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return a histogram of each reward over the last rollouts, and a table of `rows`.

        Args:
            tracker: the package, W&B's or Trackio's.
            rows: new rows of the rollout log.
        """
        media: dict[str, Any] = {}
        # TRL's trainer keeps no rollouts.
        if rollouts := getattr(self.trainer, "rollouts", ()):
            for index, function in enumerate(self.trainer.reward_funcs):
                values = [rollout.rewards[index] for rollout in rollouts]
                media[f"distribution/{function.__name__}"] = tracker.Histogram(values)
        if rows:
            names = ("step", "problem", "completion", "reward", "advantage")
            table = [row["rewards"] | {name: row[name] for name in names} for row in rows]
            # A new table at each log, as TRL has it: W&B cannot append to a table.
            media["completions"] = tracker.Table(dataframe=pandas.DataFrame(table))
        return media
