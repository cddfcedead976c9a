"""W&B is off unless the environment asks; offline it needs no network and records everything."""

import json
import struct
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import wandb
from transformers import TrainerState
from wandb.proto import wandb_internal_pb2

from lib.core.errors import UserError
from lib.engines.runtime import configure
from lib.params import Params
from lib.problems.generated import GeneratedSets
from lib.training.phase.run import run_phase
from lib.training.phase.tracking import WandbRun, wandb_mode
from tests.conftest import ROOT
from tests.lib.training.runs import outputs_in
from tests.lib.training.steps import plain_grpo


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("MODE", "PROJECT", "NAME", "ENTITY", "DIR"):
        monkeypatch.delenv(f"WANDB_{name}", raising=False)


def recorded(file: Path) -> list[wandb_internal_pb2.Record]:
    """All records of an offline run's file: LevelDB's log format after a header of 7 bytes."""
    content, place, part = file.read_bytes(), 7, b""
    records = []
    while place + 7 <= len(content):
        if (left := 32768 - place % 32768) < 7:
            place += left
            continue
        size, kind = struct.unpack_from("<HB", content, place + 4)
        part += content[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):
            records.append(wandb_internal_pb2.Record.FromString(part))
            part = b""
    return records


def train(base: Path, sets: GeneratedSets, smoke: Params, folder: Path) -> None:
    configure(seed=smoke.seed, threads=1)
    run_phase(
        lambda scratch: plain_grpo(sets.grpo, base, smoke, scratch),
        stage="grpo",
        section=smoke.grpo,
        init=base,
        outputs=outputs_in(folder, "grpo"),
        settings=smoke.model_dump(include={"grpo", "reward"}),
        inputs={"base": base},
        scratch=folder / "scratch",
    )


@pytest.mark.slow
def test_offline_a_run_is_recorded_whole(
    base: Path,
    sets: GeneratedSets,
    smoke: Params,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    monkeypatch.setenv("WANDB_ENTITY", "us")
    monkeypatch.setenv("WANDB_NAME", "first")
    train(base, sets, smoke, tmp_path)
    (file,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    records = recorded(file)
    (run,) = [record.run for record in records if record.HasField("run")]
    assert (run.project, run.entity, run.display_name) == ("mine", "us", "first")
    config = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert config["grpo"]["learning_rate"] == smoke.grpo.learning_rate
    history: dict[int, dict[str, Any]] = {}
    for record in records:
        if record.HasField("history"):
            values = {
                item.key or "/".join(item.nested_key): json.loads(item.value_json)
                for item in record.history.item
            }
            history.setdefault(record.history.step.num, {}).update(values)
    assert [step for step in sorted(history) if "reward" in history[step]] == [1, 2, 3]
    for step in (1, 2, 3):
        for name in ("format", "answer"):
            assert history[step][f"distribution/{name}/_type"] == "histogram"
            assert sum(history[step][f"distribution/{name}/values"]) == 16


def test_nothing_is_recorded_unless_the_environment_asks(
    base: Path, sets: GeneratedSets, smoke: Params, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert wandb_mode() == "disabled"
    train(base, sets, smoke, tmp_path)
    assert not (tmp_path / "wandb").exists()
    monkeypatch.setenv("WANDB_MODE", "of")
    with pytest.raises(UserError, match=r"WANDB_MODE=of: .*offline"):
        train(base, sets, smoke, tmp_path)


def test_online_without_a_key_is_recorded_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {}
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setattr(wandb, "init", lambda **given: settings.update(given))
    run = WandbRun(SimpleNamespace(), mode="online", settings={}, name="x")
    run.on_train_begin(None, TrainerState(is_world_process_zero=True), None)
    assert settings["mode"] == "offline"
    monkeypatch.setattr(wandb, "login", lambda prompt: True)  # it would ask W&B about the key
    run.on_train_begin(None, TrainerState(is_world_process_zero=True), None)
    assert settings["mode"] == "online"


def test_syncing_without_an_offline_run_says_how_to_record_one(tmp_path: Path) -> None:
    command = ["make", "--old-file=setup", f"--file={ROOT}/Makefile", "wandb-sync"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "WANDB_MODE=offline" in done.stderr
