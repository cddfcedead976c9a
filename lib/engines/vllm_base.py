"""The common base of vLLM's engines, in this process and over HTTP."""

import abc
import tempfile
from collections.abc import Sequence, Set
from pathlib import Path
from typing import Any

from peft import PeftModel
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lib.core.errors import UserError
from lib.engines.base import (
    Engine,
    Finish,
    GeneratedCompletion,
    Sampling,
    longest_completions,
    prompt_keys,
    result_tokens,
    text_until,
)
from lib.models.save import ADAPTER_ONLY
from lib.prompts.tools import tool_tags

FIRST = "default"
"""Version that vLLM reports for the weights that it was started with."""

UNFINISHED = "unfinished"
"""Version of an engine whose weights are being replaced, or whose update broke off."""


class VllmBase(Engine):
    """Makes requests of prompts, checks answers, runs a tool's calls and passes adapters on.

    Args:
        max_seq_length: tokens of prompt and completion together.
        label: name of the progress bar; '' shows none.
        scratch: folder for temporary files of adapters; None for the system's.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_seq_length: int,
        label: str = "",
        scratch: str | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.positions = max_seq_length
        self.label = label
        # Ids of end tokens besides those that vLLM reads with the weights.
        self._ends: tuple[int, ...] = ()
        # How often an adapter was loaded, and how often weights were synced.
        self._num_adapters = self._num_syncs = 0
        # Version of the full weights that this engine passed to vLLM last; at first, that of the
        # weights vLLM was started with.
        self._version = FIRST
        self._scratch = tempfile.TemporaryDirectory(prefix="reckon-vllm-", dir=scratch)

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling
    ) -> list[list[GeneratedCompletion]]:
        """Return `sampling.num_completions` completions for each prompt (see `Engine.generate`).

        Each prompt is a request of its own, with its own seed.
        """
        limits = longest_completions(prompts, sampling, positions=self.positions)
        greedy = sampling.temperature == 0
        common = {
            # vLLM refuses several greedy completions; they are equal, and one is repeated below.
            "n": 1 if greedy else sampling.num_completions,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
            # vLLM's default, written out: no penalty of the model's generation_config.json.
            "repetition_penalty": 1.0,
            "stop": [*sampling.stop_strings, *tool_tags(sampling.tool)[1:]] or None,
            "stop_token_ids": None if sampling.ignore_eos else list(self._ends) or None,
            "ignore_eos": sampling.ignore_eos,
            "include_stop_str_in_output": True,
            "logprobs": 0 if sampling.log_probs else None,
        }
        requests = [
            # A seed of vLLM has 64 bits with sign. 2^62 leaves room for the completion's number,
            # which vLLM adds.
            {**common, "max_tokens": limit, "seed": None if greedy else key % 2**62}
            for limit, key in zip(limits, prompt_keys(prompts, seed=sampling.seed), strict=True)
        ]
        answers = self._answer(prompts, requests, sampling) if prompts else []
        if sampling.tool:
            answers = self._after_calls(answers, prompts, requests, sampling)
        return [group * (sampling.num_completions // len(group)) for group in answers]

    def _after_calls(
        self,
        answers: Sequence[Sequence[GeneratedCompletion]],
        prompts: Sequence[Sequence[int]],
        requests: Sequence[dict[str, Any]],
        sampling: Sampling,
    ) -> list[list[GeneratedCompletion]]:
        """Continue completions that ended with a call, until none has another one.

        Each call is one more request, with all tokens so far; vLLM caches the keys of those before.

        Args:
            answers: completions so far, of each prompt.
            requests: of each prompt, as `_answer` took them.
        """
        groups = [list(group) for group in answers]
        # The part of each completion that was sampled last.
        parts = [list(group) for group in answers]
        (_, close) = tool_tags(sampling.tool)
        # Rows and columns of completions that may end with a call.
        places = [(row, column) for row, group in enumerate(groups) for column in range(len(group))]
        while places:
            waiting, texts, more = [], [], []
            for row, column in places:
                one, request = groups[row][column], requests[row]
                # Only a call's end is no stop string of the request.
                if one.finish != "stop" or any(stop in one.text for stop in sampling.stop_strings):
                    continue
                # vLLM's text of a request may begin with a piece of its prompt, and so with the end
                # of an earlier call: this part then goes on without a result.
                closes = close in self.tokenizer.decode(list(parts[row][column].token_ids))
                forced = result_tokens(self.tokenizer, one.text, sampling.tool) if closes else []
                room = request["max_tokens"] - len(one.token_ids) - len(forced)
                # A result that does not fit is left out whole.
                result = _forced(forced if room >= 0 else [])
                groups[row][column] = self._joined(one, result, sampling)
                if room > 0:
                    waiting.append((row, column))
                    texts.append([*prompts[row], *groups[row][column].token_ids])
                    # A seed for each completion and each of its calls.
                    (key,) = prompt_keys([[column, *texts[-1]]], seed=request["seed"] or 0)
                    seed = None if request["seed"] is None else key % 2**62
                    more.append({**request, "n": 1, "max_tokens": room, "seed": seed})
            rest = self._answer(texts, more, sampling) if texts else []
            for (row, column), (part,) in zip(waiting, rest, strict=True):
                groups[row][column] = self._joined(groups[row][column], part, sampling)
                parts[row][column] = part
            places = waiting
        return groups

    def _joined(
        self, one: GeneratedCompletion, part: GeneratedCompletion, sampling: Sampling
    ) -> GeneratedCompletion:
        token_ids = (*one.token_ids, *part.token_ids)
        mask = (*_mask_of(one), *_mask_of(part))
        text = self.tokenizer.decode(list(token_ids), skip_special_tokens=True)
        return GeneratedCompletion(
            text=text_until(sampling.stop_strings, text) if part.finish == "stop" else text,
            token_ids=token_ids,
            finish=part.finish,
            log_probs=one.log_probs and (*one.log_probs, *(part.log_probs or ())),
            sampled=None if all(mask) else mask,
        )

    @abc.abstractmethod
    def _answer(
        self,
        prompts: Sequence[Sequence[int]],
        requests: Sequence[dict[str, Any]],
        sampling: Sampling,
    ) -> list[list[GeneratedCompletion]]:
        """Return vLLM's completions for each prompt, as many as `n` in its request.

        Args:
            prompts: the token ids of each prompt.
            requests: for each prompt, the arguments of vLLM's `SamplingParams`.
        """

    def _checked_completion(
        self,
        sampling: Sampling,
        *,
        token_ids: Sequence[int],
        reason: str,
        stopped_by: str | int | None,
        log_probs: tuple[float, ...] | None,
        versions: Set[str],
    ) -> GeneratedCompletion:
        """Convert a completion of vLLM into a `GeneratedCompletion`.

        The text is decoded here, because vLLM's text drops an end that is half a character.

        Args:
            reason: vLLM's finish reason: `length`, or `stop` for a stop string or an end token.
            stopped_by: the stop string; else an end token's id or None.
            versions: the versions of the weights that its tokens were sampled from.

        Raises:
            UserError: a version differs from that of the weights passed to this engine last.
        """
        if versions != {self._version}:
            others = ", ".join(sorted(versions - {self._version}))
            raise UserError(self._stale_message(others))
        finish: Finish = "stop" if isinstance(stopped_by, str) else "eos"
        if reason == "length":
            finish = "length"
        text = self.tokenizer.decode(list(token_ids), skip_special_tokens=True)
        if finish == "stop":
            # The last token may have text after the stop string.
            text = text_until(sampling.stop_strings, text)
        return GeneratedCompletion(
            text=text,
            token_ids=tuple(token_ids),
            finish=finish,
            log_probs=log_probs,
        )

    def _stale_message(self, version: str) -> str:
        return f"vLLM generated from weights {version}, not {self._version}; report this"

    def sync(self, policy: PreTrainedModel) -> str:
        """Load the policy's current weights into vLLM; return their version (see `Engine.sync`).

        vLLM reads an adapter from files. A full model's weights are sent to it.
        """
        self._num_syncs += 1
        self._wake("weights")
        # A version contains the temporary folder's name, so that no two runs use the same one.
        name = f"{Path(self._scratch.name).name}-{self._num_syncs}"
        if not isinstance(policy, PeftModel):
            self._send(policy, name)
            self._wake("kv_cache")
            return self._version
        folder = Path(self._scratch.name) / str(self._num_adapters)
        policy.save_pretrained(folder, state_dict=_adapter_of(policy), **ADAPTER_ONLY)
        self.use_adapter(folder)
        self._wake("kv_cache")
        # With an adapter vLLM still reports the version of the full weights below it. `_version`,
        # which `_checked_completion` expects of each completion, therefore stays as it is. The name
        # is only for GRPO's trainer, which checks that each sync has a new one.
        return name

    def _wake(self, part: str) -> None:
        """Give vLLM the memory of its "weights" or "kv_cache" back, if it sleeps."""

    def _send(self, policy: PreTrainedModel, version: str) -> None:
        """Send the policy's full weights to vLLM; set `_version` to the version that it reports."""
        raise NotImplementedError

    def use_adapter(self, folder: Path) -> None:
        # vLLM caches adapters, and the keys and values of prompts computed with them, by the
        # adapter's number or name. With a used number it would generate with the old adapter.
        self._num_adapters += 1
        self._replace_adapter(folder)

    @abc.abstractmethod
    def _replace_adapter(self, folder: Path) -> None:
        """Make vLLM load the adapter in `folder` and drop the earlier one."""


def _forced(token_ids: Sequence[int]) -> GeneratedCompletion:
    """Return a call's result as a part of a completion, which it ends unless another follows."""
    zeros, none = (0.0,) * len(token_ids), (False,) * len(token_ids)
    return GeneratedCompletion(
        text="", token_ids=tuple(token_ids), finish="length", log_probs=zeros, sampled=none
    )


def _mask_of(one: GeneratedCompletion) -> Sequence[bool]:
    return (True,) * len(one.token_ids) if one.sampled is None else one.sampled


def _adapter_of(policy: PeftModel) -> dict[str, Tensor]:
    """Return the adapter's weights by name in the base's dtype, gathered if FSDP2 shards them."""
    adapter: dict[str, Tensor] = {}
    for name, weight in policy.state_dict().items():
        if "lora_" in name:
            # A shard of FSDP2 is a DTensor, which has `full_tensor`. Any other weight is whole.
            whole = weight.full_tensor() if hasattr(weight, "full_tensor") else weight
            adapter[name] = whole.to(policy.dtype)
    return adapter
