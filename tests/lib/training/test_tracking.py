"""Progress lines of a run without a terminal."""

import math
from types import SimpleNamespace

import pytest
from transformers import TrainerControl, TrainerState, TrainingArguments

from lib.training.phase.tracking import ProgressLines, curve_points, timed


@pytest.fixture
def begin(tmp_path, monkeypatch):
    """Begin a run on a clock that the test sets.

    Of the run, `events` are the arguments of its events, and `log` logs.
    """

    def started(stage, *columns, state, **arguments):
        progress, lines = ProgressLines(stage, columns), []
        progress.say = lines.append
        run = SimpleNamespace(clock=100.0, progress=progress, lines=lines)
        monkeypatch.setattr("time.monotonic", lambda: run.clock)
        run.state = TrainerState(**state)
        run.state.is_world_process_zero = True
        training = TrainingArguments(output_dir=str(tmp_path), **arguments)
        run.events = training, run.state, TrainerControl()
        run.log = lambda **logs: progress.on_log(*run.events, logs=logs)
        progress.on_train_begin(*run.events)
        return run

    return started


def test_a_line_gives_the_pace_since_the_last_and_the_time_left(begin):
    """Resumed at step 2 of 10: 2 steps of 5 s, then 2 of 10 s, half of them generation."""
    history = [{"loss": 1.0, "num_tokens": 500.0}]
    state = {"max_steps": 10, "global_step": 2, "log_history": history}
    run = begin("grpo", "reward", state=state)
    for step, now, tokens in ((4, 110.0, 1500.0), (6, 120.0, 2500.0)):
        with timed("generation"):
            run.clock = now
        run.clock += 10.0 if step == 6 else 0.0
        run.state.global_step = step
        run.log(loss=0.5, reward=0.25, num_tokens=tokens)
    run.log(train_runtime=30.0)
    run.progress.on_train_end(*run.events)

    assert "loss near 0 is normal" in run.lines.pop(0)
    assert run.lines == [
        "grpo step=4/10 reward=0.25 s/step=5 tokens/s=100 left=00:30",
        "grpo step=6/10 reward=0.25 s/step=10 tokens/s=50 left=00:30",
        "grpo time=00:30 s/step=7.5 tokens/s=67 generation=67%",
    ]


def test_the_pace_spans_all_updates_on_the_same_rollouts(begin):
    """`num_iterations: 2`: 1,000 tokens in 8 s, and 2 s for the second update on them."""
    run = begin("grpo", state={"max_steps": 4})
    for step, seconds in enumerate((8.0, 2.0, 8.0, 2.0), start=1):
        run.clock += seconds
        run.state.global_step = step
        tokens = {"num_tokens": 500.0 * (step + 1)} if step % 2 else {}
        run.log(loss=0.5, **tokens)
    run.progress.on_train_end(*run.events)

    assert [line.partition(" left")[0] for line in run.lines[1:]] == [
        "grpo step=1/4 s/step=8 tokens/s=125",
        "grpo step=2/4 s/step=2",
        "grpo step=3/4 s/step=5 tokens/s=100",
        "grpo step=4/4 s/step=2",
        "grpo time=00:20 s/step=5 tokens/s=100",
    ]


def test_the_curve_has_finite_numbers_without_times():
    named = {"loss": 0.5, "step": 1, "rewards/epoch_words/mean": 1.0}
    clocks = {"epoch": 0.1, "step_time": 2.0, "train_runtime": 3.0, "tokens_per_second": 4.0}
    odd = {"grad_norm": math.nan, "perplexity": math.inf, "text": "x"}
    state = SimpleNamespace(log_history=[{**named, **clocks, **odd}, {"train_loss": 0.5}])
    assert curve_points(state) == [named]
