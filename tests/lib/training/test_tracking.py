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


def test_a_long_step_reports_its_progress(begin):
    """A line comes after 20 s, then every minute; the time left counts the step so far."""
    run = begin("grpo", state={"max_steps": 3}, gradient_accumulation_steps=8)
    for number in range(10):  # 10 s and 100 tokens each
        run.progress.show_progress("rollouts", 4 * number, 64, 100 * number)
        run.clock += 10.0
    for _ in range(7):
        run.progress.on_substep_end(*run.events)
        run.clock += 10.0
    run.state.global_step = 1
    run.progress.on_step_end(*run.events)
    run.log(loss=0.5)
    run.clock += 30.0
    run.progress.show_progress("rollouts", 16, 64, 200)
    run.clock += 60.0
    run.progress.show_progress("validation", 3, 32)

    assert [line for line in run.lines if "note" not in line and "normal" not in line] == [
        "grpo step=1/3 rollouts 8/64, 10 tokens/s",
        "grpo step=1/3 rollouts 32/64, 10 tokens/s",
        "grpo step=1/3 training 5/8",
        "grpo step=1/3 s/step=170 left=05:40",
        "grpo step=2/3 left=05:10 rollouts 16/64",
        "grpo step=1/3 left=04:10 validation 3/32",
    ]


def test_long_steps_of_one_micro_batch_are_seen_before_one_is_logged(begin):
    run = begin("sft", state={"max_steps": 9}, logging_steps=5)
    for run.state.global_step in (1, 2, 3):
        run.clock += 45.0
        run.progress.on_step_end(*run.events)
    # A step that is logged has a line of its own.
    run.clock += 90.0
    run.events[-1].should_log = True
    run.progress.on_step_end(*run.events)

    assert run.lines == [
        "sft step=1/9 left=06:00 training 1/1",
        "sft step=3/9 left=04:30 training 1/1",
    ]
