"""A checkpoint is whole and of this very run, or it is not resumed from."""

import contextlib
import io
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from transformers import TrainerControl, TrainerState

from lib import artifacts
from lib.core.errors import UserError
from lib.training.phase.checkpoints import (
    FINISHED,
    Checkpoints,
    SaveOnSignal,
    SealCheckpoints,
    checkpoint_step,
    find_damage,
    run_fingerprint,
)


def write(folder: Checkpoints, step: int) -> Path:
    """Write a checkpoint as the trainer does, and seal it."""
    written = folder.writing / f"checkpoint-{step}"
    written.mkdir(parents=True)
    (written / "model.safetensors").write_bytes(bytes([step]) * 64)
    (written / "optimizer.pt").write_bytes(b"state")
    folder.seal(step)
    return folder.folder / written.name


@pytest.fixture
def saved(tmp_path):
    """Write checkpoints of steps 5 and 10."""
    made = Checkpoints(tmp_path / "sft" / "0123")
    write(made, 5)
    write(made, 10)
    return made


def newest_step(checkpoints: Checkpoints) -> tuple[int | None, list[str]]:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        checkpoint = checkpoints.newest()
    return (checkpoint_step(checkpoint) if checkpoint else None), out.getvalue().splitlines()


def test_the_newest_whole_checkpoint_is_by_step(saved):
    assert newest_step(saved) == (10, [])
    write(saved, 100)
    assert newest_step(saved) == (100, [])
    saved.drop_all_but(2)
    assert [checkpoint_step(path) for path in saved.by_step()] == [10, 100]


def test_the_best_of_each_checkpoint_that_can_be_resumed_stays(saved):
    """The checkpoint of step 5 needs the best up to there: not step 0's, and none between."""
    for step in (0, 4, 7, 12):
        saved.best(step).mkdir(parents=True)
        saved.drop_old_bests()
    left = [path for step in (0, 4, 7, 12) if (path := saved.best(step)).exists()]
    assert left == [saved.best(4), saved.best(7), saved.best(12)]
    saved.drop_all_but(1)
    saved.drop_old_bests()
    assert [saved.best(step).exists() for step in (4, 7, 12)] == [False, True, True]


def test_a_resumed_run_has_no_best_of_the_steps_that_it_takes_again(saved):
    """Else the old best-12 would count as better, and the new best-7 would go."""
    for step in (4, 12):
        saved.best(step).mkdir(parents=True)
    saved.drop_bests_after(5)
    saved.best(7).mkdir()
    saved.drop_all_but(1)
    write(saved, 20)
    saved.drop_all_but(1)
    saved.drop_old_bests()
    assert [saved.best(step).exists() for step in (4, 7, 12)] == [False, True, False]


@pytest.mark.parametrize(
    ("file", "content", "named"),
    [
        ("model.safetensors", bytes([11]) * 64, "model.safetensors"),
        ("model.safetensors", bytes([10]) * 32, "model.safetensors"),
        ("model.safetensors", None, "model.safetensors"),
        ("model-2.safetensors", b"", "model-2"),
        ("manifest.json", None, "manifest"),
        ("manifest.json", b"{", "manifest"),
        ("manifest.json", b"[]", "manifest"),
    ],
    ids=["changed", "cut", "missing", "added", "no manifest", "garbled", "no mapping"],
)
def test_a_damaged_checkpoint_is_reported_and_the_older_one_used(saved, file, content, named):
    damaged = saved.folder / "checkpoint-10" / file
    if content is None:
        damaged.unlink()
    else:
        damaged.write_bytes(content)
    step, [line] = newest_step(saved)
    assert step == 5
    assert "checkpoint-10 is damaged" in line
    assert named in line.partition("(")[2]
    assert find_damage(saved.folder / "checkpoint-5") == ""


@pytest.mark.parametrize("last", [True, False])
def test_weights_that_are_no_numbers_are_not_kept(tmp_path, last):
    folder, model = Checkpoints(tmp_path / "sft" / "0123"), torch.nn.Linear(2, 2)
    seal = SealCheckpoints(folder, keep=1)
    state = TrainerState(global_step=4, max_steps=4 if last else 9)
    control = TrainerControl(should_save=not last)
    seal.on_step_end(None, state, control, model=model)
    model.weight.data[0, 0] = torch.nan
    with pytest.raises(UserError, match=r"step 4.*sft\.learning_rate"):
        seal.on_step_end(None, state, control, model=model)


def test_a_half_written_checkpoint_is_reported_and_never_used(saved):
    half = saved.writing / "checkpoint-15"
    half.mkdir(parents=True)
    (half / "model.safetensors").write_bytes(b"half")
    step, lines = newest_step(saved)
    assert step == 10
    assert "half-written" in "".join(lines)


def test_a_step_written_again_replaces_the_older_one(saved):
    (saved.folder / "checkpoint-10" / "model.safetensors").write_bytes(b"damaged")
    write(saved, 10)
    assert newest_step(saved) == (10, [])


def test_after_a_run_the_last_ones_are_kept_whole(saved):
    older = saved.folder.parent / "checkpoints" / "checkpoint-3"
    older.mkdir(parents=True)
    saved.finish(keep=1)
    left = {path for path in saved.folder.parent.rglob("*") if path.is_file()}
    kept = saved.folder.parent / "checkpoints" / "checkpoint-10"
    assert {path.parent for path in left} == {kept}
    assert kept / "optimizer.pt" in left
    assert not older.exists()
    assert not saved.folder.exists()


def test_a_changed_param_input_or_rank_number_is_another_run(tmp_path, monkeypatch):
    def run_id(stage="sft", lr=0.1, problems="a"):
        (tmp_path / "sft.jsonl").write_text(problems)
        settings = {"sft": {"lr": lr}, "validation": {"stack": "tiny"}}
        inputs = {"problems": tmp_path / "sft.jsonl"}
        return run_fingerprint(stage, settings=settings, inputs=inputs)

    first = run_id()
    assert run_id() == first
    others = {run_id(stage="grpo"), run_id(lr=0.2), run_id(problems="b")}
    with monkeypatch.context() as patch:
        patch.setenv("WORLD_SIZE", "2")
        others.add(run_id())
        # A whole model cannot load a sharded one's checkpoint, nor the reverse.
        patch.setenv("ACCELERATE_USE_FSDP", "true")
        others.add(run_id())
    monkeypatch.setattr(artifacts, "versions", lambda: {"torch": "0"})
    assert len({first, *others, run_id()}) == 7


def test_outside_the_main_thread_signals_keep_their_handlers():
    before = signal.getsignal(signal.SIGTERM)

    def watched():
        with SaveOnSignal(1).watch():
            return signal.getsignal(signal.SIGTERM)

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(watched).result() == before


def test_an_interrupt_at_any_file_keeps_a_whole_checkpoint(saved):
    """Ctrl-C at the open of any file of the next checkpoint: it is whole, or the one before is."""
    moment, opened, watches = 0, 0, True

    def at_open(event, arguments):
        nonlocal opened
        if watches and event == "open" and str(saved.folder) in str(arguments[0]):
            opened += 1
            if opened == moment:
                raise KeyboardInterrupt

    sys.addaudithook(at_open)
    newest = set()
    for moment in range(1, 12):
        opened, watches = 0, True
        with contextlib.suppress(KeyboardInterrupt):
            write(saved, 10 + moment)
        watches = False
        step, lines = newest_step(saved)
        newest.add(step - 10 - moment)
        assert step >= 10 and not any("damaged" in line for line in lines)
        saved.open()
        assert not saved.writing.exists()
    assert 0 in newest and min(newest) < 0


def test_only_other_configurations_with_checkpoints_are_others(saved):
    stage = saved.folder.parent
    for name in ("finished-elsewhere", "empty", FINISHED):
        (stage / name).mkdir()
    for name in ("finished-elsewhere", FINISHED):
        (stage / name / "checkpoint-5").mkdir()
    assert saved.others() == [stage / "finished-elsewhere"]
