"""Generation with a transformers model in this process, on the CPU or one GPU."""

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from operator import add
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm
from transformers import (
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from lib.core.errors import UserError
from lib.engines.base import (
    Engine,
    GeneratedCompletion,
    Sampling,
    longest_completions,
    prompt_keys,
    text_until,
)
from lib.engines.decoding import Rows, base_model, can_decode, decode
from lib.engines.endings import Endings, end_tokens
from lib.models.load import load_merged, max_positions, rope_switch
from lib.models.pretrained import load_tokenizer
from lib.models.unsloth import is_unsloth
from lib.params.engines import ENGINES

_HALF_CHARACTER = "\ufffd"
"""Decoded text of a character's first bytes while the tokens with its other bytes are missing."""


class TransformersEngine(Engine):
    """An `Engine` around a transformers model in memory; in training, the policy itself.

    Batches depend only on the request: prompts of similar length are in one batch.

    Args:
        batch_size: completions generated at a time.
        label: name of the progress bar; '' shows none.
    """

    facts = ENGINES["transformers"]

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        batch_size: int,
        label: str = "",
    ) -> None:
        self.model: PreTrainedModel | None = model  # None after `close`
        self.tokenizer = tokenizer
        self.positions = max_positions(model.config)
        self.batch_size = batch_size
        self.label = label
        # A cache: the settings that decide when a completion ends → the rules made from them.
        self._endings: dict[tuple[object, ...], Endings] = {}
        self._num_syncs = 0
        self._stream: Callable[[list[int]], None] | None = None

    @classmethod
    def open(
        cls,
        checkpoint: Path,
        *,
        base: Path,
        dtype: str,
        attention: str,
        batch_size: int,
        label: str = "",
        policy: PreTrainedModel | None = None,
        **_: Any,
    ) -> "TransformersEngine":
        if policy is None:
            # The adapter is merged: unmerged, it would launch twice as many kernels per token.
            loaded = load_merged(checkpoint, base=base, dtype=dtype, attention=attention)
            # Without the check, torch built for CUDA returns it on a machine without a GPU too.
            device = torch.accelerator.current_accelerator(check_available=True)
            policy = loaded.to(device or "cpu")
        return cls(policy, load_tokenizer(checkpoint), batch_size=batch_size, label=label)

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling
    ) -> list[list[GeneratedCompletion]]:
        """Return `sampling.num_completions` completions for each prompt (see `Engine.generate`).

        Prompts are sorted by length and generated in batches of `batch_size` completions.

        Raises:
            UserError: also if prompt and completion may pass a `longrope` model's switch.
        """
        if self.model is None:
            raise RuntimeError("the engine is closed")
        model = self.model
        endings = self._endings_of(model, sampling)
        limits = longest_completions(prompts, sampling, positions=self.positions)
        longest = max(map(add, map(len, prompts), limits), default=0)
        # Length beyond which a `longrope` model takes other RoPE factors, so that its cached keys
        # are wrong; None for other models.
        switch = rope_switch(model.config)
        if switch and longest > switch:
            raise UserError(
                f"prompt and completion may have {longest} tokens, and beyond {switch} this model "
                "(rope_type longrope) computes all positions otherwise, which cached keys do not "
                "follow; lower max_new_tokens, or use engine vllm"
            )
        run = decode if can_decode(model) else decode_by_generate
        keys = prompt_keys(prompts, seed=sampling.seed)
        # Prompts of similar length need less padding in the prefill.
        order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
        per_batch = max(1, self.batch_size // sampling.num_completions)
        groups: list[list[GeneratedCompletion]] = [[] for _ in prompts]
        hidden = None if self.label else True
        total = len(prompts) * sampling.num_completions
        # Completions that have ended, and tokens, of the batches before the current one.
        ended, tokens = 0, 0

        def watch(rows: Rows) -> None:
            if self._stream:
                self._stream(rows.token_ids[0])
            if self.heartbeat:
                batch_ended, batch_tokens = rows.counts
                self.heartbeat(ended + batch_ended, total, tokens + batch_tokens)

        with (
            tqdm(total=len(prompts), desc=self.label, unit="problem", disable=hidden) as bar,
            _inference(model),
        ):
            for start in range(0, len(order), per_batch):
                batch = order[start : start + per_batch]
                # In several parts if one prompt has more completions than fit into a batch.
                for first in range(0, sampling.num_completions, self.batch_size):
                    count = min(self.batch_size, sampling.num_completions - first)
                    rows = Rows(
                        [prompts[index] for index in batch],
                        [limits[index] for index in batch],
                        [keys[index] for index in batch],
                        sampling=dataclasses.replace(sampling, num_completions=count),
                        endings=endings,
                        device=model.device,
                        watch=watch if self._stream or self.heartbeat else None,
                        first_completion=first,
                    )
                    run(model, rows)
                    batch_ended, batch_tokens = rows.counts
                    ended, tokens = ended + batch_ended, tokens + batch_tokens
                    # In the order of the batch, `count` completions per prompt. All have ended, so
                    # none is None; `filter` only tells the type checker.
                    completions = filter(None, rows.completions)
                    for index in batch:
                        groups[index] += itertools.islice(completions, count)
                bar.update(len(batch))
        return groups

    def stream(
        self, prompt: Sequence[int], sampling: Sampling, show: Callable[[str], None]
    ) -> GeneratedCompletion:
        """Generate one completion, and pass its text to `show` in pieces as it grows.

        An exception that `show` raises ends the generation.
        """
        shown = ""

        def show_new(token_ids: list[int]) -> None:
            """Show the text that the new tokens add; `token_ids` are all tokens so far."""
            nonlocal shown
            text = self.tokenizer.decode(token_ids, skip_special_tokens=True)
            text = text_until(sampling.stop_strings, text)
            # A character may span tokens. While its last bytes are missing, `text` ends with "�":
            # wait for them. A tokenizer with byte fallback may then turn the character before it
            # into "�" too, although it was shown; `text` does not start with `shown` until the
            # bytes are complete.
            if text.startswith(shown) and shown != text and not text.endswith(_HALF_CHARACTER):
                show(text[len(shown) :])
                shown = text

        # `generate` calls it after each token.
        self._stream = show_new
        try:
            ((completion,),) = self.generate([prompt], sampling)
        finally:
            self._stream = None
        # What is still held back, such as an unfinished character.
        if completion.text != shown:
            show(completion.text[len(shown) :])
        return completion

    def sync(self, policy: PreTrainedModel) -> str:
        self.model = policy
        self._num_syncs += 1
        # The version only has to change with each call, since the weights are the policy's own.
        return str(self._num_syncs)

    def close(self) -> None:
        self.model = None
        self._endings.clear()

    def _endings_of(self, model: PreTrainedModel, sampling: Sampling) -> Endings:
        """Return the `Endings` for these settings; cached: one may decode the whole vocabulary."""
        # All settings that decide when a completion ends, besides its longest length.
        key = (sampling.stop_strings, sampling.ignore_eos, sampling.tool)
        if key not in self._endings:
            self._endings[key] = Endings(
                self.tokenizer,
                end_tokens=() if sampling.ignore_eos else end_tokens(model, self.tokenizer),
                stop_strings=sampling.stop_strings,
                # Rows of the head: a padded vocabulary has more rows than the tokenizer has tokens.
                vocab_size=model.get_output_embeddings().weight.shape[0],
                tool=sampling.tool,
            )
        return self._endings[key]


@contextlib.contextmanager
def _inference(model: PreTrainedModel) -> Iterator[None]:
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes.items():
            module.training = training
        if model.training and is_unsloth(model):
            # Unsloth's `generate` turns gradient checkpointing off, and on again only in train
            # mode.
            model.for_training()


def decode_by_generate(model: PreTrainedModel, rows: Rows) -> None:
    """Generate with transformers' `generate`, for a model that `decode` cannot run.

    transformers prepares the inputs and keeps the cache. The loop is ours, passed as
    `custom_generate`, since transformers' own may check its stopping criteria late on a GPU (5.17).
    Rows sample and end as in `decode`, but ended rows are computed until all have ended.
    """

    def until_ended(
        model: Any,
        input_ids: Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        **inputs: Any,
    ) -> Tensor:
        """Run forward passes until all rows have ended; three arguments are unused."""
        # New tokens of a forward pass: None for the first one, the whole prompt; then 1.
        length: int | None = None
        while True:
            prepared = model.prepare_inputs_for_generation(
                input_ids, next_sequence_length=length, is_first_iteration=not length, **inputs
            )
            outputs = model(**prepared, return_dict=True)
            tokens = rows.extend(outputs.logits[:, -1])  # samples a token per row, ends rows
            if rows.all_ended:
                return input_ids
            input_ids = torch.cat([input_ids, tokens[:, None]], dim=-1)
            # Takes the cache from `outputs`, and lengthens the attention mask.
            inputs = model._update_model_kwargs_for_generation(outputs, inputs)
            length = 1

    count = rows.sampling.num_completions
    with _without_saved_config(model):
        model.generate(
            input_ids=rows.prompt_tokens.repeat_interleave(count, dim=0),
            attention_mask=rows.prompt_mask.long().repeat_interleave(count, dim=0),
            generation_config=GenerationConfig(
                # `rows` samples and ends completions; with these settings `generate` does neither.
                do_sample=False,
                max_new_tokens=max(rows.limits),
                pad_token_id=0,  # any id: the prompts are padded already, with a mask
                eos_token_id=None,
            ),
            custom_generate=until_ended,
        )


@contextlib.contextmanager
def _without_saved_config(model: PreTrainedModel) -> Iterator[None]:
    """Empty the model's generation config in the block.

    `generate` takes settings that the caller leaves unset from it: stop strings fail without a
    tokenizer, and `num_beams` repeats rows.
    """
    # PEFT's wrapper has a config of its own only once `generate` has set one, and returns that of
    # the model below until then. `vars` tells these cases apart: it lists only own attributes.
    saved = {
        owner: owner.generation_config
        for owner in {model, base_model(model)}
        if "generation_config" in vars(owner)
    }
    for owner in saved:
        owner.generation_config = GenerationConfig()
    try:
        yield
    finally:
        for owner, config in saved.items():
            owner.generation_config = config
