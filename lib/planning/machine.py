"""What this machine has, found without importing anything heavy."""

import dataclasses
import importlib.util
import platform
import re
import shutil
import subprocess
from pathlib import Path

import psutil
from packaging.requirements import Requirement

from lib.environment import LOCK, installed_version

MIB = 1024**2


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


def this_machine(root: Path = Path(), *, lock: Path = LOCK) -> Machine:
    """Look around."""
    locked = locked_versions(lock)
    return Machine(
        python=platform.python_version(),
        differing=tuple(
            f"{name} {installed or 'missing'} (locked: {version})"
            for name, version in locked.items()
            if (installed := installed_version(name)) != version
        ),
        num_locked=len(locked),
        torch=_torch("__version__"),
        cuda=_torch("cuda"),
        gpus=find_gpus(),
        cores=psutil.cpu_count() or 1,
        memory=psutil.virtual_memory().available,
        disk=shutil.disk_usage(root).free,
        packages=frozenset(
            name
            for name in ("vllm", "unsloth", "flash_attn", "kernels")
            if importlib.util.find_spec(name) is not None
        ),
    )


def locked_versions(lock: Path) -> dict[str, str]:
    """Version by package, of the lines of a lock that are meant for this Python and platform."""
    lines = (line.partition("#")[0].strip() for line in lock.read_text("utf-8").splitlines())
    pins = [Requirement(line) for line in lines if "==" in line and not line.startswith("-")]
    return {
        pin.name: next(iter(pin.specifier)).version
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


def _torch(name: str) -> str:
    """What torch/version.py says of itself; importing torch for it would take seconds."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return ""
    source = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
    return "".join(re.findall(rf"^{name}\b.*= '([^']+)'$", source, re.MULTILINE))
