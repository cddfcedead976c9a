"""Run one rank of two; the second is killed once, and leaves the named file as a mark."""

import os
import signal
import sys
from pathlib import Path

import click
import torch

if __name__ == "__main__":
    torch.distributed.init_process_group("gloo")
    killed = Path(sys.argv[1])
    torch.distributed.barrier()
    if torch.distributed.get_rank() == 1 and not killed.exists():
        killed.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    torch.distributed.barrier()
    click.echo(f"rank {torch.distributed.get_rank()} is done")
