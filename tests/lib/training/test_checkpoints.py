"""A checkpoint is whole and of this very run, or it is not resumed from."""

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from transformers import TrainerControl, TrainerState

from lib import artifacts
from lib.artifacts import stage_code
from lib.core.errors import UserError
from lib.training.phase.checkpoints import (
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
    lines: list[str] = []
    checkpoint = checkpoints.newest(lines.append)
    return (checkpoint_step(checkpoint) if checkpoint else None), lines


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


@pytest.mark.parametrize(
    "damage", ["changed", "cut", "missing", "added", "no manifest", "garbled", "no mapping"]
)
def test_a_damaged_checkpoint_is_reported_and_the_older_one_used(saved, damage):
    weights = saved.folder / "checkpoint-10" / "model.safetensors"
    manifest = weights.with_name("manifest.json")
    match damage:
        case "changed":
            weights.write_bytes(bytes([11]) * 64)
        case "cut":
            weights.write_bytes(bytes([10]) * 32)
        case "missing":
            weights.unlink()
        case "added":
            weights.with_name("model-2.safetensors").write_bytes(b"")
        case "no manifest":
            manifest.unlink()
        case "garbled":
            manifest.write_bytes(b"{")
        case "no mapping":
            manifest.write_bytes(b"[]")
    step, lines = newest_step(saved)
    assert step == 5
    assert len(lines) == 1
    assert "checkpoint-10 is damaged" in lines[0]
    of_manifest = damage in ("no manifest", "garbled", "no mapping")
    named = "manifest" if of_manifest else "model-2" if damage == "added" else "model.safetensors"
    assert named in lines[0].partition("(")[2]
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
    left = {path.parent.name for path in saved.folder.parent.rglob("*") if path.is_file()}
    kept = saved.folder.parent / "checkpoints" / "checkpoint-10"
    assert left == {kept.name}
    assert (kept / "optimizer.pt").is_file()
    assert not older.exists()
    assert not saved.folder.exists()


def test_a_changed_param_input_or_rank_number_is_another_run(tmp_path, monkeypatch):
    problems = tmp_path / "sft.jsonl"
    problems.write_text("a", encoding="utf-8")

    def run_id(stage: str = "sft", lr: float = 0.1) -> str:
        settings = {"sft": {"lr": lr}, "validation": {"stack": "tiny"}}
        return run_fingerprint(stage, settings=settings, inputs={"problems": problems})

    first = run_id()
    assert run_id() == first
    others = {run_id(stage="grpo"), run_id(lr=0.2)}
    problems.write_text("b", encoding="utf-8")
    others.add(run_id())
    problems.write_text("a", encoding="utf-8")
    monkeypatch.setenv("WORLD_SIZE", "2")
    others.add(run_id())
    monkeypatch.delenv("WORLD_SIZE")
    monkeypatch.setattr(artifacts, "versions", lambda: {"torch": "0"})
    others.add(run_id())
    assert len({first, *others}) == 6


def test_code_of_the_stage_is_another_run_and_other_code_is_not(tmp_path, monkeypatch):
    """dvc.yaml lists a stage's code, with paths named by params."""
    for file in (
        "training/sft.py",
        "report/some.py",
        "rewards/stacks/tiny.py",
        "rewards/stacks/s0.py",
    ):
        (tmp_path / "lib" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "lib" / file).write_text("1", encoding="utf-8")
    deps = "[lib/training, 'lib/rewards/stacks/${validation.stack}.py', data/raw, '${models}/base']"
    (tmp_path / "dvc.yaml").write_text(f"stages: {{sft: {{deps: {deps}}}}}", encoding="utf-8")
    monkeypatch.setattr(artifacts, "ROOT", tmp_path)
    settings = {"validation": {"stack": "tiny"}}
    first = stage_code("sft", settings)
    assert list(first) == ["lib/training", "lib/rewards/stacks/tiny.py"]
    for file, same in {
        "report/some.py": True,
        "rewards/stacks/s0.py": True,
        "rewards/stacks/tiny.py": False,
        "training/sft.py": False,
    }.items():
        (tmp_path / "lib" / file).write_text("2", encoding="utf-8")
        assert (stage_code("sft", settings) == first) == same, file
        (tmp_path / "lib" / file).write_text("1", encoding="utf-8")


def test_outside_the_main_thread_signals_keep_their_handlers():
    before = signal.getsignal(signal.SIGTERM)

    def watched() -> object:
        with SaveOnSignal(1).watch():
            return signal.getsignal(signal.SIGTERM)

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(watched).result() == before
