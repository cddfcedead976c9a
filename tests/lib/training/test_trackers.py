"""Trackers are off unless the environment asks; W&B and Trackio record whole runs offline."""

import json
import os
import struct
from collections import defaultdict
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import wandb
from transformers import TrainerCallback
from transformers.integrations import INTEGRATION_TO_CALLBACK
from wandb.proto import wandb_internal_pb2

from lib.core.errors import UserError
from lib.models.runtime import configure
from lib.params import Params
from lib.problems.generated import GeneratedSets
from lib.training.phase import tracking
from lib.training.phase.tracking import TRACKER_DEFAULTS, trackers
from tests.lib.training.runs import StopAt, run, train_phase, write_inputs
from tests.lib.training.steps import plain_grpo


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own = [f"WANDB_{name}" for name in ("MODE", "PROJECT", "NAME", "ENTITY", "DIR")]
    # Set first, so that monkeypatch also restores the values set by a tracker.
    for name in ("REPORT_TO", "TENSORBOARD_LOGGING_DIR", *own, *TRACKER_DEFAULTS):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def recorded(file: Path) -> list[wandb_internal_pb2.Record]:
    """Read all records of an offline run's file: LevelDB's log format after a header of 7 bytes."""
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


def train(base: Path, sets: GeneratedSets, smoke: Params, folder: Path):
    configure(seed=smoke.seed, threads=1)
    build = partial(plain_grpo, sets.grpo, base, smoke)
    train_phase(build, folder, stage="grpo", params=smoke, init=base)


def values(items: Iterable[Any]) -> dict[str, Any]:
    """Return the values of a record's items by key."""
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


@pytest.mark.slow
def test_offline_a_run_is_recorded_whole(base, sets, smoke, tmp_path, monkeypatch):
    own = {"MODE": "offline", "PROJECT": "mine", "ENTITY": "us", "NAME": "first"}
    for name, value in own.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    train(base, sets, smoke, tmp_path)
    wandb.finish()
    # `finish` does not wait until W&B's service has closed the file.
    wandb.teardown()
    (file,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    records = recorded(file)
    (run,) = [record.run for record in records if record.HasField("run")]
    assert (run.project, run.entity, run.display_name) == ("mine", "us", "first")
    # A record for each update; the last one has the whole.
    config, history = {}, defaultdict(dict)
    for record in records:
        config |= values(record.config.update)
        point = values(record.history.item)
        history[point.get("train/global_step")] |= point
    assert config["grpo.learning_rate"] == smoke.grpo.learning_rate
    points = {step: point for step, point in history.items() if "train/reward" in point}
    assert sorted(points) == [1, 2, 3]
    for point in points.values():
        assert point["completions/_type"] == "table-file"
        assert point["completions/nrows"] == smoke.grpo.log_problems * smoke.grpo.group_size
        for name in ("distribution/format", "distribution/answer"):
            assert point[f"{name}/_type"] == "histogram"
            assert sum(point[f"{name}/values"]) == 16


def test_nothing_is_recorded_unless_the_environment_asks(base, sets, smoke, tmp_path):
    train(base, sets, smoke, tmp_path)
    assert not [*tmp_path.glob("wandb"), *tmp_path.glob("runs")]


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("WANDB_MODE", "of", ".*offline"),
        ("REPORT_TO", "wandb, trackoi", ".*trackoi is not installed"),
        ("WANDB_MODE", "offline", "wandb is not installed"),
    ],
)
def test_an_unknown_tracker_or_mode_is_refused_first(variable, value, words, monkeypatch):
    monkeypatch.setenv(variable, value)
    installed = ["wandb"] if "trackoi" in value else []
    monkeypatch.setattr(tracking, "get_available_reporting_integrations", lambda: installed)
    # Before any model is loaded.
    with pytest.raises(UserError, match=f"^{variable}={value}: {words}"):
        trackers()


class Recorder(TrainerCallback):
    """Tracker: keeps the runs and points sent to it."""

    def __init__(self):
        self.runs: list[tuple[str, dict[str, Any]]] = []
        self.points: list[tuple[int, dict[str, float]]] = []

    def on_train_begin(self, args, state, control, **kwargs):
        self.runs.append((args.run_name, args.to_dict()))

    def on_log(self, args, state, control, **kwargs):
        self.points.append((state.global_step, kwargs["logs"]))


def test_each_point_is_sent_once_with_its_step(base, sets, smoke, tmp_path, monkeypatch):
    """Validation's too, and after a resume only those that the checkpoint lacks."""
    recorders: list[Recorder] = []
    monkeypatch.setitem(
        INTEGRATION_TO_CALLBACK, "recorder", lambda: recorders.append(Recorder()) or recorders[-1]
    )
    monkeypatch.setattr(tracking, "get_available_reporting_integrations", lambda: ["recorder"])
    monkeypatch.setenv("REPORT_TO", "recorder")
    monkeypatch.setenv("WANDB_NAME", "mine")
    changes = {"save_steps": 2, "eval_steps": 2, "logging_steps": 2}
    folder = write_inputs(tmp_path / "run", base, sets, sft=changes)
    with pytest.raises(UserError, match="interrupted"):
        run("sft", folder, callbacks=[StopAt(3)])
    run("sft", folder)
    first, second = (
        [(step, "loss" in logs) for step, logs in each.points if "train_loss" not in logs]
        for each in recorders
    )
    assert first == [(0, False), (2, False), (2, True)]
    assert second[:2] == [(4, False), (4, True)] and len(second) == len({*second})
    assert {name for each in recorders for name, _ in each.runs} == {"mine"}


def test_online_without_a_key_is_recorded_offline(tmp_path, monkeypatch):
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("REPORT_TO", "wandb")
    trackers()
    assert os.environ["WANDB_MODE"] == "offline"
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setattr(wandb, "login", lambda prompt: True)  # it would ask W&B about the key
    trackers()
    assert os.environ["WANDB_MODE"] == "online"
