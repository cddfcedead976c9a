"""Training curves, and trackers such as W&B through transformers' own callbacks.

These environment variables choose the trackers:

    REPORT_TO       transformers' names, by commas: trackio, wandb, tensorboard, mlflow, ...
    WANDB_MODE      offline, online (offline where there is no key): asks for W&B too

They are no params, because tracking changes no result.
"""

import importlib
import math
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

import pandas
from flatten_dict import flatten
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.integrations import (
    TensorBoardCallback,
    get_available_reporting_integrations,
    get_reporting_integration_callbacks,
)

from lib.core.errors import UserError
from lib.training.phase.rollout_log import rollout_rows

MODES = ("disabled", "offline", "online")

PROJECT = "reckon"

TRACKER_DEFAULTS = {
    "WANDB_PROJECT": PROJECT,
    "MLFLOW_EXPERIMENT_NAME": PROJECT,
    # By default W&B wraps stdout and stderr of the process to upload them.
    "WANDB_CONSOLE": "off",
    "WANDB_SILENT": "true",
}
"""Values for the trackers' own environment variables; a variable that is set keeps its value."""

CLOCKS = ("step_time", "runtime", "per_second", "epoch")
"""Ends of column names kept out of curves: times, which differ between equal runs, and `epoch`,
which repeats `step`."""


def curve_points(state: TrainerState) -> list[dict[str, float]]:
    """Return the training curve: each logged step's numbers by column, without times (`CLOCKS`).

    An infinity or NaN is left out, since neither JSON nor `dvc metrics` has them: the `grad_norm`
    of a step that the scaler of float16 skipped, or what a reward function logged.
    """
    return [
        {
            name: value
            for name, value in entry.items()
            if not name.endswith(CLOCKS) and isinstance(value, int | float) and math.isfinite(value)
        }
        for entry in state.log_history
        # Other entries are validation points, or the run's summary.
        if "loss" in entry
    ]


def trackers() -> list[str]:
    """Return the trackers that the environment asks for, by transformers' names.

    Raises:
        UserError: a tracker is unknown to transformers or not installed; or WANDB_MODE is none of
            `MODES`.
    """
    mode, report_to = os.environ.get("WANDB_MODE", ""), os.environ.get("REPORT_TO", "")
    if mode not in ("", *MODES):
        raise UserError(f"WANDB_MODE={mode}: expected one of {', '.join(MODES)}")
    names = {each.strip() for each in report_to.split(",")} - {""}
    # A caller of W&B has imported it, and may have opened a run.
    wandb: Any = sys.modules.get("wandb")
    has_run = wandb is not None and wandb.run is not None
    if has_run or mode not in ("", "disabled"):
        names.add("wandb")
    if not names:
        return []
    for variable, value in TRACKER_DEFAULTS.items():
        os.environ.setdefault(variable, value)
    installed = get_available_reporting_integrations()
    if missing := sorted(names - {*installed}):
        raise UserError(
            f"REPORT_TO={report_to} WANDB_MODE={mode}: {missing[0]} is not installed, or no "
            f"integration of transformers; installed: {', '.join(installed) or 'none'}"
        )
    online = "wandb" in names and not has_run and mode in ("", "online")
    # False if there is no key: W&B would ask for one. Offline, `wandb sync` uploads the run later.
    if online and not importlib.import_module("wandb").login(prompt=False):
        os.environ["WANDB_MODE"] = "offline"
    return sorted(names)


def track(trainer: Trainer, name: str, settings: Mapping[str, Any]) -> None:
    """Add transformers' callbacks of the environment's trackers, and params and media for two.

    Args:
        name: of the run; the time of its start is added, because a process that resumes repeats
            steps, and a run should have no step twice. WANDB_NAME replaces both.
        settings: the params that the phase depends on.
    """
    trainer.args.run_name = os.environ.get("WANDB_NAME") or f"{name}-{time.strftime('%m%d-%H%M%S')}"
    trainer.args.project = PROJECT
    names = trackers()
    for make in get_reporting_integration_callbacks(names):
        callback = make()
        if isinstance(callback, TensorBoardCallback) and not callback.logging_dir:
            # The default is in the trainer's output folder, which goes with the run.
            callback.logging_dir = f"runs/{trainer.args.run_name}"
        trainer.add_callback(callback)
    # W&B and Trackio have the same calls: `config`, `Histogram`, `Table` and `log`.
    if modules := [sys.modules[each] for each in ("wandb", "trackio") if each in names]:
        trainer.add_callback(TrackedDetails(trainer, modules, settings))


class TrackedDetails(TrainerCallback):
    """Sends params, the rewards' distributions and logged completions to W&B and Trackio."""

    def __init__(self, trainer: Any, modules: list[Any], settings: Mapping[str, Any]) -> None:
        self.trainer, self.modules, self.settings = trainer, modules, settings
        # The config of a caller's open run, over which transformers' callback writes its own.
        runs = [getattr(module, "run", None) for module in modules]
        self.own = [dict(run.config) if run else {} for run in runs]

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Add the params to the run's config, after transformers' callback has opened the run."""
        # A resumed run sends the rows after its checkpoint.
        self.num_rows = len(rollout_rows(self.trainer))
        if state.is_world_process_zero:
            for module, own in zip(self.modules, self.own, strict=True):
                config = {**flatten(self.settings, reducer="dot"), **dict(module.config), **own}
                module.config.update(config, allow_val_change=True)

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        # Only GRPO logs a reward.
        if not state.is_world_process_zero or "reward" not in kwargs.get("logs", {}):
            return
        rows = rollout_rows(self.trainer, start=self.num_rows)
        self.num_rows += len(rows)
        names = ("step", "problem", "completion", "reward", "advantage")
        table = [row["rewards"] | {name: row[name] for name in names} for row in rows]
        # TRL's trainer keeps no rollouts.
        rollouts = getattr(self.trainer, "rollouts", ())
        for module in self.modules:
            media = {
                f"distribution/{function.__name__}": module.Histogram(
                    [rollout.rewards[index] for rollout in rollouts]
                )
                for index, function in enumerate(self.trainer.reward_funcs if rollouts else ())
            }
            if table:
                # A new table at each log, as in TRL: W&B cannot append to a logged one by default.
                media["completions"] = module.Table(dataframe=pandas.DataFrame(table))
            module.log({**media, "train/global_step": state.global_step})
