"""What this machine has, found without importing anything heavy."""

import dataclasses
import importlib.util
import platform
import re
import runpy
import subprocess
from pathlib import Path

import psutil
from packaging.requirements import Requirement

from lib.environment import LOCK, installed_version

MIB = 1024**2

OPTIONAL = ("vllm", "unsloth", "flash_attn", "kernels")
"""Packages that only some params need."""


@dataclasses.dataclass(frozen=True)
class Gpu:
    """One NVIDIA GPU as its driver describes it; memory in bytes."""

    name: str
    driver: str
    memory: int
    free: int


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
        cores: CPU cores.
        memory: bytes of main memory that are free.
        disk: bytes that are free in the checkout.
        packages: optional packages that are installed.
    """

    python: str
    differing: tuple[str, ...]
    num_locked: int
    torch: str
    cuda: str
    gpus: tuple[Gpu, ...]
    cores: int
    memory: int
    disk: int
    packages: frozenset[str]


def this_machine(*, lock: Path = LOCK) -> Machine:
    """Look around."""
    locked = locked_versions(lock)
    torch = importlib.util.find_spec("torch")
    assert torch and torch.origin  # `stages` has compared its version with the lock's
    # What `import torch.version` gives, which takes seconds.
    build = runpy.run_path(str(Path(torch.origin).with_name("version.py")))
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
        gpus=find_gpus(),
        cores=psutil.cpu_count() or 1,
        memory=psutil.virtual_memory().available,
        disk=psutil.disk_usage(".").free,
        packages=frozenset(filter(importlib.util.find_spec, OPTIONAL)),
    )


def locked_versions(lock: Path) -> dict[str, str]:
    """Version by package, of the lines of a lock that are meant for this Python and platform."""
    pins = map(
        Requirement, re.findall(r"^\w[^#\n]*==[^#\n]*", lock.read_text("utf-8"), re.MULTILINE)
    )
    return {
        pin.name: str(pin.specifier).lstrip("=")
        for pin in pins
        if pin.marker is None or pin.marker.evaluate()
    }


def find_gpus(command: str = "nvidia-smi") -> tuple[Gpu, ...]:
    """What the driver's own tool lists; nothing where there is no driver, or it fails."""
    query = "--query-gpu=name,driver_version,memory.total,memory.free"
    arguments = [command, query, "--format=csv,noheader,nounits"]
    try:
        shown = subprocess.run(arguments, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ()
    rows = re.findall(r"^(.+?), *(.+?), *(\d+), *(\d+)$", shown, re.MULTILINE)
    return tuple(
        Gpu(name, driver, int(all_) * MIB, int(free) * MIB) for name, driver, all_, free in rows
    )
