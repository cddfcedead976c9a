"""Find the NVIDIA GPUs that the driver sees, and explain why torch cannot use them.

If torch cannot use a GPU, it computes on the CPU, at most with a warning, and a run of hours takes
weeks.
Importing this module imports nothing heavy.
"""

import contextlib
import dataclasses
import math
import os
import re
import subprocess
import warnings
from collections.abc import Sequence

import psutil

LEAST_DRIVER = {"12": 525, "13": 580}
"""Oldest driver version, by the major version of torch's CUDA."""

LEAST_CAPABILITY = 7.5
"""Least compute capability that CUDA 13 compiles for, and therefore torch and vLLM."""

BFLOAT16_CAPABILITY = 8.0
"""Least compute capability of GPUs with bfloat16 and flash attention."""

VISIBLE = "CUDA_VISIBLE_DEVICES"
"""CUDA's own variable. If it is set and empty, it hides all GPUs: the user wants the CPU."""


@dataclasses.dataclass(frozen=True)
class Gpu:
    """One NVIDIA GPU as its driver describes it.

    Attributes:
        driver: the driver's version, such as "580.65.06".
        memory, free: total and free memory in bytes; the machine's main memory if the driver
            reports none, as for a GB10, which has no memory of its own.
        capability: compute capability, such as 8.0; infinity if the driver does not report it.
    """

    name: str
    driver: str
    memory: int
    free: int
    capability: float = math.inf


def find_gpus() -> tuple[Gpu, ...]:
    """List the GPUs that nvidia-smi reports and `VISIBLE` leaves; () for none, or no driver.

    Numbers in `VISIBLE` count as nvidia-smi does: CUDA has this order among equal GPUs only, unless
    CUDA_DEVICE_ORDER is PCI_BUS_ID. With other values (UUIDs), or unknown numbers, all are listed.
    """
    visible = os.environ.get(VISIBLE)
    # CUDA_VISIBLE_DEVICES: these two values hide all GPUs.
    if visible in ("", "-1"):
        return ()
    fields = "--query-gpu=name,driver_version,memory.total,memory.free"
    # First with the compute capability; old drivers refuse this field.
    for extra_field in (",compute_cap", ""):
        arguments = ["nvidia-smi", fields + extra_field, "--format=csv,noheader,nounits"]
        # Without nvidia-smi, or if both calls fail, the loop ends without a result.
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            table = subprocess.run(arguments, capture_output=True, text=True, check=True).stdout
            # "NVIDIA H100 80GB HBM3, 580.65.06, 81559, 81000, 9.0": memory is in MiB.
            # `[N/A]` in place of a number is read as ''.
            number = r"(?:([\d.]+)|\[.+?\])"
            rows = re.findall(
                rf"^(.+?), *(.+?), *{number}, *{number}(?:, *{number})?$", table, re.MULTILINE
            )
            main = psutil.virtual_memory()
            # A capability that is not reported counts as high enough: infinity.
            gpus = [
                Gpu(
                    name,
                    driver,
                    memory=int(total) * 2**20 if total else main.total,
                    free=int(free) * 2**20 if free else main.available,
                    capability=float(cap or "inf"),
                )
                for name, driver, total, free, cap in rows
            ]
            by_number = {str(number): gpu for number, gpu in enumerate(gpus)}
            listed = (word.strip() for word in (visible or "").split(","))
            return tuple(by_number[word] for word in listed if word in by_number) or tuple(gpus)
    return ()


def gpu_fault(gpus: Sequence[Gpu]) -> str:
    """Return a sentence why torch would compute on the CPU in spite of these GPUs, with the remedy.

    Returns '' if torch can use them, or there are none. Torch is imported only if there is a GPU.
    """
    if not gpus:
        return ""
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's long warning about an old driver
        if torch.cuda.is_available():
            return ""
    gpu = gpus[0]  # all GPUs of a machine have the same driver
    cuda = torch.version.cuda or ""  # such as "13.0"; '' for a build for CPUs
    # The oldest driver that this CUDA version runs on; 0 for an unknown version, so that no driver
    # is too old.
    least = LEAST_DRIVER.get(cuda.partition(".")[0], 0)
    if not cuda:
        reason = f"torch {torch.__version__} is a build for CPUs: run `make setup EXTRA=gpu`"
    elif int(gpu.driver.partition(".")[0]) < least:
        reason = f"its driver {gpu.driver} is too old for CUDA {cuda}: install {least} or newer"
    else:
        reason = (
            f"CUDA {cuda} does not start, though nvidia-smi shows driver {gpu.driver}; in a "
            "container, check that it has the driver's libraries"
        )
    return (
        f"torch cannot use {gpu.name}; {reason}. To train on the CPU on purpose, set `{VISIBLE}=`"
    )
