"""Run the GRPO stage and kill its ranks once the checkpoint of step 2 is whole, or, with the first
argument `TERM`, send the second rank SIGTERM in step 1.

The second rank never sees a checkpoint: a shared folder may reach another machine late.
"""

import os
import signal
import sys

import torch

from lib.training.phase.checkpoints import Checkpoints, SaveOnSignal, SealCheckpoints
from stages.grpo import main

seal = SealCheckpoints.on_save


def seal_and_die(self: SealCheckpoints, args, state, control, **kwargs):
    seal(self, args, state, control, **kwargs)
    if state.global_step == 2:
        torch.distributed.barrier()
        os.kill(os.getpid(), signal.SIGKILL)


agree = SaveOnSignal.on_step_end


def terminated(self: SaveOnSignal, *args, **kwargs):
    if os.environ["RANK"] == "1":
        signal.raise_signal(signal.SIGTERM)
    agree(self, *args, **kwargs)


if __name__ == "__main__":
    if sys.argv[1] == "TERM":
        SaveOnSignal.on_step_end = terminated
        del sys.argv[1]
    else:
        SealCheckpoints.on_save = seal_and_die
    if os.environ["RANK"] == "1":
        Checkpoints.by_step = lambda self: []
    main()
