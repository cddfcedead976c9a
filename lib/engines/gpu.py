"""The NVIDIA GPUs of the driver, and the reasons why torch cannot use them; no heavy import.

If torch cannot use a GPU, it computes on the CPU without a warning, and a run of hours takes weeks.
"""

import contextlib
import dataclasses
import math
import os
import re
import subprocess
import warnings
from collections.abc import Sequence

LEAST_DRIVER = {"12": 525, "13": 580}
"""Oldest version of the driver, by the first number of torch's CUDA version."""

LEAST_CAPABILITY = 7.5
"""Least capability of the GPUs that CUDA 13 compiles for, and torch and vLLM with it."""

BFLOAT16_CAPABILITY = 8.0
"""Least capability of the GPUs that compute in bfloat16 and run flash attention."""

VISIBLE = "CUDA_VISIBLE_DEVICES"
"""CUDA's own variable. If it is set and empty, it hides all GPUs: the user wants the CPU."""


@dataclasses.dataclass(frozen=True)
class Gpu:
    """One NVIDIA GPU as its driver describes it; memory in bytes, capability as 8.0."""

    name: str
    driver: str
    memory: int
    free: int
    capability: float = math.inf


def find_gpus() -> tuple[Gpu, ...]:
    """List the GPUs that nvidia-smi reports; () if they are hidden or there is no driver."""
    if os.environ.get(VISIBLE) in ("", "-1"):
        return ()
    fields = "--query-gpu=name,driver_version,memory.total,memory.free"
    for last in (",compute_cap", ""):  # old drivers do not know it
        arguments = ["nvidia-smi", fields + last, "--format=csv,noheader,nounits"]
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            table = subprocess.run(arguments, capture_output=True, text=True, check=True).stdout
            rows = re.findall(
                r"^(.+?), *(.+?), *(\d+), *(\d+)(?:, *([\d.]+))?$", table, re.MULTILINE
            )
            return tuple(
                Gpu(name, driver, int(total) * 2**20, int(free) * 2**20, float(known or "inf"))
                for name, driver, total, free, known in rows
            )
    return ()


def gpu_fault(gpus: Sequence[Gpu]) -> str:
    """Explain why torch would train on the CPU in spite of these GPUs, with the remedy; '' if torch
    can use them.

    Torch is imported only if there is a GPU.
    """
    if not gpus:
        return ""
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's long warning about an old driver
        if torch.cuda.is_available():
            return ""
    gpu, cuda = gpus[0], torch.version.cuda or ""
    least = LEAST_DRIVER.get(cuda.partition(".")[0], 0)
    if not cuda:
        reason = f"torch {torch.__version__} is a build for CPUs: run `make setup EXTRA=gpu`"
    elif int(gpu.driver.partition(".")[0]) < least:
        reason = f"its driver {gpu.driver} is too old for CUDA {cuda}: install {least} or newer"
    else:
        reason = f"CUDA {cuda} does not start on driver {gpu.driver}: is it the container's too?"
    return (
        f"torch cannot use {gpu.name}; {reason}. To train on the CPU on purpose, set `{VISIBLE}=`"
    )
