"""Start the ranks of a stage: torchrun and its options, without its report on a rank that failed.

LAUNCH="python -m stages.ranks --nproc_per_node 2" make repro
"""

import logging
import os
import signal
import sys

import click


def launch(arguments: list[str]) -> int:
    """Run torchrun with `arguments`; return the exit code of the first rank that failed, or 0.

    A rank that failed has printed its own error, unless a signal ended it; the code is then the
    signal's number.
    """
    # Here, since `check` imports every script.
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as torchrun

    # Before a Slurm job's time is over, slurm.sh sends SIGUSR1 to all its processes. The ranks then
    # save a checkpoint (`SaveOnSignal`); this process would end at once.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    # torch 2.13 keeps the store of a node's first round (elastic/rendezvous/dynamic_rendezvous.py,
    # `next_rendezvous`): ranks that start again would read the dead ones' addresses there.
    os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    # Silenced: it logs a line for each rank that failed, and for each that is ended with it.
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    try:
        torchrun(arguments)
    except ChildFailedError as failed:
        rank, failure = failed.get_first_failure()
        # A negative exit code is the number of a signal: the rank could print nothing.
        if failure.exitcode < 0:
            name = signal.Signals(-failure.exitcode).name
            click.echo(f"Error: rank {rank} was ended by {name}; see its log, and dmesg", err=True)
        return abs(failure.exitcode)
    return 0


if __name__ == "__main__":
    sys.exit(launch(sys.argv[1:]))
