"""Process-wide settings that results depend on, and a quiet terminal."""

import contextlib
import gc
import os
import platform
import random
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
import transformers

from lib.core.errors import UserError
from lib.engines.gpu import find_gpus, gpu_fault


def configure(*, seed: int, threads: int) -> None:
    """Seed every generator, fix the number of CPU threads, prefer reproducible kernels.

    The libraries' own bars and notes are silenced; a stage shows its own.

    Raises:
        UserError: there is a GPU that torch cannot use.
    """
    if fault := gpu_fault(find_gpus()):
        raise UserError(fault)
    torch.set_num_threads(threads)
    # accelerate sets them anew where it finds none: a process on each node, started by a launcher.
    os.environ["OMP_NUM_THREADS"] = str(threads)
    prefer_reproducible_kernels()
    transformers.set_seed(seed)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def device_name() -> str:
    """Return the GPU, or the CPU and the instructions that torch uses on it: others round
    differently.
    """
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    cpus = Path("/proc/cpuinfo")
    model = re.search(r"model name\s*: (.+)", cpus.read_text() if cpus.exists() else "")
    name = model[1] if model else platform.processor() or platform.machine()
    return f"{name}, {torch.backends.cpu.get_cpu_capability()}"


def prefer_reproducible_kernels() -> None:
    """Select kernels that give the same bits on every run, wherever there is one.

    What remains on a GPU: the backward passes of SDPA's flash and memory-efficient kernels, which
    torch makes deterministic only where it may refuse all operations that cannot be
    (`warn_only=False`), and Unsloth's and vLLM's own kernels.
    """
    torch.use_deterministic_algorithms(True, warn_only=True)
    # Of flash-attention's backward pass; transformers reads it at every call.
    os.environ.setdefault("FLASH_ATTENTION_DETERMINISTIC", "1")
    # Along with it torch writes NaN into all new memory, a pass over each tensor that the
    # operation behind it overwrites anyway.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


@contextlib.contextmanager
def random_states_kept(gpus: Iterable[int] = ()) -> Iterator[None]:
    """Restore the states of Python's, NumPy's and torch's generators after the block.

    Args:
        gpus: those whose generators are put back too; to read one starts CUDA.
    """
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=gpus):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


@contextlib.contextmanager
def released_memory() -> Iterator[None]:
    """Free all memory of a block; as a decorator it also drops the function's locals.

    Trainers and their models are held by reference cycles. Python collects those when it has made
    many objects, and knows nothing of a GPU whose memory the next phase needs.
    """
    try:
        yield
    finally:
        gc.collect()
        if torch.accelerator.is_available():
            torch.accelerator.empty_cache()
