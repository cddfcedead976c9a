"""Settings of a process that results depend on (seeds, threads, kernels), and its free memory."""

import contextlib
import gc
import os
import platform
import random
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import transformers

from lib.core.errors import UserError
from lib.models.gpu import find_gpus, gpu_fault


def configure(*, seed: int, threads: int) -> None:
    """Seed all random generators, set the number of CPU threads, prefer reproducible kernels.

    A stage calls this once, before it loads a model. transformers' bars and warnings are switched
    off; a stage shows its own lines.

    Raises:
        UserError: there is a GPU that torch cannot use.
    """
    # A sentence with the remedy; '' if torch can use the GPUs, or there are none.
    if fault := gpu_fault(find_gpus()):
        raise UserError(fault)
    torch.set_num_threads(threads)
    # Without this variable, accelerate sets the number of threads again in a launched process.
    os.environ["OMP_NUM_THREADS"] = str(threads)
    prefer_reproducible_kernels()
    use_common_cpu_kernels()
    transformers.set_seed(seed)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def use_common_cpu_kernels() -> None:
    """Make torch, and MKL on an Intel CPU, use AVX2 kernels on a CPU with AVX-512 too.

    AVX-512 kernels add in another order, and sampling turns a difference in rounding into another
    run. Both libraries read these variables at their first operation; a user's own values stay
    (`avx512` and `AUTO` are the fastest). On AMD's CPUs, MKL 2024.0 takes AUTO in place of AVX2
    (MKL_VERBOSE=1 prints it). oneDNN, which multiplies bfloat16 matrices, keeps the CPU's own
    instructions.
    """
    os.environ.setdefault("MKL_CBWR", "AVX2")
    if torch.cpu._is_avx512_supported():
        os.environ.setdefault("ATEN_CPU_CAPABILITY", "avx2")


def cpu_has_bfloat16() -> bool | None:
    """Return whether the CPU has instructions for bfloat16, which oneDNN knows; None without it.

    Without AVX-512, a product of 1,200 × 576 with 576 × 49,152 took 3 to 4 times as long as in
    float32, and its backward pass 42 to 52 times.
    """
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return None
    supported: bool = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return supported


def device_name() -> str:
    """Return the GPU's name, or the CPU's with the instruction set that torch uses.

    Example: "AMD EPYC 7B13, AVX2". Results differ by rounding between devices.
    """
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    cpus = Path("/proc/cpuinfo")
    # "model name : AMD EPYC 7B13"; other systems, and some CPUs, have no such line.
    model = re.search(r"model name\s*: (.+)", cpus.read_text() if cpus.exists() else "")
    name = model[1] if model else platform.processor() or platform.machine()
    return f"{name}, {torch.backends.cpu.get_cpu_capability()}"


def prefer_reproducible_kernels() -> None:
    """Make torch use kernels with the same bits on every run, for all operations that have one.

    On a GPU, two kinds of kernels still differ from run to run: Unsloth's and vLLM's own, and the
    backward passes of SDPA's flash and memory-efficient attention. Torch makes these backward
    passes deterministic only with `warn_only=False`, and then refuses all operations without a
    deterministic kernel.
    """
    torch.use_deterministic_algorithms(True, warn_only=True)
    # For the backward pass of the package flash-attn, not SDPA's flash kernel; transformers reads
    # the variable at every call.
    os.environ.setdefault("FLASH_ATTENTION_DETERMINISTIC", "1")
    # With deterministic algorithms torch fills all new memory with NaN, which costs time and which
    # the next operation overwrites.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


@contextlib.contextmanager
def random_states_kept() -> Iterator[None]:
    """Restore the states of Python's, NumPy's and torch's generators after the block.

    Torch has one for the CPU and one for each visible GPU; reading a GPU's starts CUDA.
    """
    python, numpy = random.getstate(), np.random.get_state()
    try:
        # torch restores its own states, of the CPU and of these GPUs.
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


@contextlib.contextmanager
def released_memory() -> Iterator[None]:
    """Collect garbage and empty the GPU's cache after the block, to free a trainer's memory.

    As a decorator it runs after the function's locals are gone, so that their memory is freed too.
    Trainers and their models are in reference cycles. Python collects these only after it has made
    many objects, even if the next phase needs their GPU memory before.
    """
    try:
        yield
    finally:
        gc.collect()
        if torch.accelerator.is_available():
            torch.accelerator.empty_cache()
