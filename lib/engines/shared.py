"""Generation with the vLLM that Unsloth loaded below its policy (`fast_inference`).

The policy trains on the tensors that vLLM generates from, so that only an adapter ever goes from
one to the other, and memory holds the weights once. In standby (`UNSLOTH_VLLM_STANDBY`) vLLM's
cache gives its memory back while the policy trains: Unsloth's patched `LLM.generate` wakes vLLM,
and whoever generates sends it to sleep again. Read in unsloth and unsloth_zoo 2026.10.7.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from peft import PeftModel
from transformers import PreTrainedTokenizerBase

from lib.engines.base import GeneratedCompletion, Sampling
from lib.engines.vllm import VllmBase, VllmEngine

SLEEP_LEVEL = 1
"""Unsloth's allocator leaves the weights where they are on this one, and drops the cache."""


class SharedVllmEngine(VllmEngine):
    """An `Engine` without weights of its own; one for a policy, which lives on after it.

    Args:
        policy: LoRA on a model that Unsloth loaded with `fast_inference`.
        max_seq_length: tokens of prompt and completion together; where the memory only holds a
            shorter one, Unsloth has made vLLM's shorter, and that counts.
        label: name of the progress bar; '' shows none.
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
        self._llm = policy.vllm_engine
        room = self._llm.model_config.max_model_len
        self._adapter = None
        longest = min(max_seq_length, room)
        VllmBase.__init__(self, tokenizer, max_seq_length=longest, label=label)
        # vLLM has read the tokenizer beside the weights, which may end in another token.
        self._ends = (tokenizer.eos_token_id,)
        self._rest()

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling
    ) -> list[list[GeneratedCompletion]]:
        """See `Engine`."""
        completions = super().generate(prompts, sampling)
        if prompts:
            self._rest()
        return completions

    def close(self) -> None:
        """Let go of policy and adapter.

        vLLM ends with the process: the weights in its memory are those of the policy, which may
        still be saved. What it has besides, its cache, it gave back in standby.
        """
        self._llm = self._policy = self._adapter = None
        self._scratch.cleanup()

    def _rest(self) -> None:
        if self._llm.model_config.enable_sleep_mode:
            self._llm.sleep(SLEEP_LEVEL)

    def _request(self, folder: Path) -> Any:
        return self._policy.load_lora(str(folder))
