"""Generation with transformers' `generate`, on the CPU or one GPU."""

import hashlib
from collections.abc import Iterator, Sequence

import torch
from tqdm import tqdm
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from lib.engines.base import Completion, Finish, Sampling


class TransformersEngine:
    """An `Engine` around a model in memory.

    Args:
        batch_size: completions generated at a time.
        label: name of the progress bar; '' shows none.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        batch_size: int,
        label: str = "",
    ) -> None:
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.batch_size = batch_size
        self.label = label

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling
    ) -> list[list[Completion]]:
        """See `Engine`. Prompts of like length share a batch, so that little is padding."""
        order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
        completions: list[list[Completion]] = [[] for _ in prompts]
        per_batch = max(1, self.batch_size // sampling.num_completions)
        with tqdm(total=len(prompts), desc=self.label, unit="problem", disable=self._quiet) as bar:
            for start in range(0, len(order), per_batch):
                batch = order[start : start + per_batch]
                rows = self._generate_batch(
                    [list(prompts[index]) for index in batch], sampling, start
                )
                for index, completed in zip(batch, rows, strict=True):
                    completions[index] = completed
                bar.update(len(batch))
        return completions

    def sync(self, policy: PreTrainedModel) -> None:
        """Generate from `policy` from now on; a model in memory needs no copy."""
        self.model = policy

    def close(self) -> None:
        """Nothing is held but the caller's model."""

    @property
    def _quiet(self) -> bool | None:
        return None if self.label else True

    def _generate_batch(
        self, token_ids: list[list[int]], sampling: Sampling, start: int
    ) -> Iterator[list[Completion]]:
        padded = self.tokenizer.pad({"input_ids": token_ids}, return_tensors="pt")
        padded = padded.to(self.model.device)
        torch.manual_seed(_batch_seed(sampling.seed, start))
        with torch.inference_mode():
            generated = self.model.generate(
                **padded, generation_config=self._generation_config(sampling)
            )
        new = generated[:, padded["input_ids"].shape[1] :].tolist()
        completions = [self._completion(row) for row in new]
        for first in range(0, len(completions), sampling.num_completions):
            yield completions[first : first + sampling.num_completions]

    def _completion(self, row: list[int]) -> Completion:
        eos = self.tokenizer.eos_token_id
        finish: Finish = "eos" if eos in row else "length"
        token_ids = row[: row.index(eos) + 1] if finish == "eos" else row
        text = self.tokenizer.decode(token_ids, skip_special_tokens=True)
        return Completion(text=text, token_ids=tuple(token_ids), finish=finish)

    def _generation_config(self, sampling: Sampling) -> GenerationConfig:
        drawn = sampling.temperature > 0
        draws = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
        }
        if sampling.min_p:
            draws["min_p"] = sampling.min_p
        return GenerationConfig(
            do_sample=drawn,
            num_return_sequences=sampling.num_completions,
            max_new_tokens=sampling.max_new_tokens,
            eos_token_id=self.tokenizer.eos_token_id,
            pad_token_id=self.tokenizer.pad_token_id,
            **(draws if drawn else {}),
        )


def _batch_seed(seed: int, start: int) -> int:
    """A seed for one batch that shares nothing with its neighbours'."""
    digest = hashlib.sha256(f"{seed}/{start}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
