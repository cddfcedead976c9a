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
    """Return the exit code of the first rank that failed, which has said why; 0 if none did."""
    # It goes to all processes of a job, for the ranks (`SaveOnSignal`), and would end this one.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    # torch 2.13 keeps the store of a node's first round (elastic/rendezvous/dynamic_rendezvous.py,
    # `next_rendezvous`): ranks that start again would read the dead ones' addresses there.
    os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    # One line for each failed rank, and one for each that is ended with it.
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    try:
        main(arguments)
    except ChildFailedError as failed:
        rank, failure = failed.get_first_failure()
        if failure.exitcode < 0:
            name = signal.Signals(-failure.exitcode).name
            click.echo(f"Error: rank {rank} was ended by {name}; see its log, and dmesg", err=True)
        return abs(failure.exitcode)
    return 0


if __name__ == "__main__":
    sys.exit(launch(sys.argv[1:]))
