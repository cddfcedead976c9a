"""What a training run shows and leaves behind: a progress bar, a line per logged step, a curve, and
a run on Weights & Biases where the environment asks for it.

    WANDB_MODE      disabled (the default), offline, online (offline where there is no key)
    WANDB_PROJECT   reckon, unless set
    WANDB_NAME      the stage and its fingerprint, unless set
    WANDB_ENTITY, WANDB_DIR, WANDB_API_KEY as in W&B's own manual

Tracking is environment and no param: it changes no result.
"""

import contextlib
import dataclasses
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tqdm import tqdm
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from lib.core.errors import UserError
from lib.training.phase.launch import is_main_process

MODES = ("disabled", "offline", "online")

CLOCKS = ("step_time", "runtime", "per_second", "epoch")
"""Logged values that differ between equal runs, or say what `step` says; kept out of curves."""

SECONDS: defaultdict[str, float] = defaultdict(float)
"""What parts of the phase under way took in this process, by name."""


@contextlib.contextmanager
def timed(part: str) -> Iterator[None]:
    """Add what the block takes to the part's seconds."""
    start = time.monotonic()
    try:
        yield
    finally:
        SECONDS[part] += time.monotonic() - start


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
        self.first_rank = is_main_process()

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


LOSS_SAYS_NOTHING = (
    "a loss near 0 is normal: on policy, centred advantages cancel in its value and not in its "
    "gradient; look at reward, answer accuracy, entropy and grad_norm"
)


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
        self.start = self.previous = Mark(0, 0.0, 0.0)

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Open the bar, and start the clock."""
        SECONDS.clear()
        tokens = [entry["num_tokens"] for entry in state.log_history if "num_tokens" in entry]
        self.start = Mark(state.global_step, max(tokens, default=0.0), time.monotonic())
        self.previous = self.start
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
        """Print the line, with the pace since the line before and the time left at the run's."""
        if self.bar is None or not logs or "loss" not in logs:
            return
        if self.stage == "grpo" and self.previous is self.start:
            self.say(f"grpo {LOSS_SAYS_NOTHING}")
        now = Mark(state.global_step, logs.get("num_tokens", 0.0), time.monotonic())
        values = [f"{name}={logs[name]:.4g}" for name in self.shown if name in logs]
        left = (state.max_steps - now.step) * now.seconds_per_step(self.start)
        step = f"step={now.step}/{state.max_steps}"
        pace = [*now.pace(self.previous), f"left={tqdm.format_interval(left)}"]
        self.say(" ".join([self.stage, step, *values, *pace]))
        self.previous = now

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Close the bar, and say where the time of this process went."""
        if self.bar is None:
            return
        self.bar.close()
        seconds = time.monotonic() - self.start.time
        now = dataclasses.replace(self.previous, time=time.monotonic())
        if now.step > self.start.step:
            parts = [f"{part}={spent / seconds:.0%}" for part, spent in SECONDS.items()]
            took = f"time={tqdm.format_interval(seconds)}"
            self.say(" ".join([self.stage, took, *now.pace(self.start), *parts]))


@dataclasses.dataclass(frozen=True)
class Mark:
    """How far training was, when.

    Attributes:
        tokens: that it had read and written; 0 where nobody counts them.
        time: in seconds, of a clock that never goes back.
    """

    step: int
    tokens: float
    time: float

    def seconds_per_step(self, earlier: "Mark") -> float:
        """On average since then."""
        return (self.time - earlier.time) / max(1, self.step - earlier.step)

    def pace(self, earlier: "Mark") -> list[str]:
        """Seconds per step and tokens per second since then, as words of a line."""
        speed = (self.tokens - earlier.tokens) / max(1e-9, self.time - earlier.time)
        tokens = [f"tokens/s={speed:.0f}"] if self.tokens > earlier.tokens else []
        return [f"s/step={self.seconds_per_step(earlier):.3g}", *tokens]


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


def wandb_mode() -> str:
    """What WANDB_MODE says.

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
        trainer: asked for the rewards of its last rollouts.
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
        """Open a run, or take the one that is open.

        Points that a run before an interruption has sent are not sent again.
        """
        if not state.is_world_process_zero:
            return
        import wandb

        self.num_sent = len(state.log_history) if state.global_step else 0
        if wandb.run is not None:
            self.run, self.opened = wandb.run, False
            return
        # Without a key W&B asks for one, or ends the run; `make wandb-sync` sends it later.
        keyless = self.mode == "online" and not wandb.login(prompt=False)
        mode: Any = "offline" if keyless else self.mode
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or "reckon",
            name=os.environ.get("WANDB_NAME") or self.name,
            config=dict(self.settings),
            mode=mode,
            settings=wandb.Settings(silent=True, console="off"),
        )

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Send what the trainer has logged since, validation included."""
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
