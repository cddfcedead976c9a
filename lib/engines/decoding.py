"""Generation token by token, in a loop of forward passes (`decode`).

P prompts, G completions each, B = P · G rows (less the ended ones), T tokens, V vocabulary; H
query heads, K key and value heads, D width of a head.

Nothing is approximated, and the loop is faster than transformers' `generate`: a prompt is computed
once for its G completions, keys and values are written into memory that was allocated before
(transformers' cache copies all of them at every token), and ended rows are dropped.

A row inverts its cumulative distribution at a uniform number of its own, which depends on seed,
prompt, number of the completion, step and `max_new_tokens`. The other rows of its batch therefore
do not change a completion, except by rounding.
"""

import contextlib
import inspect
import operator
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from peft import PeftModel
from torch import Tensor
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    Cache,
    DynamicCache,
    LogitsProcessorList,
    MinPLogitsWarper,
    PreTrainedModel,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.cache_utils import DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from lib.engines.base import (
    GeneratedCompletion,
    NotFiniteError,
    Sampling,
)
from lib.engines.endings import Endings
from lib.models.unsloth import is_unsloth

_ARGUMENTS = {"input_ids", "attention_mask", "position_ids", "past_key_values", "logits_to_keep"}
"""Arguments that a model's forward pass needs for `decode`."""

_ENDED_SHARE = 0.25
"""Share of ended rows in the batch from which removing them costs less than computing them."""

_NO_TOKEN = -1
"""Placeholder token of a row with NaN or infinite logits. It is read with the tokens; a separate
check of the logits would wait for the device once more."""

_BELOW_ONE = 1 - 2.0**-40
"""Largest uniform number; with one nearer to 1, rounding could choose a token beyond the last."""


def can_decode(model: PreTrainedModel) -> bool:
    """Return True if `decode` can replace `generate`: a decoder with plain attention in all layers.

    False for other attention (a sliding window), for prompt learning (PEFT's adapters of virtual
    tokens), and for a model from Unsloth, which ignores an empty cache and fills no cache in
    training.
    """
    if is_unsloth(model) or model.config.is_encoder_decoder:
        return False
    if isinstance(model, PeftModel) and model.active_peft_config.is_prompt_learning:
        return False
    layers = DynamicCache(config=model.config).layers
    plain_attention = bool(layers) and all(type(layer) is DynamicLayer for layer in layers)
    return plain_attention and forward_arguments(model) >= _ARGUMENTS


def base_model(model: PreTrainedModel) -> PreTrainedModel:
    """Return the model below a PEFT adapter; any other model itself."""
    return model.get_base_model() if isinstance(model, PeftModel) else model


def forward_arguments(model: PreTrainedModel) -> set[str]:
    """Return the argument names of the model's forward pass; of the base model's for an adapter."""
    return set(inspect.signature(type(base_model(model)).forward).parameters)


_GROUPED = "grouped_sdpa"


def grouped_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Compute transformers' sdpa attention; for one token a row, without copying keys.

    With a mask, transformers repeats keys and values for every query head (`use_gqa_in_sdpa`),
    which takes most of a CPU's attention time. Here one token's queries [B, H, 1, D] are viewed as
    [B, K, H / K, D].

    Args:
        query: [B, H, T, D] of the new tokens: T > 1 in the prefill, 1 at each later step.
        key, value: [B, K, S, D] of all S tokens so far.
        attention_mask: [B, 1, T, S], or None.

    Returns:
        The output [B, T, H, D], and None in place of attention weights.
    """
    batch, heads, num_queries, width = query.shape
    num_key_heads = key.shape[1]
    if num_queries > 1 or heads == num_key_heads:
        attended: Tensor = sdpa_attention_forward(
            module, query, key, value, attention_mask, **kwargs
        )[0]
        return attended, None
    grouped: Tensor = torch.nn.functional.scaled_dot_product_attention(
        query.view(batch, num_key_heads, heads // num_key_heads, width),
        key,
        value,
        attn_mask=attention_mask,
        scale=kwargs.get("scaling"),
    )
    return grouped.reshape(batch, 1, heads, width), None


AttentionInterface.register(_GROUPED, grouped_attention)
AttentionMaskInterface.register(_GROUPED, sdpa_mask)


@contextlib.contextmanager
def _grouped(model: PreTrainedModel) -> Iterator[None]:
    """Make a model on a CPU use `grouped_attention` instead of sdpa within the block."""
    inner = base_model(model)
    if model.device.type != "cpu" or inner.config._attn_implementation != "sdpa":
        yield
        return
    inner.set_attn_implementation(_GROUPED)
    try:
        yield
    finally:
        inner.set_attn_implementation("sdpa")


def decode(model: PreTrainedModel, rows: "Rows") -> None:
    """Generate until every row has ended; the results are then in `rows.completions`.

    Prefill the prompts, then repeat: sample one token a row, drop ended rows, forward pass.
    """
    # A cache layer per layer of the model, counted by `DynamicCache`. Each layer allocates memory
    # for all tokens in one piece.
    cache = Cache(
        layers=[_PreallocatedLayer(rows.capacity) for _ in DynamicCache(config=model.config).layers]
    )
    forward = partial(model, past_key_values=cache, use_cache=True, logits_to_keep=1)
    num_completions, mask = rows.sampling.num_completions, rows.prompt_mask
    # Positions count from the first token after the padding; padding gets 0.
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    with _grouped(model):
        # Prefill: [P, T] prompts, whose keys, values and logits are then repeated to B rows.
        output = forward(input_ids=rows.prompt_tokens, attention_mask=mask, position_ids=positions)
        cache.batch_repeat_interleave(num_completions)
        logits = output.logits[:, -1].repeat_interleave(num_completions, dim=0)  # [B, V]
        while True:
            tokens = rows.extend(logits)  # [B]
            if rows.all_ended:
                return
            kept = rows.drop_ended()  # indices of the kept rows; None if all rows are kept
            if kept is not None:
                cache.batch_select_indices(kept)
                tokens = tokens[kept]
            logits = forward(
                input_ids=tokens[:, None],
                attention_mask=rows.mask(),
                position_ids=rows.positions()[:, None],
            ).logits[:, -1]


class Rows:
    """The growing completions of a batch of B rows; ended rows are dropped from its tensors.

    Lists (`token_ids`, `sampled`, `completions`, `limits` and so on) keep all P · G rows. Tensors
    hold the B rows that are still in the batch; row b of a tensor is entry `places[b]` of a list.

    Args:
        limits: for each prompt, the longest length of a completion, at least 1.
        keys: for each prompt, its key from `prompt_keys`.
        watch: called after each step.
        first_completion: number of each prompt's first completion, after those of earlier batches.

    Attributes:
        num_steps: tokens so far per row, sampled or forced.
        forced: for each row, the tokens of a tool that come before the next sampled one.
        prompt_width: columns of the left-padded prompts, the longest prompt's tokens.
        capacity: columns that the cache can ever need.
        prompt_tokens, prompt_mask: [P, T], padded on the left.
        not_padding: [B, capacity] True from the row's first prompt token on.
        num_padding: [B] columns of padding before the prompt.
        max_lengths: [B] most tokens of prompt and completion together.
        uniforms: [B, steps] a uniform number for each token to sample.
        completions: None for a row that has not ended.
    """

    def __init__(
        self,
        prompts: Sequence[Sequence[int]],
        limits: Sequence[int],
        keys: Sequence[int],
        *,
        sampling: Sampling,
        endings: Endings,
        device: torch.device,
        watch: Callable[["Rows"], None] | None = None,
        first_completion: int = 0,
    ) -> None:
        self.sampling, self.endings, self.watch = sampling, endings, watch
        self.num_steps = 0
        count = sampling.num_completions

        # Lists with one entry per row: G rows of the first prompt, G of the second, and so on.
        self.limits = [limit for limit in limits for _ in range(count)]
        # Row of the batch → entry of the lists; the same number until rows are dropped.
        self.places = list(range(len(self.limits)))
        self.token_ids: list[list[int]] = [[] for _ in self.places]
        self.log_probs: list[list[float]] = [[] for _ in self.places]
        self.sampled: list[list[bool]] = [[] for _ in self.places]
        self.forced: list[list[int]] = [[] for _ in self.places]
        self.completions: list[GeneratedCompletion | None] = [None for _ in self.places]

        lengths = [len(prompt) for prompt in prompts]
        self.prompt_width = max(lengths)
        self.capacity = self.prompt_width + max(limits)
        padded = [[0] * (self.prompt_width - len(prompt)) + list(prompt) for prompt in prompts]
        self.prompt_tokens = torch.tensor(padded, device=device)  # [P, T], padded on the left
        num_padding = self.prompt_width - torch.tensor(lengths, device=device)
        columns = torch.arange(self.capacity, device=device)
        not_padding = columns >= num_padding[:, None]
        self.prompt_mask = not_padding[:, : self.prompt_width]
        # [P] most tokens of prompt and completion together.
        max_lengths = torch.tensor([*map(operator.add, lengths, limits)], device=device)

        self.not_padding = not_padding.repeat_interleave(count, dim=0)
        self.num_padding = num_padding.repeat_interleave(count, dim=0)
        self.max_lengths = max_lengths.repeat_interleave(count, dim=0)
        # [P · G, steps], drawn on the CPU in float64, so that every device samples the same tokens.
        # There are `max_new_tokens` steps, not the largest of `limits`, so that a completion's
        # numbers do not depend on the other prompts in the batch.
        self.uniforms = uniforms(
            keys, num_completions=count, num_steps=sampling.max_new_tokens, first=first_completion
        ).to(device)

    def extend(self, logits: Tensor) -> Tensor:
        """Append the next token of each row, sampled or forced, and end the rows that it completes.

        Args:
            logits: [B, V] of the next token.

        Returns:
            The tokens [B], the input of the next forward pass.

        Raises:
            NotFiniteError: a row has logits with NaN or infinities.
        """
        tokens, log_probs = sample(logits, self.uniforms[:, self.num_steps], self.sampling)
        self.num_steps += 1
        # Copying to the CPU waits for the device; nothing else in a step does.
        new_tokens = tokens.tolist()
        if _NO_TOKEN in new_tokens:
            raise NotFiniteError(
                "the model's logits are NaN or infinite: its weights are damaged or have diverged "
                "in training (a lower learning_rate), or overflow (dtype float32)"
            )
        new_log_probs = [0.0] * len(new_tokens) if log_probs is None else log_probs.tolist()
        any_forced = False
        for row, place in enumerate(self.places):
            # An ended row is computed until `drop_ended` takes it out; its tokens are not kept.
            if self.completions[place] is not None:
                continue
            is_forced = bool(self.forced[place])
            if is_forced:
                new_tokens[row], new_log_probs[row] = self.forced[place].pop(0), 0.0
                any_forced = True
            self.token_ids[place].append(new_tokens[row])
            self.log_probs[place].append(new_log_probs[row])
            self.sampled[place].append(not is_forced)
            self.completions[place] = self._completed(place)
        if self.watch:
            self.watch(self)
        return tokens.new_tensor(new_tokens) if any_forced else tokens

    def _completed(self, place: int) -> GeneratedCompletion | None:
        """Return the completion at `place` of the lists if its last token ends it, else None."""
        token_ids, sampled = self.token_ids[place], self.sampled[place]
        room = self.limits[place] - len(token_ids)
        end = None
        # Within a result nothing ends; it fits into the limit.
        if not self.forced[place]:
            end = self.endings.find(token_ids, at_limit=not room)
        if end is None and sampled[-1]:
            self.forced[place] = self.endings.forced(token_ids, sampled)
            if len(self.forced[place]) > room:
                end = "length", self.endings.text(token_ids)
        if end is None:
            return None
        finish, text = end
        return GeneratedCompletion(
            text=text,
            token_ids=tuple(token_ids),
            finish=finish,
            log_probs=tuple(self.log_probs[place]) if self.sampling.log_probs else None,
            sampled=None if all(sampled) else tuple(sampled),
        )

    @property
    def all_ended(self) -> bool:
        return None not in self.completions

    @property
    def counts(self) -> tuple[int, int]:
        ended = len(self.completions) - self.completions.count(None)
        return ended, sum(map(len, self.token_ids))

    def drop_ended(self) -> Tensor | None:
        """Drop ended rows from the tensors; return the batch indices of the rows that are kept.

        If less than a quarter has ended (`_ENDED_SHARE`), keep all and return None, since dropping
        copies the whole cache. The caller drops the same rows from the cache.
        """
        # Row `row` of the tensors is entry `places[row]` of the lists. Its completion is None until
        # it has ended.
        active = [row for row, place in enumerate(self.places) if self.completions[place] is None]
        if len(self.places) - len(active) < _ENDED_SHARE * len(self.places):
            return None
        kept = torch.tensor(active, device=self.uniforms.device)
        self.places = [self.places[row] for row in active]
        self.not_padding = self.not_padding[kept]
        self.num_padding = self.num_padding[kept]
        self.max_lengths = self.max_lengths[kept]
        self.uniforms = self.uniforms[kept]
        return kept

    def mask(self) -> Tensor:
        """Return the attention mask [B, T] of the next forward pass: False for padding only.

        Its last column is the token just sampled, which is not in the cache yet.
        """
        return self.not_padding[:, : self.prompt_width + self.num_steps]

    def positions(self) -> Tensor:
        """Return the position [B] of the token just sampled: prompt length + steps - 1.

        A row that has ended but is still computed keeps its last position (`max_lengths` - 1),
        since a model's table of learned positions has no further ones.
        """
        lengths = self.prompt_width + self.num_steps - self.num_padding
        return lengths.minimum(self.max_lengths) - 1


def sample(logits: Tensor, uniforms: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor | None]:
    """Sample one token per row, by inverting the row's cumulative distribution at a uniform number.

    Args:
        logits: [B, V] any floating type.
        uniforms: [B] float64 in [0, 1); not read when `sampling` is greedy.

    Returns:
        The tokens [B], `_NO_TOKEN` for a row with NaN or infinite logits; and their float32
        log-probs [B] under the distribution sampled from, None if `sampling` requests none.
    """
    if sampling.temperature == 0:
        scores = logits.float()
        tokens = scores.argmax(-1)
        # argmax returns the index of a NaN if there is one.
        finite = scores.gather(-1, tokens[:, None])[:, 0].isfinite()
    else:
        scores = truncate(logits.float() / sampling.temperature, sampling)
        probabilities = scores.softmax(-1)  # [B, V]
        # One NaN or +inf makes all probabilities of its row NaN, the first one too.
        finite = probabilities[:, 0].isfinite()
        # Summed as integers, in units of 2^-52: on a GPU, sums of floats differ from run to run,
        # and in float32 they would round away small probabilities of a large vocabulary.
        cumulative = (probabilities * 2.0**52).long().cumsum(-1)
        # A share of the last sum, not of 2^52: rounding then cannot go beyond the last token.
        quantiles = (uniforms[:, None] * cumulative[:, -1:]).long()
        # Right: a number on a boundary goes to the next token, never to one of probability 0.
        tokens = torch.searchsorted(cumulative, quantiles, right=True)[:, 0]
    tokens = tokens.masked_fill(~finite, _NO_TOKEN)
    if not sampling.log_probs:
        return tokens, None
    # clamp: `_NO_TOKEN`, -1, is no index; the caller raises an error for it.
    token_scores = scores.gather(-1, tokens.clamp(min=0)[:, None])[:, 0]
    # Log-softmax after temperature and truncation, the distribution that was sampled from.
    return tokens, token_scores - scores.logsumexp(-1)


def truncate(scores: Tensor, sampling: Sampling) -> Tensor:
    """Set the logits [B, V] of the tokens excluded by min-p, top-k and top-p to -inf.

    The order is vLLM's (vllm/v1/sample/sampler.py, `Sampler.sample`, 0.32.0): top-p is a share of
    the tokens that the other two keep. transformers applies min-p last, which keeps more tokens.
    """
    # transformers' own warpers, so that ties and edge cases are cut as in its `generate`.
    warpers = LogitsProcessorList()
    if sampling.min_p:
        warpers.append(MinPLogitsWarper(sampling.min_p))
    if sampling.top_k:
        warpers.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        warpers.append(TopPLogitsWarper(sampling.top_p))
    truncated: Tensor = warpers(None, scores)
    return truncated


def uniforms(
    keys: Sequence[int], *, num_completions: int, num_steps: int, first: int = 0
) -> Tensor:
    """Return uniform random numbers: float64 [P · G, num_steps] in [0, 1).

    Args:
        keys: [P] seeds of the prompts, from `prompt_keys`.
        num_completions: G.
        first: number of each prompt's first completion here; an earlier batch has generated the
            completions before it.
    """
    # Also for the completions before `first`, so that a completion has the same numbers in a part
    # of a batch as in the whole batch.
    numbers = np.empty((len(keys), first + num_completions, num_steps))
    for of_prompt, key in zip(numbers, keys, strict=True):
        np.random.Generator(np.random.Philox(key=key)).random(out=of_prompt)
    # In place too. With a number nearer to 1, rounding could choose a token beyond the last.
    np.minimum(numbers, _BELOW_ONE, out=numbers)
    return torch.from_numpy(numbers[:, first:]).flatten(0, 1)


class _PreallocatedLayer(DynamicLayer):
    """The cache of one layer, in memory that is allocated at once for `capacity` tokens."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity
        # Allocated memory of keys and of values, [B, K, capacity, D] each; [] if there is none yet.
        self.buffers: list[Tensor] = []

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Append keys and values [B, K, T, D] of T new tokens; return those of all tokens so far.

        The first call, the prefill, has the P prompts; each later call one token of B rows.
        """
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.keys, self.values = key_states, value_states
            return self.keys, self.values
        start = self.keys.shape[-2]
        end = start + key_states.shape[-2]
        if not self.buffers:
            for states in (self.keys, self.values):
                batch, heads, _, width = states.shape
                self.buffers.append(states.new_empty((batch, heads, self.capacity, width)))
                self.buffers[-1][:, :, :start] = states
        for buffer, states in zip(self.buffers, (key_states, value_states), strict=True):
            buffer[:, :, start:end] = states
        # Views: nothing is copied at a step, where torch.cat would copy the whole cache.
        self.keys, self.values = (buffer[:, :, :end] for buffer in self.buffers)
        return self.keys, self.values

    def batch_repeat_interleave(self, repeats: int) -> None:
        super().batch_repeat_interleave(repeats)
        self.buffers = []  # they have the old number of rows; the next `update` makes new ones

    def batch_select_indices(self, indices: Tensor) -> None:
        super().batch_select_indices(indices)
        self.buffers = []
