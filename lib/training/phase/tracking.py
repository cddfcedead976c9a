"""The output of a training run: progress bar, a line per logged step, curve, and W&B if the
environment asks for it.

    WANDB_MODE      disabled (the default), offline, online (offline where there is no key)
    WANDB_PROJECT   reckon, unless set
    WANDB_NAME      the stage and its fingerprint, unless set
    WANDB_ENTITY, WANDB_DIR, WANDB_API_KEY as in W&B's own manual

Tracking is set by environment variables, not by params: it changes no result.
"""

import contextlib
import dataclasses
import math
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tqdm import tqdm
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from lib.core.errors import UserError
from lib.core.progress import Heartbeat
from lib.training.phase.launch import is_main_process

MODES = ("disabled", "offline", "online")

CLOCKS = ("step_time", "runtime", "per_second", "epoch")
"""Parts of column names kept out of curves: times, which differ between equal runs, and `epoch`,
which repeats `step`."""

SECONDS: defaultdict[str, float] = defaultdict(float)
"""Seconds spent in this process by parts of the current phase, by name."""


@contextlib.contextmanager
def timed(part: str) -> Iterator[None]:
    """Add the block's duration to the part's seconds."""
    start = time.monotonic()
    try:
        yield
    finally:
        SECONDS[part] += time.monotonic() - start


class Announcer:
    """Prints lines above a progress bar, and appends them to the stage's training.log.

    Only the first rank prints.

    Args:
        stage: first word of each line.
        log: file to follow with `tail -f`; its folder is made.
    """

    def __init__(self, stage: str, log: Path) -> None:
        self.stage = stage
        self.log = log
        self.first_rank = is_main_process()

    def start(self) -> None:
        """Print the log's path; a line with the time separates this run from earlier ones."""
        if self.first_rank:
            self.log.parent.mkdir(parents=True, exist_ok=True)
            self._append(f"--- {time.strftime('%Y-%m-%d %H:%M:%S')} process {os.getpid()}")
        self(f"{self.stage} log={self.log}")

    def __call__(self, line: str) -> None:
        """Print one line and append it to the log."""
        if self.first_rank:
            tqdm.write(line)
            self._append(line)

    def _append(self, line: str) -> None:
        with self.log.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


LOSS_NOTE = (
    "a loss near 0 is normal: on policy, centred advantages cancel in its value and not in its "
    "gradient; look at reward, answer accuracy, entropy and grad_norm"
)


class ProgressLines(TrainerCallback):
    """Prints one greppable line per logged step, below a bar on a terminal.

    Args:
        stage: first word of each line.
        columns: the columns on the line, in order; all of them are in the curve.
    """

    def __init__(self, stage: str, columns: tuple[str, ...]) -> None:
        self.stage = stage
        self.columns = columns
        self.bar: tqdm[Any] | None = None
        self.say: Callable[[str], None] = tqdm.write
        """Prints a line; `run_phase` sets the stage's `Announcer`."""
        self.beat = Heartbeat(stage, lambda line: self.say(line))
        self.num_batches = 0
        self.state: TrainerState | None = None
        self.start = self.previous = self.counted = Mark(0, 0.0, 0.0)
        self.stepped = 0.0

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Open the bar, and start the clock."""
        SECONDS.clear()
        self.state = state
        tokens = [entry["num_tokens"] for entry in state.log_history if "num_tokens" in entry]
        self.start = Mark(state.global_step, max(tokens, default=0.0), time.monotonic())
        self.previous = self.counted = self.start
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
        """Report where a step is that takes long, and the time left."""
        state = self.state
        if self.bar is None or state is None:
            return
        step = f"step={state.global_step + 1}/{state.max_steps}"
        if state.global_step > self.start.step:
            now = Mark(state.global_step, 0.0, self.stepped)
            left = (state.max_steps - state.global_step) * now.seconds_per_step(self.start)
            left = max(0.0, left - (time.monotonic() - self.stepped))
            step += f" left={tqdm.format_interval(left)}"
        self.beat.label = f"{self.stage} {step}"
        self.beat(part, done, total, tokens)

    def on_substep_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Count the micro-batches of a step."""
        self.num_batches += 1
        self.within("training", self.num_batches, args.gradient_accumulation_steps)

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Advance the bar, and log the last step whatever `logging_steps` is."""
        if state.global_step >= state.max_steps:
            control.should_log = True
        self.num_batches, self.stepped = 0, time.monotonic()
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
        """Print the line, with the pace since the line before and the time left at the run's
        pace.
        """
        if self.bar is None or not logs or "loss" not in logs:
            return
        if self.stage == "grpo" and self.previous is self.start:
            self.say(f"grpo {LOSS_NOTE}")
        # A second update on the same rollouts adds no tokens: tokens/s spans both updates.
        tokens = logs.get("num_tokens", self.counted.tokens)
        now = Mark(state.global_step, tokens, time.monotonic())
        values = [f"{name}={logs[name]:.4g}" for name in self.columns if name in logs]
        # Over the whole run, since the last steps may have validated or saved.
        left = (state.max_steps - now.step) * now.seconds_per_step(self.start)
        step = f"step={now.step}/{state.max_steps}"
        pace = [*now.pace(self.previous, self.counted), f"left={tqdm.format_interval(left)}"]
        self.say(" ".join([self.stage, step, *values, *pace]))
        self.beat.rest()
        self.previous = now
        if tokens > self.counted.tokens:
            self.counted = now

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Close the bar, and print how this process spent its time."""
        if self.bar is None:
            return
        self.bar.close()
        seconds = time.monotonic() - self.start.time
        now = dataclasses.replace(self.previous, time=time.monotonic())
        if now.step > self.start.step:
            parts = [f"{part}={spent / seconds:.0%}" for part, spent in SECONDS.items()]
            took = f"time={tqdm.format_interval(seconds)}"
            self.say(" ".join([self.stage, took, *now.pace(self.start, self.start), *parts]))


@dataclasses.dataclass(frozen=True)
class Mark:
    """Step, tokens and clock at one moment of training.

    Attributes:
        tokens: prompt and completion tokens so far; 0 if they are not counted.
        time: seconds of the monotonic clock.
    """

    step: int
    tokens: float
    time: float

    def seconds_per_step(self, earlier: "Mark") -> float:
        """Return the mean seconds per step since the mark."""
        return (self.time - earlier.time) / max(1, self.step - earlier.step)

    def pace(self, earlier: "Mark", counted: "Mark") -> list[str]:
        """Format seconds per step and tokens per second since the mark."""
        speed = (self.tokens - counted.tokens) / max(1e-9, self.time - counted.time)
        tokens = [f"tokens/s={speed:.0f}"] if self.tokens > counted.tokens else []
        return [f"s/step={self.seconds_per_step(earlier):.3g}", *tokens]


def curve_points(state: TrainerState) -> list[dict[str, float]]:
    """Return the logged values, a point per step, without clocks.

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


def wandb_mode() -> str:
    """Read WANDB_MODE.

    Raises:
        UserError: none of `MODES`.
    """
    mode = os.environ.get("WANDB_MODE") or "disabled"
    if mode not in MODES:
        raise UserError(f"WANDB_MODE={mode}: expected one of {', '.join(MODES)}")
    return mode


class WandbRun(TrainerCallback):
    """Logs hyper-parameters, every curve, and the distribution of each reward per logged step.

    Args:
        trainer: has the rewards of the last rollouts.
        settings: the params that the phase depends on.
        name: of the run, unless WANDB_NAME is set.
    """

    def __init__(
        self, trainer: Trainer, *, mode: str, settings: Mapping[str, Any], name: str
    ) -> None:
        self.trainer = trainer
        self.mode = mode
        self.settings = settings
        self.name = name
        self.run: Any = None
        self.opened = True
        self.num_sent = 0

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Open a W&B run, or use the open one.

        Points sent before an interruption are not sent again.
        """
        if not state.is_world_process_zero:
            return
        import wandb

        self.num_sent = len(state.log_history) if state.global_step else 0
        if wandb.run is not None:
            self.run, self.opened = wandb.run, False
            config = {
                key: self.settings[key] for key in self.settings if key not in self.run.config
            }
            self.run.config.update(config)
            return
        # Without a key W&B would ask for one or raise: offline, for `make wandb-sync` later.
        keyless = self.mode == "online" and not wandb.login(prompt=False)
        mode: Any = "offline" if keyless else self.mode
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or "reckon",
            name=os.environ.get("WANDB_NAME") or self.name,
            config=dict(self.settings),
            mode=mode,
            # By default W&B wraps stdout and stderr of the process to upload them.
            settings=wandb.Settings(silent=True, console="off"),
        )

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Send the trainer's new log entries, validation included."""
        if self.run is None:
            return
        new = state.log_history[self.num_sent :]
        self.num_sent = len(state.log_history)
        for entry in new:
            self.run.log(
                {name: value for name, value in entry.items() if name != "step"},
                step=entry["step"],
            )
        if new and "reward" in new[-1]:
            self.run.log(self._distributions(), step=new[-1]["step"])

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Close the run, unless it was open before training."""
        if self.run is not None and self.opened:
            self.run.finish()

    def _distributions(self) -> dict[str, Any]:
        import wandb

        rollouts = getattr(self.trainer, "rollouts", ())
        functions = getattr(self.trainer, "reward_funcs", ())
        return {
            f"distribution/{function.__name__}": wandb.Histogram(
                [row.rewards[index].item() for row in rollouts]
            )
            for index, function in enumerate(functions)
        }
