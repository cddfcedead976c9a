"""The GRPO stage whose ranks are killed once the checkpoint of step 2 is whole."""

import os
import signal
from typing import Any

import torch

from lib.training.checkpoints import SealCheckpoints
from stages.grpo import main

seal = SealCheckpoints.on_save


def seal_and_die(self: SealCheckpoints, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
    seal(self, args, state, control, **kwargs)
    if state.global_step == 2:
        torch.distributed.barrier()
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    SealCheckpoints.on_save = seal_and_die
    main()
