"""How many processes a launcher was told to start, and how they share an optimiser step. No torch.

`accelerate launch --num_processes 2 --cpu` starts one process, says nothing and exits with 0
(accelerate 1.15). A stage therefore reads what its launcher was told from the launcher's own
command line, and refuses to train with another number of ranks.
"""

import argparse
import math
import os
from collections.abc import Sequence
from pathlib import Path

import psutil

from lib.core.errors import UserError
from lib.params.load import read_yaml


def check_world_size() -> None:
    """Refuse to train when the launcher did not start what it was told to.

    Raises:
        UserError: says both numbers, and a launcher that does what it says on a CPU.
    """
    started = num_processes()
    for process in psutil.Process().parents():
        told = expected_world_size(_command_line(process))
        if told is None:
            continue
        if told != started:
            raise UserError(
                f"the launcher was told to start {told} processes and started {started}; "
                "on CPUs use LAUNCH='torchrun --nproc_per_node "
                f"{told}', on GPUs check that there are {told}"
            )
        return


def num_processes() -> int:
    """Processes that a launcher (torchrun, accelerate) started for this run, on all machines."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_main_process() -> bool:
    """Whether this process writes what all of them made."""
    return int(os.environ.get("RANK", "0")) == 0


def micro_batches(batch: int, *, micro_batch: int, world_size: int) -> dict[str, int]:
    """Cut one optimiser step's batch into forward passes per process.

    Raises:
        UserError: the processes cannot share the micro-batch evenly.
    """
    per_device, rest = divmod(micro_batch, world_size)
    if rest or not per_device:
        raise UserError(
            f"micro_batch_size={micro_batch} cannot be shared by {world_size} processes; "
            f"use a multiple of {world_size}"
        )
    return {
        "per_device_train_batch_size": per_device,
        "gradient_accumulation_steps": batch // micro_batch,
    }


def expected_world_size(command: Sequence[str]) -> int | None:
    """Processes that a launcher's command line asks for; None if it is no launcher's, or leaves
    the number to the machine (`--nproc_per_node gpu`, `--nnodes 1:4`)."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in ("nproc-per-node", "nnodes", "num-processes", "config-file"):
        parser.add_argument(f"--{name}", f"--{name.replace('-', '_')}")
    options, _ = parser.parse_known_args(list(command))
    names = [Path(word).name for word in command[:3]]
    if "torchrun" in names or "torch.distributed.run" in command[:3]:
        numbers = [options.nproc_per_node or "1", options.nnodes or "1"]
        return math.prod(map(int, numbers)) if all(map(str.isdigit, numbers)) else None
    if "accelerate" not in names or "launch" not in command:
        return None
    number = options.num_processes
    if not number and options.config_file:
        number = read_yaml(Path(options.config_file)).get("num_processes")
    return int(number) if number else None


def _command_line(process: psutil.Process) -> list[str]:
    try:
        command: list[str] = process.cmdline()
    except psutil.Error:  # ended meanwhile, or another user's
        return []
    return command
