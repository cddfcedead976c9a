"""Progress lines of a run without a terminal."""

import math
from types import SimpleNamespace

import psutil
import torch
from transformers import TrainerControl, TrainerState

from lib.training.phase.console import ProgressLines, matmul_speed, peak_memory, timed
from lib.training.phase.tracking import curve_points

ARGS = SimpleNamespace(train_batch_size=4, gradient_accumulation_steps=2, world_size=2)


def test_a_line_gives_the_pace_since_the_last_and_the_time_left(monkeypatch, capsys):
    """Resumed at step 2 of 10: 2 steps of 5 s, then 2 of 10 s, half of them generation."""
    history = [{"loss": 1.0, "num_tokens": 500.0}]
    state = TrainerState(max_steps=10, global_step=2, log_history=history)
    events, progress, clock = (
        (ARGS, state, TrainerControl()),
        ProgressLines("grpo", ("reward",)),
        100.0,
    )
    monkeypatch.setattr("time.monotonic", lambda: clock)
    progress.on_train_begin(*events, model=torch.nn.Linear(2, 3))
    for step, now, tokens in ((4, 110.0, 1500.0), (6, 120.0, 2500.0)):
        with timed("generation"):
            clock = now
        clock += 10.0 if step == 6 else 0.0
        state.global_step = step
        logs = {"loss": 0.5, "reward": 0.25, "num_tokens": tokens}
        state.log_history.append(logs)
        progress.on_log(*events, logs=logs)
    progress.on_log(*events, logs={"train_runtime": 30.0})
    state.total_flos = 3e9
    monkeypatch.setattr("lib.training.phase.console.matmul_speed", lambda model: 1e9)
    monkeypatch.setattr("lib.training.phase.console.peak_memory", lambda: 2**29)
    progress.on_train_end(*events, model=None)
    begins, note, *lines = capsys.readouterr().out.splitlines()
    assert begins.startswith("grpo steps=8 of 16 sequences, 9 weights trained")
    assert note.startswith("grpo a loss near 0")
    assert lines == [
        "grpo step=4/10 reward=0.25 s/step=5 left=00:30",
        "grpo step=6/10 reward=0.25 s/step=10 left=00:30",
        # 3 GFLOP in 30 s on two ranks, of 1 GFLOP/s.
        "grpo time=00:30 s/step=7.5 tokens/s=67 generation=67% memory=0.50GiB utilisation=5%",
    ]


def test_memory_and_speed_are_measured_in_bytes_and_operations():
    # Linux counts resident pages with a delay, hence the 0.9.
    rss, total = psutil.Process().memory_info().rss, psutil.virtual_memory().total
    assert 0.9 * rss < peak_memory() < total
    model = torch.nn.Linear(2, 2)
    assert 1e8 < matmul_speed(model) < 1e16


def test_a_long_step_reports_its_progress(monkeypatch, capsys):
    state, clock = TrainerState(max_steps=10, global_step=2), 100.0
    progress = ProgressLines("grpo", ("reward",))
    events = ARGS, state, TrainerControl()
    monkeypatch.setattr("time.monotonic", lambda: clock)
    progress.on_train_begin(*events, model=torch.nn.Linear(2, 3))
    progress.on_step_begin(*events)
    for now in (110.0, 121.0):
        clock = now
        progress.heartbeat("rollouts", 48, 64, 330)
    assert capsys.readouterr().out.splitlines()[1:] == [
        "grpo step=2/10 rollouts 48/64, 30 tokens/s"
    ]


def test_the_curve_has_finite_numbers_without_times():
    named = {"loss": 0.5, "step": 1, "rewards/epoch_words/mean": 1.0}
    clocks = {"epoch": 0.1, "step_time": 2.0, "train_runtime": 3.0, "tokens_per_second": 4.0}
    odd = {"grad_norm": math.nan, "perplexity": math.inf, "text": "x"}
    state = SimpleNamespace(log_history=[{**named, **clocks, **odd}, {"train_loss": 0.5}])
    assert curve_points(state) == [named]
