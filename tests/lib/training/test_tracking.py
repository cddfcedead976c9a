"""Progress lines of a run without a terminal."""

from transformers import TrainerControl, TrainerState, TrainingArguments

from lib.training.phase.tracking import ProgressLines, timed


def test_a_line_gives_the_pace_since_the_last_and_the_time_left(tmp_path, monkeypatch):
    """Resumed at step 2 of 10: 2 steps of 5 s, then 2 of 10 s, half of them generation."""
    clock = 100.0
    monkeypatch.setattr("time.monotonic", lambda: clock)
    arguments, control = TrainingArguments(output_dir=str(tmp_path)), TrainerControl()
    state = TrainerState(
        max_steps=10, global_step=2, log_history=[{"loss": 1.0, "num_tokens": 500.0}]
    )
    state.is_world_process_zero = True
    lines: list[str] = []
    progress = ProgressLines("grpo", ("reward",))
    progress.say = lines.append

    progress.on_train_begin(arguments, state, control)
    for step, now, tokens in ((4, 110.0, 1500.0), (6, 120.0, 2500.0)):
        with timed("generation"):
            clock = now
        clock += 10.0 if step == 6 else 0.0
        state.global_step = step
        logs = {"loss": 0.5, "reward": 0.25, "num_tokens": tokens}
        progress.on_log(arguments, state, control, logs=logs)
    progress.on_log(arguments, state, control, logs={"train_runtime": 30.0})
    progress.on_train_end(arguments, state, control)

    assert "loss near 0 is normal" in lines.pop(0)
    assert lines == [
        "grpo step=4/10 reward=0.25 s/step=5 tokens/s=100 left=00:30",
        "grpo step=6/10 reward=0.25 s/step=10 tokens/s=50 left=00:30",
        "grpo time=00:30 s/step=7.5 tokens/s=67 generation=67%",
    ]


def test_updates_on_old_rollouts_count_their_time_and_no_tokens(tmp_path, monkeypatch):
    """`num_iterations: 2`: 1,000 tokens in 8 s, and 2 s for the second update on them."""
    clock = 100.0
    monkeypatch.setattr("time.monotonic", lambda: clock)
    arguments, control = TrainingArguments(output_dir=str(tmp_path)), TrainerControl()
    state = TrainerState(max_steps=4)
    state.is_world_process_zero = True
    lines: list[str] = []
    progress = ProgressLines("grpo", ())
    progress.say = lines.append

    progress.on_train_begin(arguments, state, control)
    for seconds, tokens in ((8.0, {"num_tokens": 1000.0}), (2.0, {})) * 2:
        clock += seconds
        state.global_step += 1
        if tokens:
            tokens = {"num_tokens": 500.0 * (state.global_step + 1)}
        progress.on_log(arguments, state, control, logs={"loss": 0.5, **tokens})
    progress.on_train_end(arguments, state, control)

    assert [line.partition(" left")[0] for line in lines[1:]] == [
        "grpo step=1/4 s/step=8 tokens/s=125",
        "grpo step=2/4 s/step=2",
        "grpo step=3/4 s/step=8 tokens/s=100",
        "grpo step=4/4 s/step=2",
        "grpo time=00:20 s/step=5 tokens/s=100",
    ]


def test_a_long_step_reports_its_progress(tmp_path, monkeypatch):
    """A line comes after 20 s, then every minute; the time left counts the step so far."""
    clock = 100.0
    monkeypatch.setattr("time.monotonic", lambda: clock)
    arguments = TrainingArguments(output_dir=str(tmp_path), gradient_accumulation_steps=8)
    state, control = TrainerState(max_steps=3), TrainerControl()
    state.is_world_process_zero = True
    lines: list[str] = []
    progress = ProgressLines("grpo", ())
    progress.say = lines.append

    progress.on_train_begin(arguments, state, control)
    for number in range(10):  # 10 s and 100 tokens each
        progress.within("rollouts", 4 * number, 64, 100 * number)
        clock += 10.0
    for _ in range(7):
        progress.on_substep_end(arguments, state, control)
        clock += 10.0
    state.global_step = 1
    progress.on_step_end(arguments, state, control)
    progress.on_log(arguments, state, control, logs={"loss": 0.5})
    clock += 30.0
    progress.within("rollouts", 16, 64, 200)
    clock += 60.0
    progress.within("validation", 3, 32)

    assert [line for line in lines if "note" not in line and "normal" not in line] == [
        "grpo step=1/3 rollouts 8/64, 10 tokens/s",
        "grpo step=1/3 rollouts 32/64, 10 tokens/s",
        "grpo step=1/3 training 5/8",
        "grpo step=1/3 s/step=170 left=05:40",
        "grpo step=2/3 left=05:10 rollouts 16/64",
        "grpo step=1/3 left=04:10 validation 3/32",
    ]


def test_long_steps_of_one_micro_batch_are_seen_before_one_is_logged(tmp_path, monkeypatch):
    clock = 100.0
    monkeypatch.setattr("time.monotonic", lambda: clock)
    arguments = TrainingArguments(output_dir=str(tmp_path), logging_steps=5)
    state, control = TrainerState(max_steps=9), TrainerControl()
    state.is_world_process_zero = True
    lines: list[str] = []
    progress = ProgressLines("sft", ())
    progress.say = lines.append

    progress.on_train_begin(arguments, state, control)
    for state.global_step in (1, 2, 3):
        clock += 45.0
        progress.on_step_end(arguments, state, control)

    assert lines == [
        "sft step=1/9 left=06:00 training 1/1",
        "sft step=3/9 left=04:30 training 1/1",
    ]
