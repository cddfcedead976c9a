"""A training run on Weights & Biases, where the environment asks for it.

    WANDB_MODE      disabled (the default), offline, online (offline where there is no key)
    WANDB_PROJECT   reckon, unless set
    WANDB_NAME      the stage and its fingerprint, unless set
    WANDB_ENTITY, WANDB_DIR, WANDB_API_KEY as in W&B's own manual

Tracking is environment and no param: it changes no result.
"""

import os
from collections.abc import Mapping
from typing import Any, Literal, cast, get_args

from transformers import (
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from lib.core.errors import UserError

Mode = Literal["disabled", "offline", "online"]
MODES = get_args(Mode)


def wandb_mode() -> Mode:
    """What WANDB_MODE says.

    Raises:
        UserError: none of `MODES`.
    """
    mode = os.environ.get("WANDB_MODE") or "disabled"
    if mode not in MODES:
        raise UserError(f"WANDB_MODE={mode}: expected one of {', '.join(MODES)}")
    return cast(Mode, mode)


class WandbRun(TrainerCallback):
    """Logs hyper-parameters, every curve, and the distribution of each reward per logged step.

    Args:
        trainer: asked for the rewards of its last rollouts.
        settings: the params that the phase depends on.
        name: of the run, unless WANDB_NAME is set.
    """

    def __init__(
        self, trainer: Trainer, *, mode: Mode, settings: Mapping[str, Any], name: str
    ) -> None:
        self.trainer = trainer
        self.mode = mode
        self.settings = settings
        self.name = name
        self.run: Any = None
        self.opened = True
        self.num_sent = 0

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Open a run, or take the one that is open.

        Points that a run before an interruption has sent are not sent again.
        """
        if not state.is_world_process_zero:
            return
        import wandb

        self.num_sent = len(state.log_history) if state.global_step else 0
        if wandb.run is not None:
            self.run, self.opened = wandb.run, False
            return
        # Without a key W&B asks for one, or ends the run; `make wandb-sync` sends it later.
        keyless = self.mode == "online" and not wandb.login(prompt=False)
        mode = "offline" if keyless else self.mode
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or "reckon",
            name=os.environ.get("WANDB_NAME") or self.name,
            config=dict(self.settings),
            mode=mode,
            settings=wandb.Settings(silent=True, console="off"),
        )

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Send what the trainer has logged since, validation included."""
        if self.run is None:
            return
        new = state.log_history[self.num_sent :]
        self.num_sent = len(state.log_history)
        for entry in new:
            self.run.log(
                {name: value for name, value in entry.items() if name != "step"},
                step=entry["step"],
            )
        if new and "reward" in new[-1]:
            self.run.log(self._distributions(), step=new[-1]["step"])

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Close the run, unless it was open before training."""
        if self.run is not None and self.opened:
            self.run.finish()

    def _distributions(self) -> dict[str, Any]:
        import wandb

        rollouts = getattr(self.trainer, "rollouts", ())
        functions = getattr(self.trainer, "reward_funcs", ())
        return {
            f"distribution/{function.__name__}": wandb.Histogram(
                [row.rewards[index].item() for row in rollouts]
            )
            for index, function in enumerate(functions)
        }
