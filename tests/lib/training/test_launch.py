"""A launcher starts the requested processes, and launch files use existing verbs and presets."""

import math
import re
import subprocess

import pytest
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import launch_command_parser
from accelerate.utils import DistributedType
from ruamel.yaml import YAML

from lib.core.errors import UserError
from lib.params import preset_params
from lib.training.phase.launch import expected_world_size, launch_in_environment, micro_batches
from tests.conftest import ROOT
from tests.lib.training.runs import launch

CONFIGS = ROOT / "lib/presets/accelerate"
LAUNCH_FILES = ROOT / "lib/presets/launch"


@pytest.mark.parametrize(
    ("command", "processes"),
    [
        ("python -m stages.sft", None),
        ("sh -c stages.sft --config-file", None),
        ("/x/bin/python /x/bin/torchrun --nproc_per_node 2 -m stages.sft", 2),
        ("torchrun --nproc-per-node=4 --nnodes=3 -m stages.sft", 12),
        ("torchrun --nproc_per_node gpu -m stages.sft", None),
        ("python -m torch.distributed.run --nproc_per_node 2 -m stages.sft", 2),
        ("python -m stages.ranks --nnodes 2 --nproc_per_node 4 -m stages.sft", 8),
        ("/x/bin/python /x/bin/accelerate launch --num_processes 2 --cpu -m stages.sft", 2),
        ("accelerate launch --config_file lib/presets/accelerate/ddp.yaml -m stages.sft", 2),
        ("accelerate launch -m stages.sft", None),
        ("accelerate launch --num_processes two -m stages.sft", None),
    ],
)
def test_a_launchers_command_line_has_its_number_of_processes(command, processes, in_root):
    assert expected_world_size(command.split()) == processes


def test_torchruns_own_variables_stand_for_options_that_are_not_given(monkeypatch):
    monkeypatch.setenv("PET_NPROC_PER_NODE", "4")
    monkeypatch.setenv("PET_NNODES", "2")
    assert expected_world_size(["torchrun", "-m", "stages.sft"]) == 8
    assert expected_world_size(["torchrun", "--nproc_per_node", "2", "-m", "stages.sft"]) == 4


def test_a_launch_that_no_shell_reads_is_one_line(monkeypatch):
    monkeypatch.setenv("LAUNCH", "torchrun 'x")
    with pytest.raises(UserError, match="LAUNCH: No closing quotation"):
        launch_in_environment()


@pytest.mark.slow
def test_a_launcher_that_starts_too_few_is_refused():
    command = ["accelerate", "launch", "--cpu", "--num_processes", "2", "--module"]
    ran = launch(*command, "tests.lib.training.checks_world_size")
    assert ran.returncode != 0
    assert "told to start 2 processes and started 1" in ran.stderr


@pytest.mark.parametrize(
    ("name", "kind"), [("ddp", DistributedType.MULTI_GPU), ("fsdp2", DistributedType.FSDP)]
)
def test_accelerate_reads_each_of_the_configurations(name, kind):
    config = load_config_from_file(str(CONFIGS / f"{name}.yaml"))
    assert (config.distributed_type, config.num_processes) == (kind, 2)
    known = {action.dest for action in launch_command_parser()._actions}
    assert set(config.fsdp_config) <= known


SLURM, SKYPILOT = ((LAUNCH_FILES / name).read_text() for name in ("slurm.sh", "skypilot.yaml"))


@pytest.mark.parametrize(
    ("text", "gpus"),
    [(SLURM, r"--nodes=(\d+) lib|--gpus-per-node=(\d+)"), (SKYPILOT, r"H100:(\d+)")],
    ids=["slurm", "skypilot"],
)
def test_a_launch_file_parses_and_its_gpus_share_its_batches(text, gpus):
    """Its verbs are the Makefile's."""
    task = YAML(typ="safe").load(text) if text is SKYPILOT else {"setup": "", "run": text}
    for script in (task["setup"], task["run"]):
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    verbs = {*re.findall(r"(?:^|\s)make (\w+)", text)}
    assert {"fetch", "repro"} <= verbs <= {*re.findall(r"^(\w+):", makefile, re.MULTILINE)}

    processes = math.prod(
        int(number) for match in re.findall(gpus, text) for number in match if number
    )
    (preset,) = re.findall(r"make preset PRESET=(\S+)", text)
    params = preset_params(preset)
    sft, grpo = params.sft, params.grpo
    assert processes > 1
    for section, batch in (
        (sft, sft.batch_size),
        (grpo, grpo.prompts_per_step * grpo.group_size),
    ):
        assert micro_batches(batch, micro_batch=section.micro_batch_size, world_size=processes)
    assert grpo.prompts_per_step % processes == 0


def test_ranks_share_a_micro_batch_or_it_is_refused():
    assert micro_batches(256, micro_batch=64, world_size=2) == {
        "per_device_train_batch_size": 32,
        "gradient_accumulation_steps": 4,
    }
    with pytest.raises(UserError, match="3 processes"):
        micro_batches(256, micro_batch=64, world_size=3)
