"""Generation with vLLM (arXiv:2309.06180) in this process, on a GPU or a CPU."""

import contextlib
import gc
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from tqdm import tqdm
from transformers import AutoConfig, PreTrainedModel, PreTrainedTokenizerBase

from lib.core.errors import UserError
from lib.engines.base import GeneratedCompletion, Sampling
from lib.engines.vllm_base import UNFINISHED, VllmBase
from lib.models import compat
from lib.models.files import is_adapter, read_adapter
from lib.models.gpu import VISIBLE
from lib.models.load import has_added_rows, load_merged
from lib.models.pretrained import load_pretrained, load_tokenizer
from lib.models.weights import weights_of
from lib.params.engines import ENGINES, VLLM_SHARE

LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Values that vLLM accepts for `max_lora_rank`, the largest rank of its adapters."""

CPU_HEAD_DIMS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Head dimensions of vLLM 0.32's attention on a CPU; another one fails deep in its kernels."""

AT_A_TIME = 512
"""Least value of `max_num_seqs`, the completions that vLLM computes together. It queues completions
that do not fit into its cache, and a smaller number would leave a GPU idle."""

FREE_SHARE = 0.95
"""Largest share of the free GPU memory for vLLM, which refuses to start if less is free than it is
told to take."""


SLEEP_LEVEL = 1
"""vLLM's sleep level: Unsloth's allocator then keeps the weights in place and drops the cache."""

_GIB = 2**30


class VllmEngine(VllmBase):
    """An `Engine` around vLLM's `LLM` in this process, with at most one LoRA adapter.

    Args:
        llm: vLLM's `LLM`.
        max_seq_length: tokens of prompt and completion together.
        label: name of the progress bar; '' shows none.
        gpu: the number of vLLM's GPU; None for the process's current one.
        among_ranks: True if this process is one of a launcher's ranks. Closing the engine then
            keeps the ranks' process group.
        sleeps: `llm` can sleep (`enable_sleep_mode`): `rest` frees its memory for the policy's
            training, and `sync` wakes it.
    """

    facts = ENGINES["vllm"]
    _adapter: Any = None
    _awake = True

    def __init__(
        self,
        llm: Any,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_seq_length: int,
        label: str = "",
        gpu: int | None = None,
        among_ranks: bool = False,
        sleeps: bool = False,
    ) -> None:
        super().__init__(tokenizer, max_seq_length=max_seq_length, label=label)
        self._sleeps = sleeps
        # vLLM's `LLM`, None after `close`; and the number of its GPU, None for the current one.
        self._llm, self._gpu = llm, gpu
        self._among_ranks = among_ranks

    @classmethod
    def open(
        cls,
        checkpoint: Path,
        *,
        base: Path,
        dtype: str,
        attention: str,
        max_seq_length: int,
        batch_size: int,
        label: str = "",
        policy: PreTrainedModel | None = None,
        memory_share: float = VLLM_SHARE,
        device: str = "",
    ) -> "VllmEngine":
        """Start vLLM on a checkpoint (see `Engine.open`).

        If Unsloth loaded the policy with a vLLM, the engine uses that vLLM instead.

        Raises:
            UserError: vLLM has too little memory, no support for the model on a CPU or for the
                adapter's rank; or `device` is set and there are several ranks.
        """
        if policy is not None and hasattr(policy, "vllm_engine"):
            tokenizer = load_tokenizer(checkpoint)
            return SharedVllmEngine(policy, tokenizer, max_seq_length=max_seq_length, label=label)
        compat.prepare_vllm()
        adapter = is_adapter(checkpoint)
        full = base if adapter else checkpoint
        # Not from an adapter's folder, though the tokenizer is the same: vLLM reads the tokenizer's
        # folder again, and needs the model's config in it.
        tokenizer = load_tokenizer(full)
        lora_rank = _lora_rank(checkpoint, policy)
        # "cuda:1" -> 1; None is the process's current GPU.
        gpu = int(device.partition(":")[2]) if device else None
        # Each of a launcher's ranks has an engine of its own, on its own device.
        among_ranks = torch.distributed.is_initialized()
        if gpu is not None and among_ranks:
            raise UserError(
                f"rollout.device={device}: with several ranks, each generates on its own GPU; "
                "set it to '', or train on one GPU"
            )
        # None: vLLM chooses how to run the model. Otherwise vLLM runs it in this process, as one of
        # the launcher's ranks or on the GPU `gpu`.
        executor: Any = "external_launcher" if among_ranks else None
        if gpu is not None:
            executor = compat.executor_on(gpu)
        with contextlib.ExitStack() as stack:
            weights = weights_of(full)
            if has_added_rows(full):
                # vLLM reads the weights from files, and no file has the embedding rows of added
                # tokens yet: write the whole model to a temporary folder, which vLLM has read when
                # the block ends.
                weights = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="reckon-")))
                whole = load_merged(full, base=full, dtype=dtype, attention=attention)
                whole.save_pretrained(weights)
            stack.enter_context(compat.undisturbed())
            stack.enter_context(_on_gpu(gpu))
            # Beside a policy on its GPU; vLLM sleeps on GPUs only.
            sleeps = policy is not None and gpu is None and torch.cuda.is_available()
            stack.enter_context(_memory_explained(weights))
            llm = _build(
                weights,
                tokenizer,
                max_seq_length=max_seq_length,
                batch_size=batch_size,
                settings={
                    "dtype": dtype,
                    "max_num_seqs": max(batch_size, AT_A_TIME),
                    "gpu_memory_utilization": _share_of_free(memory_share),
                    "distributed_executor_backend": executor,
                    "enable_sleep_mode": sleeps,
                    **(lora_settings(lora_rank) if lora_rank else {}),
                },
            )
        settings: Any = {"max_seq_length": max_seq_length, "label": label, "sleeps": sleeps}
        engine = cls(llm, tokenizer, gpu=gpu, among_ranks=among_ranks, **settings)
        if adapter:
            engine.use_adapter(checkpoint)
        return engine

    def _answer(
        self,
        prompts: Sequence[Sequence[int]],
        requests: Sequence[dict[str, Any]],
        sampling: Sampling,
    ) -> list[list[GeneratedCompletion]]:
        if self._llm is None or not self._awake:
            raise RuntimeError("the engine is closed, or sleeps until `sync`")
        from vllm import SamplingParams

        with _on_gpu(self._gpu):
            answers = self._llm.generate(
                [{"prompt_token_ids": list(prompt)} for prompt in prompts],
                [SamplingParams(**request) for request in requests],
                use_tqdm=self._bar if self.label else False,
                lora_request=self._adapter,
            )
        return [
            [self._converted(output, sampling) for output in answer.outputs] for answer in answers
        ]

    def _converted(self, output: Any, sampling: Sampling) -> GeneratedCompletion:
        log_probs = None
        if output.logprobs is not None:
            steps = zip(output.logprobs, output.token_ids, strict=True)
            log_probs = tuple(step[token].logprob for step, token in steps)
        return self._checked_completion(
            sampling,
            token_ids=output.token_ids,
            reason=output.finish_reason,
            stopped_by=output.stop_reason,
            # One entry for each run of tokens that was sampled from the same weights.
            # None, for no version at all, gives an empty set, which is refused too.
            versions={span.version for span in output.weight_versions or ()},
            log_probs=log_probs,
        )

    def rest(self) -> None:
        """Let vLLM sleep: it drops its cache, and weights that the next `sync` brings anyway."""
        if self._sleeps and self._awake:
            # Level 1 keeps the weights below an adapter, in the CPU's memory; level 2 drops all.
            self._llm.sleep(level=1 if self._adapter else 2)
            self._awake = False

    def _wake(self, part: str) -> None:
        # The weights wake, and are replaced, before the cache takes its memory (TRL 3968).
        if not self._awake:
            self._llm.wake_up(tags=[part])
            self._awake = part == "kv_cache"

    def _replace_adapter(self, folder: Path) -> None:
        if self._adapter is not None:
            self._llm.llm_engine.remove_lora(self._adapter.lora_int_id)
        self._adapter = self._request(folder)

    def _bar(self, **options: Any) -> Any:
        # disable=None: no bar where stderr is not a terminal.
        return tqdm(**{**options, "desc": self.label, "unit": "problem", "disable": None})

    def _send(self, policy: PreTrainedModel, version: str) -> None:
        from lib.engines.transfer import HOST, PolicyWeights, trainer_init

        source = PolicyWeights(policy, self._llm.model_config.dtype)
        with _on_gpu(self._gpu):
            # Without this, vLLM would still report the old version if the update broke off.
            self._llm.update_weight_version(UNFINISHED)
            trainer_init(HOST, client=self._llm, source=source).send_weights()
            # The cached keys and values are of the old weights. vLLM keeps them, and returns False,
            # if any request is unfinished.
            emptied = self._llm.reset_prefix_cache()
        if not emptied:
            raise UserError(
                "vLLM kept keys and values of the weights before in its prefix cache, and its "
                "completions would be of both; set rollout.engine to transformers, and report this"
            )
        self._llm.update_weight_version(version)
        self._version = self._llm.get_weight_version()

    def _request(self, folder: Path) -> Any:
        from vllm.lora.request import LoRARequest

        return LoRARequest(f"policy-{self._num_adapters}", self._num_adapters, str(folder))

    def close(self) -> None:
        if self._llm is None:
            return
        from vllm.distributed import cleanup_dist_env_and_memory

        # vLLM would destroy the process group of the launcher's ranks too.
        protected = compat.process_group_kept() if self._among_ranks else contextlib.nullcontext()
        with protected, _on_gpu(self._gpu):
            self._llm.llm_engine.engine_core.shutdown()
            self._llm = None
            compat.forget_layers()
            cleanup_dist_env_and_memory()
        gc.collect()  # frees the memory of reference cycles now
        self._scratch.cleanup()


class SharedVllmEngine(VllmEngine):
    """An engine on the vLLM that Unsloth loaded with its policy (`fast_inference`).

    The policy trains on the very tensors that vLLM generates from: only an adapter is passed to
    vLLM. In standby (`UNSLOTH_VLLM_STANDBY`) vLLM's cache gives its memory back while the policy
    trains: Unsloth's patched `LLM.generate` wakes vLLM, and this engine sends it to sleep again.
    That vLLM outlives this engine. Source: unsloth and unsloth_zoo 2026.10.7.

    Args:
        max_seq_length: tokens of prompt and completion together; Unsloth's own limit of vLLM, which
            it lowers for a small memory, counts if it is lower.
    """

    def __init__(
        self,
        policy: PeftModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_seq_length: int,
        label: str = "",
    ) -> None:
        self._policy: Any = policy
        llm = policy.vllm_engine
        longest = min(max_seq_length, llm.model_config.max_model_len)
        super().__init__(llm, tokenizer, max_seq_length=longest, label=label)
        # vLLM stops at the end token of the tokenizer beside the weights, which may be another one.
        self._ends = (tokenizer.eos_token_id,)
        self._sleep()

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling
    ) -> list[list[GeneratedCompletion]]:
        """Generate as `VllmEngine` does, then send vLLM to sleep if it is in standby."""
        completions = super().generate(prompts, sampling)
        if prompts:
            self._sleep()
        return completions

    def close(self) -> None:
        """Drop the references to policy and adapter, but keep vLLM until the process ends.

        The weights in its memory are those of the policy, which may still be saved. The memory of
        its cache is free in standby.
        """
        self._llm = self._policy = self._adapter = None
        self._scratch.cleanup()

    def _sleep(self) -> None:
        if self._llm.model_config.enable_sleep_mode:
            self._llm.sleep(SLEEP_LEVEL)

    def _request(self, folder: Path) -> Any:
        return self._policy.load_lora(str(folder))


@contextlib.contextmanager
def _on_gpu(gpu: int | None) -> Iterator[None]:
    """Make vLLM's GPU torch's current device within the block; None changes nothing.

    Torch only warns of operations without a deterministic kernel: vLLM has kernels of its own.
    """
    strict = not torch.is_deterministic_algorithms_warn_only_enabled()
    enabled = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(enabled, warn_only=True)
    try:
        # `torch.cuda.device` restores the trainer's GPU even if vLLM sets another one.
        with contextlib.nullcontext() if gpu is None else torch.cuda.device(gpu):
            yield
    finally:
        torch.use_deterministic_algorithms(enabled, warn_only=not strict)


def _share_of_free(share: float) -> float:
    """Return the share of the GPU's whole memory that vLLM may take: at most `share`."""
    if not torch.cuda.is_available():
        return share
    free, total = torch.cuda.mem_get_info()
    return min(share, FREE_SHARE * free / total)


@contextlib.contextmanager
def _memory_explained(weights: Path) -> Iterator[None]:
    try:
        yield
    except (ValueError, torch.OutOfMemoryError) as error:
        if "memory" not in str(error):
            raise
        raise UserError(
            f"vLLM has too little memory for {weights} ({str(error).partition('. ')[0]}); end what "
            "else uses the GPU (nvidia-smi), lower model.max_seq_length, or, beside a policy, "
            "change the gpu_memory_utilization of rollout or validation"
        ) from error


def _build(
    weights: Path,
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_seq_length: int,
    batch_size: int,
    settings: dict[str, Any],
) -> Any:
    """Start vLLM in this process and return its `LLM`.

    Args:
        batch_size: completions generated at a time, for the size of the cache on a CPU.
        settings: further arguments of `LLM`.

    Raises:
        UserError: vLLM was built for GPUs, and none is visible.
    """
    from vllm import LLM
    from vllm.distributed import model_parallel_is_initialized
    from vllm.platforms import current_platform

    from lib.engines.transfer import HOST

    if model_parallel_is_initialized():
        raise RuntimeError("another vLLM engine is open in this process; close it first")
    on_a_cpu = current_platform.is_cpu()
    if not (on_a_cpu or torch.cuda.is_available()):
        # Without this check, vLLM stops at an assertion: it finds the GPUs by NVML, which ignores
        # `CUDA_VISIBLE_DEVICES`, and torch finds none.
        raise UserError(f"the vLLM that is installed runs on GPUs only, and {VISIBLE} hides them")
    if on_a_cpu:
        settings |= cpu_settings(weights, max_seq_length=max_seq_length, batch_size=batch_size)
    return LLM(
        model=str(weights),
        load_format="safetensors",  # by default vLLM reads pickles too
        tokenizer=tokenizer.name_or_path,
        max_model_len=max_seq_length,
        seed=0,  # of vLLM's own generators; each request has a seed of its own
        disable_log_stats=True,
        # Log-probs under the distribution that is sampled from, as the trainer computes them.
        logprobs_mode="processed_logprobs",
        # The tensors of full weights are passed within this process (`lib.engines.transfer`).
        weight_transfer_config={"backend": HOST},
        use_tqdm_on_load=False,
        **settings,
    )


def cpu_settings(weights: Path, *, max_seq_length: int, batch_size: int = 256) -> dict[str, Any]:
    """Return vLLM's settings on a CPU: no graphs to capture, a cache sized for the batch.

    Args:
        batch_size: the cache gets memory for this many completions of `max_seq_length`, at least
            64 MiB and at most 4 GiB.

    Raises:
        UserError: there is no attention for the model's heads.
    """
    config = load_pretrained(AutoConfig, weights).get_text_config(decoder=True)
    # Some models' configs leave the width of a head out, or the number of key heads.
    heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    key_heads = getattr(config, "num_key_value_heads", None) or heads
    if head_dim not in CPU_HEAD_DIMS:
        raise UserError(
            f"vLLM's CPU backend has no attention for head_dim={head_dim} of {weights}; expected "
            f"one of {', '.join(map(str, CPU_HEAD_DIMS))}, or engine: transformers"
        )
    # A key and a value of 4 bytes (float32) for each layer, head and dimension.
    token_bytes = 2 * config.num_hidden_layers * key_heads * head_dim * 4
    cache_bytes = token_bytes * max_seq_length * batch_size
    return {
        "enforce_eager": True,
        # vLLM 0.32 crashes on a prompt that it reads in parts: it rewinds the request's random
        # generator, and a CPU's generator cannot be rewound.
        "enable_chunked_prefill": False,
        # Tokens of a step: a whole prompt has to fit in, and in 8192 many short ones do.
        "max_num_batched_tokens": max(max_seq_length, 8192),
        "kv_cache_memory_bytes": max(_GIB // 16, min(cache_bytes, 4 * _GIB)),
        # On a CPU, a share of the machine's memory. With the size of the cache set, vLLM 0.32 does
        # not check that so much is free.
        "gpu_memory_utilization": 0.1,
    }


def _lora_rank(checkpoint: Path, policy: PreTrainedModel | None) -> int:
    if isinstance(policy, PeftModel):
        return int(policy.peft_config["default"].r)
    return int(read_adapter(checkpoint)["r"]) if is_adapter(checkpoint) else 0


def lora_settings(rank: int, *, adapters: int = 1) -> dict[str, Any]:
    """Return vLLM's settings for LoRA: up to `adapters` adapters in memory, of ranks up to `rank`.

    vLLM takes only some ranks as the largest: rank 12 gets 16.

    Raises:
        UserError: vLLM supports no rank this high.
    """
    if rank > LORA_RANKS[-1]:
        raise UserError(
            f"model.lora.rank={rank}: vLLM runs ranks up to {LORA_RANKS[-1]}; "
            "lower it, or set engine: transformers"
        )
    return {
        "enable_lora": True,
        "max_loras": adapters,
        "max_lora_rank": min(each for each in LORA_RANKS if each >= rank),
    }
