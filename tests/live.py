"""Live tensors and child processes of this process, to find leaks."""

import gc
import warnings
from typing import NamedTuple

import psutil
import torch


class Held(NamedTuple):
    """Bytes of all live tensors, each storage counted once, and the ids of child processes."""

    num_bytes: int
    processes: frozenset[int]


def held() -> Held:
    """Count live tensors and child processes.

    Nothing is collected first: garbage in a reference cycle counts as alive.
    """
    # An open vLLM engine hides all objects from the collector's list.
    gc.unfreeze()
    sizes = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for tensor in _tensors()
        # vLLM leaves meta tensors of torch.compile behind: shapes without memory.
        if tensor.untyped_storage().device.type != "meta"
    }
    children = psutil.Process().children(recursive=True)
    return Held(sum(sizes.values()), frozenset(child.pid for child in children))


def _tensors() -> list[torch.Tensor]:
    with warnings.catch_warnings():
        # Some of torch's objects warn on isinstance.
        warnings.simplefilter("ignore")
        return [each for each in gc.get_objects() if isinstance(each, torch.Tensor)]
