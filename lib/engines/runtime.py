"""Process-wide settings that the same numbers depend on, and a quiet terminal."""

import datasets
import torch
import transformers


def configure(*, seed: int, threads: int) -> None:
    """Seed every generator, fix the number of CPU threads, prefer reproducible kernels.

    The libraries' own bars and notes are silenced; a stage shows its own.
    """
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True, warn_only=True)
    transformers.set_seed(seed)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    datasets.disable_progress_bars()
