"""Trackers are off unless the environment asks, and get every point once."""

import os
import sys
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import wandb
from transformers import TrainerCallback
from transformers.integrations import INTEGRATION_TO_CALLBACK

from lib.core.errors import UserError
from lib.models.runtime import configure
from lib.params import Params
from lib.problems.generated import GeneratedSets
from lib.training.phase import tracking
from lib.training.phase.tracking import TRACKER_DEFAULTS, trackers
from tests.lib.training.runs import StopAt, changed, run, train_phase, write_inputs
from tests.lib.training.steps import plain_grpo


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own = [f"WANDB_{name}" for name in ("MODE", "PROJECT", "NAME", "ENTITY", "DIR")]
    # Set first, so that monkeypatch also restores the values set by a tracker.
    for name in ("REPORT_TO", "TENSORBOARD_LOGGING_DIR", *own, *TRACKER_DEFAULTS):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def train(base: Path, sets: GeneratedSets, smoke: Params, folder: Path):
    configure(seed=smoke.seed, threads=1)
    params = changed(smoke, {"grpo": {"max_steps": 2, "save_steps": 0, "keep_checkpoints": 0}})
    build = partial(plain_grpo, sets.grpo, base, params)
    train_phase(build, folder, stage="grpo", params=params, init=base)


class Config(dict):
    def update(self, values, allow_val_change):
        super().update(values)


def test_params_rewards_and_completions_reach_a_tracker(base, sets, smoke, tmp_path, monkeypatch):
    """W&B and Trackio have the same calls; a value that the caller has set stays."""
    sent = []
    module = MagicMock(Histogram=list, Table=lambda dataframe: len(dataframe), log=sent.append)
    module.config = Config(seed="mine")
    monkeypatch.setattr(tracking, "trackers", lambda: ["trackio"])
    monkeypatch.setattr(tracking, "get_reporting_integration_callbacks", lambda _: [])
    monkeypatch.setitem(sys.modules, "trackio", module)
    train(base, sets, smoke, tmp_path)
    assert module.config["grpo.learning_rate"] == smoke.grpo.learning_rate
    assert module.config["seed"] == "mine"
    assert [media["train/global_step"] for media in sent] == [1, 2]
    for media in sent:
        assert media["completions"] == smoke.grpo.log_problems * smoke.grpo.group_size
        assert [len(media[f"distribution/{name}"]) for name in ("format", "answer")] == [16, 16]


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
    with pytest.raises(UserError, match=f"{variable}={value}.*: {words}"):
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
    changes |= {"num_epochs": 1, "batch_size": 8, "micro_batch_size": 8}
    folder = write_inputs(tmp_path / "run", base, sets, num_sft=32, sft=changes)
    with pytest.raises(UserError, match="interrupted"):
        run("sft", folder, callbacks=[StopAt(3)])
    run("sft", folder)
    first, second = (
        [(step, "loss" in logs) for step, logs in each.points if "train_loss" not in logs]
        for each in recorders
    )
    assert first == [(0, False), (2, False), (2, True)]
    assert second == [(4, False), (4, True)]
    assert {name for each in recorders for name, _ in each.runs} == {"mine"}


def test_online_without_a_key_is_recorded_offline(tmp_path, monkeypatch):
    assert trackers() == []
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("REPORT_TO", "wandb")
    trackers()
    assert os.environ["WANDB_MODE"] == "offline"
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setattr(wandb, "login", lambda prompt: True)  # it would ask W&B about the key
    trackers()
    assert os.environ["WANDB_MODE"] == "online"
