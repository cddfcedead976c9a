"""Loaded by vLLM into each worker process of the server (`--worker-extension-cls`)."""

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor

from lib.engines.compat import reload_weights

_PROCESS = uuid.uuid4().hex


class Extension:
    """Full weights by a folder that both sides see; vLLM adds these methods to its worker's own."""

    weights_version = ""
    """Of the weights that this worker has; '' for those that it was started with."""

    def load_version(self: Any, folder: str, version: str) -> None:
        """Take the weights in `folder`, each worker its part of them."""
        self.weights_version = "unfinished"
        reload_weights(self, _tensors(Path(folder)))
        self.weights_version = version

    def read_version(self) -> list[str]:
        """A name of this process that no other one has, and `weights_version`."""
        return [_PROCESS, self.weights_version]


def _tensors(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """One at a time: a worker has no room for all of them twice."""
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as weights:
            for name in weights.keys():  # noqa: SIM118 - no mapping
                yield name, weights.get_tensor(name)
