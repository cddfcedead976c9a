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
from flatten_dict import flatten
from tqdm import tqdm
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.integrations import (
    get_available_reporting_integrations,
    get_reporting_integration_callbacks,
)

from lib.core.errors import UserError
from lib.core.progress import Heartbeat
from lib.training.phase.launch import is_main_process
from lib.training.phase.rollout_log import rollout_rows

MODES = ("disabled", "offline", "online")

PROJECT = "reckon"

TRACKER_DEFAULTS = {
    "WANDB_PROJECT": PROJECT,
    "MLFLOW_EXPERIMENT_NAME": PROJECT,
    # By default W&B wraps stdout and stderr of the process to upload them.
    "WANDB_CONSOLE": "off",
    "WANDB_SILENT": "true",
}
"""Values for the trackers' own environment variables; a variable that is set keeps its value."""

CLOCKS = ("step_time", "runtime", "per_second", "epoch")
"""Ends of column names kept out of curves: times, which differ between equal runs, and `epoch`,
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
        # Prints progress when no other line was printed for a while. A lambda, so that it uses the
        # `say` of that moment: `run_phase` replaces it.
        self.heartbeat = Heartbeat(stage, lambda line: self.say(line))
        # Micro-batches of the current step so far.
        self.num_batches = 0
        self.state = TrainerState()
        # Step, tokens and time from which paces are measured: `start` when this process began to
        # train, `previous` at the last line whose token count had grown. Set by `on_train_begin`.
        self.start = self.previous = Mark(step=0, tokens=0.0, time=0.0)
        # Monotonic time in seconds at the end of the last step.
        self.step_end = 0.0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Open the bar, and start the clock."""
        # Drop the times of an earlier phase in this process.
        SECONDS.clear()
        self.state = state
        tokens = [entry["num_tokens"] for entry in state.log_history if "num_tokens" in entry]
        self.start = self.previous = Mark(
            step=state.global_step, tokens=max(tokens, default=0.0), time=time.monotonic()
        )
        if state.is_world_process_zero:
            self.bar = tqdm(
                total=state.max_steps,
                initial=state.global_step,
                desc=self.stage,
                unit="step",
                # tqdm's None: a bar only if stderr is a terminal.
                disable=None,
            )
            self.heartbeat.bar = self.bar
        # Restarts the wait before the heartbeat's first line: loading the model does not count.
        self.heartbeat.rest()

    def show_progress(self, part: str, done: int, total: int, tokens: int = 0) -> None:
        """Report progress within the current step, and the time left in the run.

        Args:
            part: "rollouts", "training" or "validation".
            done, total: completions, or micro-batches of training.
            tokens: generated so far in this part.
        """
        if self.bar is None:
            return
        step, last = self.state.global_step, self.state.max_steps
        # `global_step` already counts the step in progress when its last micro-batch is reported,
        # and in validation. Rollouts and earlier micro-batches belong to step + 1.
        counted = part == "validation" or (part == "training" and done == total)
        self.heartbeat.label = f"{self.stage} step={step if counted else step + 1}/{last}"
        if step > self.start.step:
            # The mark of the last step's end; its tokens are not read.
            ended = Mark(step=step, tokens=0.0, time=self.step_end)
            left = (last - step) * ended.seconds_per_step(self.start)
            left = max(0.0, left - (time.monotonic() - self.step_end))
            self.heartbeat.label += f" left={tqdm.format_interval(left)}"
        self.heartbeat(part, done, total, tokens)

    def on_substep_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Count the micro-batches of a step."""
        self.num_batches += 1
        self.show_progress("training", self.num_batches, args.gradient_accumulation_steps)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Advance the bar, and log the last step whatever `logging_steps` is."""
        if state.global_step >= state.max_steps:
            control.should_log = True
        self.num_batches, self.step_end = 0, time.monotonic()
        if self.bar is not None:
            self.bar.update(state.global_step - self.bar.n)
            # The bar is disabled if stderr is no terminal: lines show the progress instead. The
            # last micro-batch of a step is reported here, since `on_substep_end` is not called for
            # it. A step that is logged gets its own line.
            if self.bar.disable and not control.should_log:
                batches = args.gradient_accumulation_steps
                self.show_progress("training", batches, batches)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        """Print the point's line, with the pace and the time left."""
        # Only the first rank prints, and only points: the trainer also logs a summary at its end.
        if self.bar is None or not logs or "loss" not in logs:
            return
        if self.stage == "grpo" and self.previous is self.start:
            self.say(f"grpo {LOSS_NOTE}")
        # All tokens so far; a point may lack them.
        tokens = logs.get("num_tokens", self.previous.tokens)
        now = Mark(step=state.global_step, tokens=tokens, time=time.monotonic())
        values = [f"{name}={logs[name]:.4g}" for name in self.columns if name in logs]
        # At this process's pace so far, since the last steps may include validation or saving.
        left = (state.max_steps - now.step) * now.seconds_per_step(self.start)
        words = [self.stage, f"step={now.step}/{state.max_steps}", *values, now.pace(self.previous)]
        self.say(" ".join([*words, f"left={tqdm.format_interval(left)}"]))
        # Delays the next progress line, since this line has shown the progress.
        self.heartbeat.rest()
        # A second update on the same rollouts adds no tokens. The next pace spans both updates.
        if tokens > self.previous.tokens:
            self.previous = now

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Close the bar, and print the duration, the mean pace and the share of each timed part."""
        if self.bar is None:
            return
        self.bar.close()
        # The last step is always logged, so `previous` has the final token count.
        now = Mark(step=state.global_step, tokens=self.previous.tokens, time=time.monotonic())
        # Nothing to print for a run that was resumed at its end.
        if now.step > self.start.step:
            total = now.time - self.start.time  # in seconds
            shares = [f"{part}={spent / total:.0%}" for part, spent in SECONDS.items()]
            duration = f"time={tqdm.format_interval(total)}"
            self.say(" ".join([self.stage, duration, now.pace(self.start), *shares]))


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

    An infinity or NaN is left out, since neither JSON nor `dvc metrics` has them: the `grad_norm`
    of a step that the scaler of float16 skipped, or what a reward function logged.
    """
    return [
        {
            name: value
            for name, value in entry.items()
            if not name.endswith(CLOCKS) and isinstance(value, int | float) and math.isfinite(value)
        }
        for entry in state.log_history
        # Other entries are validation points, or the run's summary.
        if "loss" in entry
    ]


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
        # Each process is a run of its own for the trackers, named by its start: a process that
        # resumes repeats steps, and a run should have no step twice.
        self.name = os.environ.get("WANDB_NAME") or f"{name}-{time.strftime('%m%d-%H%M%S')}"
        self.config = flatten(settings, reducer="dot")
        # Numbers of log entries and of rollout rows that are sent already.
        self.num_sent = self.num_rows = 0
        self.callbacks: dict[str, TrainerCallback] = {}
        mode, report_to = os.environ.get("WANDB_MODE", ""), os.environ.get("REPORT_TO", "")
        if mode not in ("", *MODES):
            raise UserError(f"WANDB_MODE={mode}: expected one of {', '.join(MODES)}")
        names = {each.strip() for each in report_to.split(",")} - {""}
        # A run that the caller opened; None without one. wandb is not imported here, since such a
        # caller has imported it.
        wandb = sys.modules.get("wandb")
        self.open_run = wandb.run if wandb else None
        if self.open_run or mode not in ("", "disabled"):
            names.add("wandb")
        if not names:
            return
        for variable, value in TRACKER_DEFAULTS.items():
            os.environ.setdefault(variable, value)
        installed = get_available_reporting_integrations()
        if missing := sorted(names - {*installed}):
            source = f"REPORT_TO={report_to}" if missing[0] in report_to else f"WANDB_MODE={mode}"
            raise UserError(
                f"{source}: {missing[0]} is not installed, or no integration of transformers; "
                f"installed: {', '.join(installed) or 'none'}"
            )
        # transformers' callback for each name. Made here, before a model is loaded, since a package
        # that cannot be imported raises now.
        callbacks = [make() for make in get_reporting_integration_callbacks(sorted(names))]
        self.callbacks = dict(zip(sorted(names), callbacks, strict=True))
        if "tensorboard" in names and "TENSORBOARD_LOGGING_DIR" not in os.environ:
            # Not by the variable, which the next run in this process would take for the user's.
            vars(self.callbacks["tensorboard"])["logging_dir"] = f"runs/{self.name}"
        # W&B's mode is online by default.
        online = "wandb" in names and not self.open_run and mode in ("", "online")
        # `login` returns False if there is no key: W&B would then ask for one or raise. It runs
        # offline instead, and `wandb sync wandb/offline-run-*` uploads the run later.
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
        # `num_sent` and `num_rows` count the log entries and rollout rows that `on_log` skips. In a
        # resumed run these are all from the checkpoint, sent by an earlier process. A new run may
        # have an entry too, validation at step 0, but that one is not sent yet.
        self.num_sent = len(state.log_history) if state.global_step else 0
        self.num_rows = len(rollout_rows(self.trainer))
        # The caller may have opened a W&B run, with a config of its own, which is kept.
        open_config = dict(self.open_run.config) if self.open_run else {}
        # The callbacks read the run's name and project from the arguments, and its config from
        # `to_dict`: the params, in place of transformers' arguments.
        tracker_args: Any = copy.copy(args)
        tracker_args.run_name, tracker_args.project = self.name, PROJECT
        tracker_args.to_dict = lambda: {**self.config, **open_config}
        for callback in self.callbacks.values():
            callback.on_train_begin(tracker_args, state, control, **kwargs)

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Send new log entries, each with its own step; W&B and Trackio also get the rollouts."""
        new, self.num_sent = state.log_history[self.num_sent :], len(state.log_history)
        # A validation point is sent with the next log, which may be of a later step. Callbacks read
        # the step from the state, so each entry gets a state with its own step.
        entry_state = copy.copy(state)
        for entry in new:
            entry_state.global_step = int(entry["step"])
            logs = {name: value for name, value in entry.items() if name != "step"}
            for callback in self.callbacks.values():
                # `kwargs` has this event's `logs`, which are the last entry's only.
                callback.on_log(args, entry_state, control, **(kwargs | {"logs": logs}))
        # Only GRPO logs a reward.
        if state.is_world_process_zero and new and "reward" in new[-1]:
            rows = rollout_rows(self.trainer, start=self.num_rows)
            self.num_rows += len(rows)
            # Only W&B and Trackio have the classes `Histogram` and `Table`.
            for name in self.callbacks.keys() & {"wandb", "trackio"}:
                tracker: Any = sys.modules[name]
                # {"distribution/<reward>": histogram, "completions": table of the new rows}.
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
        rollouts = getattr(self.trainer, "rollouts", ())
        if rollouts:
            for index, function in enumerate(self.trainer.reward_funcs):
                values = [rollout.rewards[index] for rollout in rollouts]
                media[f"distribution/{function.__name__}"] = tracker.Histogram(values)
        if rows:
            names = ("step", "problem", "completion", "reward", "advantage")
            table = [row["rewards"] | {name: row[name] for name in names} for row in rows]
            # A new table at each log, as in TRL: by default W&B cannot append to a logged table.
            media["completions"] = tracker.Table(dataframe=pandas.DataFrame(table))
        return media
