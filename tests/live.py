"""What a process holds: the bytes of its tensors, and its child processes."""

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
    """What lives now. Garbage in a reference cycle lives until it is collected: nothing is here."""
    # An open vLLM engine hides all objects from the collector's list.
    gc.unfreeze()
    sizes = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for tensor in _tensors()
        # torch.compile's stand-ins, which vLLM leaves behind, have shapes and no memory.
        if tensor.untyped_storage().device.type != "meta"
    }
    children = psutil.Process().children(recursive=True)
    return Held(sum(sizes.values()), frozenset(child.pid for child in children))


def _tensors() -> list[torch.Tensor]:
    with warnings.catch_warnings():
        # Some of torch's objects warn when they are asked for their class.
        warnings.simplefilter("ignore")
        return [thing for thing in gc.get_objects() if isinstance(thing, torch.Tensor)]
