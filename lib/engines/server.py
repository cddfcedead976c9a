"""Generation by a vLLM server elsewhere: its own process, device or node, over HTTP.

`make vllm-server` starts one. Its address is environment, not a param: where completions are
computed changes none of them.
"""

import os
import re
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lib.artifacts import hash_path
from lib.engines.base import Completion, Sampling, longest_completions
from lib.engines.draws import keys
from lib.engines.policy import save_adapter
from lib.engines.vllm import completion
from lib.errors import UserError
from lib.params.section import EngineName

URL = "RECKON_VLLM_URL"
DEFAULT_URL = "http://127.0.0.1:8000"
TIMEOUT = "RECKON_VLLM_TIMEOUT_S"
DEFAULT_TIMEOUT_S = 600.0
CONNECT_TIMEOUT_S = 10.0


class ServerEngine:
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

    name: EngineName = "vllm-server"

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
        self.tokenizer = tokenizer
        self.weights = weights
        self._client = httpx.Client(
            base_url=self.url,
            timeout=httpx.Timeout(longest, connect=min(longest, CONNECT_TIMEOUT_S)),
            limits=httpx.Limits(max_connections=None),
        )
        self._batch_size = batch_size
        self._scratch = tempfile.TemporaryDirectory(prefix="reckon-vllm-")
        self._num_syncs = 0
        self._adapter = ""
        served = self._check_serves()
        self.model: str = served["id"]
        self.max_seq_length: int = served["max_model_len"]

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling
    ) -> list[list[Completion]]:
        """See `Engine`. A request for each prompt, so that each has a seed of its own."""
        if not prompts:
            return []
        limits = longest_completions(prompts, sampling, positions=self.max_seq_length)
        bodies = [
            self._body(prompt, sampling, max_tokens=limit, seed=key % 2**62)
            for prompt, limit, key in zip(
                prompts, limits, keys(prompts, seed=sampling.seed), strict=True
            )
        ]
        at_a_time = max(1, self._batch_size // sampling.num_completions)
        with ThreadPoolExecutor(min(at_a_time, len(bodies))) as requests:
            answers = list(requests.map(lambda body: self._post("/v1/completions", body), bodies))
        groups = [
            [self._completion(choice, sampling) for choice in answer["choices"]]
            for answer in answers
        ]
        # vLLM draws a greedy completion once.
        return [group * (sampling.num_completions // len(group)) for group in groups]

    def sync(self, policy: PreTrainedModel) -> None:
        """See `Engine`.

        Raises:
            UserError: the policy is no adapter, or the server takes none.
        """
        if not isinstance(policy, PeftModel):
            raise UserError(
                "rollout.engine: vllm-server takes an adapter alone (full weights travel by NCCL, "
                "which needs CUDA); set model.lora.rank, or rollout.engine: vllm"
            )
        folder = Path(self._scratch.name) / str(self._num_syncs)
        save_adapter(policy, folder)
        self.use_adapter(folder)

    def use_adapter(self, folder: Path) -> None:
        """Generate with the LoRA adapter in `folder`, in place of another one."""
        self._num_syncs += 1
        # A name that no other run has: the server may keep what was computed under a used one.
        name = f"{Path(self._scratch.name).name}-{self._num_syncs}"
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

    def _body(
        self, prompt: Sequence[int], sampling: Sampling, *, max_tokens: int, seed: int
    ) -> dict[str, Any]:
        greedy = sampling.temperature == 0
        return {
            "model": self._adapter or self.model,
            "prompt": list(prompt),
            "n": 1 if greedy else sampling.num_completions,
            "max_tokens": max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
            # Else the model's generation_config.json would be asked.
            "repetition_penalty": 1.0,
            "seed": None if greedy else seed,
            "stop": list(sampling.stop_strings),
            "include_stop_str_in_output": True,
            "logprobs": 0 if sampling.log_probs else None,
            "return_token_ids": True,
        }

    def _completion(self, choice: dict[str, Any], sampling: Sampling) -> Completion:
        return completion(
            self.tokenizer,
            sampling,
            token_ids=choice["token_ids"],
            reason=choice["finish_reason"],
            stopped_by=choice["stop_reason"],
            log_probs=choice["logprobs"]["token_logprobs"] if sampling.log_probs else None,
        )

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
