"""Training on two ranks of a CPU, with the weights cut across them by FSDP2 or whole on both."""

import dataclasses
import functools
import json
import os
from pathlib import Path

import pytest
from torch.distributed.tensor import DTensor
from transformers import Trainer

from lib.engines.base import Engine
from lib.training.grpo.policy_gradient import PolicyGradientTrainer
from lib.training.phase import setup as phase
from tests.attention_16bit import stand_in
from tests.lib.training.runs import StopAt, run

CONFIG = Path("lib/presets/accelerate/fsdp2.yaml")


def fsdp_environment(config: Path) -> dict[str, str]:
    """Return the FSDP variables of `accelerate launch --config_file`."""
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils.launch import prepare_multi_gpu_env

    command = ["--config_file", str(config), "--num_processes", "2", "training.py"]
    args, *_ = _validate_launch_command(launch_command_parser().parse_args(command))
    return {name: value for name, value in prepare_multi_gpu_env(args).items() if "FSDP" in name}


def shard_on_cpu():
    """Let accelerate shard on a CPU.

    accelerate/state.py, `AcceleratorState.__init__`, 1.15.0 heeds the FSDP of its environment on
    accelerators alone; on CPUs it trains replicas and says nothing. What it calls for FSDP2,
    PyTorch's `fully_shard`, runs on CPUs.
    """
    from accelerate.state import AcceleratorState, PartialState
    from accelerate.utils import DistributedType

    plain = AcceleratorState.__init__

    @functools.wraps(plain)
    def init(self: AcceleratorState, *args, fsdp_plugin=None, **kwargs):
        plain(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
        if fsdp_plugin is not None:
            if self._mixed_precision != "no":
                fsdp_plugin.set_mixed_precision(self._mixed_precision)
            self.fsdp_plugin = fsdp_plugin
            self.distributed_type = DistributedType.FSDP
            PartialState._shared_state["distributed_type"] = DistributedType.FSDP

    AcceleratorState.__init__ = init


def end_unevenly():
    """Let rank 1 generate less: the ranks call the policy unequally often."""
    plain = PolicyGradientTrainer.roll_out_with

    def roll_out_with(self: PolicyGradientTrainer, engine: Engine, *, live: bool):
        if os.environ["RANK"] == "1":
            self.sampling = dataclasses.replace(self.sampling, max_new_tokens=3)
        plain(self, engine, live=live)

    PolicyGradientTrainer.roll_out_with = roll_out_with


def count_weights(folder: Path):
    """Write the rank's number of weights when they are gathered."""
    plain = phase.gather_weights

    def gather_weights(trainer: Trainer):
        weights = [weight.detach() for weight in trainer.model.parameters()]
        held = [w.to_local() if isinstance(w, DTensor) else w for w in weights]
        counts = {"held": sum(w.numel() for w in held), "total": sum(w.numel() for w in weights)}
        (folder / f"{os.environ['RANK']}.json").write_text(json.dumps(counts))
        return plain(trainer)

    phase.gather_weights = gather_weights


def main(way: str, stage: str, folder: Path, *stop: int):
    """Train as `runs` does, by the way of `shards` or `replicas`; interrupt both ranks at `stop`.

    Writes FOLDER/<rank>.json: the rank's number of weights at the end, and the model's. Rank 1's
    completions are the shorter ones.
    """
    if way == "shards":
        os.environ.update(fsdp_environment(CONFIG))
        shard_on_cpu()
    end_unevenly()
    count_weights(folder)
    stand_in(pytest.MonkeyPatch())
    run(stage, folder, callbacks=[StopAt(step) for step in stop])
