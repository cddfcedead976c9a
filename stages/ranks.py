"""Start the ranks of a stage: torchrun and its options, without its report on a rank that failed.

LAUNCH="python -m stages.ranks --nproc_per_node 2" make repro
"""

import logging
import os
import signal
import sys

import click
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main


def launch(arguments: list[str]) -> int:
    """Run torchrun; return the exit code of the first rank that failed, 0 if none did.

    A rank that failed has printed its own error.
    """
    # Slurm sends SIGUSR1 to all processes of a job. It is for the ranks (`SaveOnSignal`), and would
    # end this process.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    # torch 2.13 keeps the store of a node's first round (elastic/rendezvous/dynamic_rendezvous.py,
    # `next_rendezvous`): ranks that start again would read the dead ones' addresses there.
    os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    # Silenced, since it logs a line for each failed rank and for each that is ended with it.
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    try:
        main(arguments)
    except ChildFailedError as failed:
        rank, failure = failed.get_first_failure()
        # A negative code is a signal: such a rank could print nothing.
        if failure.exitcode < 0:
            name = signal.Signals(-failure.exitcode).name
            click.echo(f"Error: rank {rank} was ended by {name}; see its log, and dmesg", err=True)
        return abs(failure.exitcode)
    return 0


if __name__ == "__main__":
    sys.exit(launch(sys.argv[1:]))
