"""The number of training processes of a launch, and each one's share of a step. No torch.

`accelerate launch --num_processes 2 --cpu` starts one process without a warning and exits with 0
(accelerate 1.15). A stage therefore reads the expected number from its launcher's command line, and
refuses to train with another number of ranks.
"""

import argparse
import dataclasses
import math
import os
import shlex
from collections.abc import Sequence
from pathlib import Path

import psutil

from lib.core.errors import UserError
from lib.params.load import read_yaml


def check_world_size() -> None:
    """Refuse to train if the launcher did not start as many processes as its options ask for.

    Raises:
        UserError: the numbers differ.
    """
    started = num_processes()
    # Nearest parent first.
    for process in psutil.Process().parents():
        expected = expected_world_size(_command_line(process))
        # A shell, make or DVC, or a launcher without a fixed number.
        if expected is None:
            continue
        if expected != started:
            raise UserError(
                f"the launcher was told to start {expected} processes and started {started}; "
                "on one machine's CPUs use LAUNCH='torchrun --nproc_per_node "
                f"{expected}', on GPUs check that there are {expected}"
            )
        return


def num_processes() -> int:
    """Return the number of processes of this run on all machines (torchrun, accelerate)."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_main_process() -> bool:
    """Return True on rank 0, the process to write the outputs."""
    return int(os.environ.get("RANK", "0")) == 0


def micro_batches(batch: int, *, micro_batch: int, world_size: int) -> dict[str, int]:
    """Return the rows of a forward pass and the number of passes per process in an optimiser step.

    The keys are names of `transformers.TrainingArguments`. A batch of 32 with micro-batches of 8
    on 2 processes: 4 rows in each of 4 passes.

    Args:
        batch, micro_batch: rows on all processes together.

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


def check_whole_groups(prompts_per_step: int, *, world_size: int) -> None:
    """Raise UserError if the processes cannot share the problems of a GRPO step evenly."""
    if prompts_per_step % world_size:
        raise UserError(
            f"grpo.prompts_per_step={prompts_per_step}: {world_size} processes cannot share it in "
            f"whole groups; use a multiple of {world_size}"
        )


def expected_world_size(command: Sequence[str]) -> int | None:
    """Return the number of processes that a launcher's command line asks for.

    `torchrun --nproc_per_node 2 --nnodes 3 …` -> 6. None if the number is not fixed
    (`--nproc_per_node gpu`, `--nnodes 1:4`), or if the command is no launcher's.
    """
    # `torchrun`, `python …/torchrun`, `python -m torch.distributed.run`, or `stages.ranks`.
    names = {Path(word).name for word in command[:3]}
    is_torchrun = bool(names & {"torchrun", "torch.distributed.run", "stages.ranks"})
    if not is_torchrun and not ("accelerate" in names and "launch" in command):
        return None
    options = _options(command)
    if is_torchrun:
        # torchrun's own defaults, which Kubeflow sets.
        numbers = [
            options.nproc_per_node or os.environ.get("PET_NPROC_PER_NODE", "1"),
            options.nnodes or os.environ.get("PET_NNODES", "1"),
        ]
        return math.prod(map(int, numbers)) if all(map(str.isdigit, numbers)) else None
    # The option wins over the file of `--config_file`, as in accelerate.
    number = options.num_processes
    if not number and options.config_file:
        number = read_yaml(Path(options.config_file)).get("num_processes")
    return int(number) if str(number).isdigit() else None


@dataclasses.dataclass(frozen=True)
class Launch:
    """A phase's number of ranks; `shards` is True if each holds a part of the model (FSDP)."""

    ranks: int = 1
    shards: bool = False

    def __str__(self) -> str:
        held = f"1/{self.ranks} of the model" if self.shards else "the whole model"
        return f"{self.ranks} ranks, each with {held} and its part of a micro-batch"


def launch_in_environment() -> Launch:
    """Return the launch that `LAUNCH` describes; one rank if it is unset or has no fixed number.

    Raises:
        UserError: `LAUNCH` is no shell command, such as one with an open quote.
    """
    try:
        command = shlex.split(os.environ.get("LAUNCH", ""))
    except ValueError as error:
        raise UserError(f"LAUNCH: {error}; expected a launcher's command line") from error
    file = _options(command).config_file
    shards = bool(file) and read_yaml(Path(file)).get("distributed_type") == "FSDP"
    return Launch(expected_world_size(command) or 1, shards)


def _options(command: Sequence[str]) -> argparse.Namespace:
    """Parse the launchers' options that decide the number of processes; None for absent ones."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in ("nproc-per-node", "nnodes", "num-processes", "config-file"):
        # Both spellings: --nproc-per-node and --nproc_per_node.
        parser.add_argument(f"--{name}", f"--{name.replace('-', '_')}")
    return parser.parse_known_args(list(command))[0]


def _command_line(process: psutil.Process) -> list[str]:
    try:
        command: list[str] = process.cmdline()
    except psutil.Error:  # the process has ended, or belongs to another user
        return []
    return command
