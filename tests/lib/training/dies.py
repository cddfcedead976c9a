"""The GRPO stage whose ranks are killed once the checkpoint of step 2 is whole.

The second never sees it: a shared folder may reach another machine late.
"""

import os
import signal
from typing import Any

import torch

from lib.training.phase.checkpoints import Checkpoints, SealCheckpoints
from stages.grpo import main

seal = SealCheckpoints.on_save


def seal_and_die(self: SealCheckpoints, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
    seal(self, args, state, control, **kwargs)
    if state.global_step == 2:
        torch.distributed.barrier()
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    SealCheckpoints.on_save = seal_and_die
    if os.environ["RANK"] == "1":
        Checkpoints.by_step = lambda self: []
    main()
