"""What a training run prints: a line per logged step, a progress bar, and the stage's training.log.

Example: `grpo step=4/30 reward=0.25 … s/step=3.1 left=01:20`.
"""

import contextlib
import os
import resource
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from lib.core.progress import Heartbeat
from lib.training.phase.launch import is_main_process

SECONDS: defaultdict[str, float] = defaultdict(float)
"""Part of the current phase ("generation", "rewards", …) → seconds spent in it by this process."""

LOSS_NOTE = (
    "grpo a loss near 0 is normal: on policy, centred advantages cancel in its value and not in "
    "its gradient; look at reward, answer accuracy, entropy and grad_norm"
)

_logs: list[Path] = []


@contextlib.contextmanager
def timed(part: str) -> Iterator[None]:
    """Add the block's duration to `SECONDS[part]`."""
    start = time.monotonic()
    try:
        yield
    finally:
        SECONDS[part] += time.monotonic() - start


@contextlib.contextmanager
def training_log(stage: str, log: Path) -> Iterator[None]:
    """Append each line of the block to the file `log` too, for `tail -f`; its folder is made."""
    _logs.append(log)
    if is_main_process():
        log.parent.mkdir(parents=True, exist_ok=True)
        _append(f"--- {time.strftime('%Y-%m-%d %H:%M:%S')} process {os.getpid()}")
    say(f"{stage} log={log}")
    try:
        yield
    finally:
        _logs.pop()


def say(line: str) -> None:
    """Print one line above the bar, on the first rank only."""
    if is_main_process():
        tqdm.write(line)
        _append(line)


def _append(line: str) -> None:
    for log in _logs:
        with log.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


class ProgressLines(TrainerCallback):
    """Prints a line per logged step, and a bar if stderr is a terminal.

    Args:
        stage: first word of each line.
        columns: columns of the curve to print, in order.
    """

    def __init__(self, stage: str, columns: tuple[str, ...]) -> None:
        self.stage = stage
        self.columns = columns
        self.heartbeat = Heartbeat(stage, say)
        """Reports the progress of a step that takes long."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        # Drop the times of an earlier phase in this process.
        SECONDS.clear()
        # Step and time when this process began to train, and at the last line.
        self.start = self.previous = state.global_step, time.monotonic()
        num_trained = sum(
            each.numel() for each in kwargs["model"].parameters() if each.requires_grad
        )
        per_step = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
        say(
            f"{self.stage} steps={state.max_steps - state.global_step} of {per_step} sequences, "
            f"{num_trained:,} weights trained"
        )
        self.tokens, self.flops = num_tokens(state), state.total_flos
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        # `disable=None`: a bar only if stderr is a terminal.
        self.bar = tqdm(
            total=state.max_steps,
            initial=state.global_step,
            desc=self.stage,
            unit="step",
            disable=None if state.is_world_process_zero else True,
        )
        self.heartbeat.bar = self.bar
        self.heartbeat.rest()

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.heartbeat.label = f"{self.stage} step={state.global_step}/{state.max_steps}"

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Advance the bar, and log the last step whatever `logging_steps` is."""
        if state.global_step >= state.max_steps:
            control.should_log = True
        self.bar.update(state.global_step - self.bar.n)
        self.heartbeat("steps", state.global_step, state.max_steps)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        if not logs or "loss" not in logs:
            return
        if self.stage == "grpo" and self.previous is self.start:
            say(LOSS_NOTE)
        now = state.global_step, time.monotonic()
        values = [f"{name}={logs[name]:.4g}" for name in self.columns if name in logs]
        # At this process's mean pace, since the last steps may include validation or saving.
        left = (state.max_steps - now[0]) * seconds_per_step(self.start, now)
        say(
            f"{self.stage} step={now[0]}/{state.max_steps} {' '.join(values)} "
            f"s/step={seconds_per_step(self.previous, now):.3g} left={tqdm.format_interval(left)}"
        )
        self.previous = now
        self.heartbeat.rest()

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.bar.close()
        now = state.global_step, time.monotonic()
        # Nothing to print for a run that was resumed at its end.
        if now[0] > self.start[0]:
            total = now[1] - self.start[1]
            words = [f"s/step={seconds_per_step(self.start, now):.3g}"]
            # Of prompts and completions.
            if tokens := num_tokens(state) - self.tokens:
                words.append(f"tokens/s={tokens / total:.0f}")
            words += [f"{part}={spent / total:.0%}" for part, spent in SECONDS.items()]
            words.append(f"memory={peak_memory() / 2**30:.2f}GiB")
            # Of one rank.
            speed = (state.total_flos - self.flops) / args.world_size / total
            words.append(f"utilisation={speed / matmul_speed(kwargs['model']):.0%}")
            say(f"{self.stage} time={tqdm.format_interval(total)} {' '.join(words)}")


def seconds_per_step(earlier: tuple[int, float], now: tuple[int, float]) -> float:
    """Return the mean seconds per step between two pairs of step and time."""
    return (now[1] - earlier[1]) / max(1, now[0] - earlier[0])


def num_tokens(state: TrainerState) -> float:
    """Return the number of tokens so far, as logged; 0 if none is."""
    return max((entry.get("num_tokens", 0.0) for entry in state.log_history), default=0.0)


def peak_memory() -> int:
    """Return the most bytes of this process: on the GPU in this phase, or of main memory ever."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    # Linux counts in KiB.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def matmul_speed(model: torch.nn.Module) -> float:
    """Measure the floating-point operations per second of a matrix product on the model's device.

    In the type of its weights.
    """
    weight = next(model.parameters())
    size = 8192 if weight.is_cuda else 512
    square = torch.ones(size, size, dtype=weight.dtype, device=weight.device)
    seconds = []
    for _ in range(4):
        start = time.perf_counter()
        # Reading a number waits for the GPU.
        (square @ square)[0, 0].item()
        seconds.append(time.perf_counter() - start)
    return 2 * size**3 / min(seconds)
