"""Token by token with a causal language model, without `generate`: P prompts, G completions each.

Exact, and faster: a prompt is computed once for its G completions, keys and values are written into
room that was set aside (transformers' own cache copies all of them at every token), and rows that
have ended leave the batch.
"""

import inspect

from peft import PeftModel
from torch import Tensor
from transformers import Cache, DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from lib.engines.base import Completion, Sampling
from lib.engines.endings import Endings
from lib.engines.rows import Batch, Rows
from lib.engines.unsloth import is_unsloth

_ARGUMENTS = {"input_ids", "attention_mask", "position_ids", "past_key_values", "logits_to_keep"}


def can_decode(model: PreTrainedModel) -> bool:
    """Whether `decode` does what `generate` does with this model: plain attention in all layers.

    Not where Unsloth runs it: it takes an empty cache for none, and fills none while training.
    """
    if is_unsloth(model):
        return False
    if isinstance(model, PeftModel):
        if model.active_peft_config.is_prompt_learning:
            return False
        model = model.get_base_model()
    layers = DynamicCache(config=model.config).layers
    arguments = inspect.signature(type(model).forward).parameters
    return (
        not model.config.is_encoder_decoder
        and bool(layers)
        and all(type(layer) is DynamicLayer for layer in layers)
        and set(arguments) >= _ARGUMENTS
    )


def decode(
    model: PreTrainedModel, batch: Batch, sampling: Sampling, endings: Endings
) -> list[Completion]:
    """P · G completions, those of one prompt together."""
    rows = Rows(batch, sampling, endings, device=model.device)
    cache = Cache(layers=[_RoomyLayer(rows.capacity) for _ in _layers(model)])
    logits = _prefill(model, batch, cache, rows)
    cache.batch_repeat_interleave(sampling.num_completions)
    logits = logits.repeat_interleave(sampling.num_completions, dim=0)
    while True:
        tokens = rows.extend(logits)
        if rows.all_ended:
            return rows.completions()
        kept = rows.drop_ended()
        if kept is not None:
            cache.batch_select_indices(kept)
            tokens = tokens[kept]
        logits = model(
            input_ids=tokens[:, None],
            attention_mask=rows.mask(),
            position_ids=rows.positions()[:, None],
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits[:, -1]


def _layers(model: PreTrainedModel) -> list[object]:
    layers: list[object] = DynamicCache(config=model.config).layers
    return layers


def _prefill(model: PreTrainedModel, batch: Batch, cache: Cache, rows: Rows) -> Tensor:
    """[P, V] logits after each of the prompts."""
    logits: Tensor = model(
        input_ids=batch.padded(model.device),
        attention_mask=rows.prompt_mask,
        position_ids=(rows.prompt_mask.cumsum(-1) - 1).clamp(min=0),
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=1,
    ).logits[:, -1]
    return logits


class _RoomyLayer(DynamicLayer):
    """Keys and values of one layer, in room for `capacity` tokens that is set aside at once."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity
        self.room: tuple[Tensor, Tensor] | None = None

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Append [B, H, T, D], and give all that there is."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.keys, self.values = key_states, value_states
            return self.keys, self.values
        start = self.keys.shape[-2]
        end = start + key_states.shape[-2]
        if self.room is None:
            self.room = self._set_aside(self.keys), self._set_aside(self.values)
        for room, states in zip(self.room, (key_states, value_states), strict=True):
            room[:, :, start:end] = states
        self.keys, self.values = (room[:, :, :end] for room in self.room)
        return self.keys, self.values

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Each row `repeats` times."""
        super().batch_repeat_interleave(repeats)
        self.room = None

    def batch_select_indices(self, indices: Tensor) -> None:
        """These rows alone."""
        super().batch_select_indices(indices)
        self.room = None

    def _set_aside(self, states: Tensor) -> Tensor:
        batch, heads, length, width = states.shape
        room = states.new_empty((batch, heads, self.capacity, width))
        room[:, :, :length] = states
        return room
